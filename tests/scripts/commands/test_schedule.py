"""`tessel schedule`: what its summary says, and what it suggests."""

from __future__ import annotations

import pytest

from scripts.commands.schedule.results import _fullest
from scripts.main import main
from tessel.placement import Block, BlockKind, Placement
from tessel.schedule import Schedule


def schedule_of(peaks: tuple[int, ...]) -> Schedule:
    """A schedule of a block a device, each of which takes the given memory."""
    blocks = tuple(
        Block(name=f"f{device}", kind=BlockKind.FORWARD, devices=(device,), span=1, memory=peak)
        for device, peak in enumerate(peaks)
    )
    placement = Placement(devices=len(peaks), blocks=blocks, edges=())
    return Schedule.of(placement, {(device, 0): 0 for device in range(len(peaks))}, micro_batches=1)


@pytest.mark.parametrize(
    ("peaks", "expected"),
    [
        ((4, 3, 2), "most on device 0"),
        ((2, 4, 4), "most on devices 1, 2"),
        ((3, 3), "the same on every device"),
        ((3,), "on the one device"),
        ((1, 2, 2, 2, 2, 2), "most on device 1 and 4 others"),
    ],
    ids=str,
)
def test_the_summary_names_the_devices_that_peak(peaks: tuple[int, ...], expected: str) -> None:
    assert _fullest(schedule_of(peaks)) == expected


def test_the_summary_of_a_command_names_them_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "vshape", "--devices", "2", "--micro-batches", "2", "--memory", "2"]) == 0
    assert "peak memory   2,1 (limit 2), most on device 0\n" in capsys.readouterr().out


def test_letters_of_the_paper_suggest_their_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", "nn", "--devices", "4"]) == 2
    assert "did you mean 'nnshape'?" in " ".join(capsys.readouterr().err.split())

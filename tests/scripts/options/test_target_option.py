"""No command measures for a device that is not here, and none keeps a measurement under such a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tvm

REMOTE = "rpc://127.0.0.1:9190/board?target=arm/rasp4b64"

COMMANDS = {
    "tune": ("tune", "mlp", "--devices", "2", "--micro-batches", "2"),
    "stages": ("stages", "mlp", "--cut", "layer:1"),
    "collect": ("records", "collect", "--networks", "mlp"),
    "best": ("records", "best", "mlp"),
    "backends": ("backends",),
    "train": ("language", "train"),
    "generate": ("language", "generate", "dense:8x8x8", "--measure"),
    "evaluate": ("language", "evaluate"),
}
READS_ONLY = ("best", "backends")
MEASURES_BEHIND_A_TRACKER = ("tune", "stages")


def arguments_of(name: str, folder: Path) -> tuple[str, ...]:
    """Return a command that would write its records, and what else it writes, into the folder."""
    records = () if name == "backends" else ("--records", f"{folder}/records.db")
    out = ("--out", f"{folder}/out") if name == "tune" else ()
    return (*COMMANDS[name], *records, *out)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in MEASURES_BEHIND_A_TRACKER])
def test_a_remote_target_is_wrong_usage(name: str, tessel: Callable[..., Any], tmp_path: Path) -> None:
    outcome = tessel(*arguments_of(name, tmp_path), "--target", REMOTE)
    assert outcome.status == 2, outcome.stderr
    assert "only `tessel partition`, `stages` and `tune` measure there" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_hops_between_devices_behind_a_tracker_are_asked_for(
    tessel: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = tessel(*arguments_of("tune", tmp_path), "--target", REMOTE)
    assert outcome.status == 2, outcome.stderr
    assert "is not measured from here; give --hop-us" in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in READS_ONLY])
@pytest.mark.parametrize("target", ["arm/rasp4b64", "nvidia/geforce-gt-640m"])
def test_a_device_that_is_not_here_is_refused_before_anything_is_written(
    name: str, target: str, tessel: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = tessel(*arguments_of(name, tmp_path), "--target", target)
    assert outcome.status in (1, 2), outcome.stderr
    assert outcome.stderr.splitlines()[-1].startswith("tessel: ")
    assert "cannot be measured here" in outcome.stderr or "not this machine's processor" in outcome.stderr
    assert not (tmp_path / "records.db").exists()


def test_backends_of_a_device_that_is_not_here_say_so(tessel: Callable[..., Any]) -> None:
    outcome = tessel("backends", "--target", "arm/rasp4b64")
    assert outcome.status == 0
    assert "cannot be measured here" in outcome.stderr

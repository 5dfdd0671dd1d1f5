"""Placements of a model by name: where the stages of the chain run, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.options.completion import model_placements
from tessel.errors import ScheduleError
from tessel.placement import Block, BlockKind, Placement
from tessel.shapes import make_shape
from tessel.tuned_model.model_placement import (
    AUTO,
    AUTO_PLACEMENTS,
    NAMED_PLACEMENTS,
    check_placement_name,
    model_placement,
    placements_to_tune,
)


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("vshape", (0, 1, 2)),
        ("interleaved", (0, 1, 2, 0, 1, 2)),
        ("interleaved:3", (0, 1, 2) * 3),
        ("zbv", (0, 1, 2, 2, 1, 0)),
        ("mshape", (0, 1, 2)),
        ("xshape", (0, 1, 2)),
    ],
)
def test_a_name_says_where_each_stage_runs(name: str, chain: tuple[int, ...]) -> None:
    placement = model_placement(name, 3)
    assert placement.chain == chain
    assert placement.divides_ends == (name == "mshape")
    assert placement.copies == (2 if name == "xshape" else 1)


def test_every_placement_is_tuned_beside_the_plain_chain() -> None:
    def names(name: str, num_devices: int) -> list[str]:
        return [each.name for each in placements_to_tune(name, num_devices)]

    assert names("vshape", 2) == ["vshape"]
    assert names("zbv", 2) == ["zbv", "vshape"]
    assert names("auto", 2) == list(AUTO_PLACEMENTS)
    assert names("auto", 1) == ["vshape"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mshap", "did you mean mshape"),
        ("finetune", "no model can be placed as 'finetune'; choose auto, .* or a placement file"),
        ("interleaved:1", "1 stages per device; interleaved takes 2 to 8"),
        ("interleaved:99", "interleaved takes 2 to 8"),
        ("interleaved:x", "no model can be placed as 'interleaved:x'"),
    ],
)
def test_what_names_no_placement_is_refused(name: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check_placement_name(name)


def test_one_device_has_the_plain_chain_alone() -> None:
    with pytest.raises(ScheduleError, match="mshape needs at least 2 devices, and there is 1; use vshape"):
        model_placement("mshape", 1)


def test_completion_knows_every_placement() -> None:
    assert set(model_placements("")) == {AUTO, *NAMED_PLACEMENTS}


def test_shapes_of_branches_have_their_stages_and_who_follows_whom() -> None:
    nn, k = model_placement("nnshape", 3), model_placement("kshape", 3)
    assert nn.stages == ((0, 1, 2), (0,), (0, 1, 2), (1,), (2,), (0, 1, 2))
    assert (nn.before, nn.needs_words) == (((), (0,), (1,), (2,), (3,), (4,)), True)
    assert k.stages == ((0,), (1,), (2,), (0, 1, 2))
    assert (k.before, k.needs_words) == (((), (), (1,), (0, 2)), False)


def write(placement: Placement, folder: Path) -> str:
    path = folder / "placement.json"
    path.write_bytes(placement.to_json())
    return str(path)


def test_a_file_says_where_stages_run_and_what_follows_what(tmp_path: Path) -> None:
    name = write(make_shape("kshape", 4, choose_backward=True), tmp_path)
    check_placement_name(name)
    placement = model_placement(name, 4)
    assert placement.stages == model_placement("kshape", 4).stages
    assert placement.before == model_placement("kshape", 4).before
    assert [each.name for each in placements_to_tune(name, 4)] == [name, "vshape"]
    with pytest.raises(ScheduleError, match="has 4 devices, and --devices is 2; give --devices 4"):
        model_placement(name, 2)


def lone_block(name: str, device: int) -> Block:
    return Block(name=name, kind=BlockKind.FORWARD, devices=(device,))


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (make_shape("finetune", 2), "no backward of f0, and a model is trained in all its stages"),
        (make_shape("xshape", 2), "ends in f. and f., and a model in one stage"),
        (make_shape("vshape", 2, recompute=True), "recomputes in r"),
        (Placement(devices=2, blocks=(lone_block("f0", 0),)), "has no block on device 1"),
        (
            Placement(devices=1, blocks=(Block(name="any", kind=BlockKind.OTHER, devices=(0,)),)),
            "has blocks that are no stages of a model: block any is neither",
        ),
    ],
)
def test_a_file_that_no_model_can_be_placed_as_is_refused(
    placement: Placement, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ScheduleError, match=message):
        model_placement(write(placement, tmp_path), placement.devices)

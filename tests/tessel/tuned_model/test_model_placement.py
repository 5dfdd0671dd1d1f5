"""Placements of a model by name: where the stages of the chain run, and what is refused."""

from __future__ import annotations

import pytest

from scripts.options.completion import model_placements
from tessel.errors import ScheduleError
from tessel.tuned_model.model_placement import (
    AUTO,
    AUTO_PLACEMENTS,
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
        ("nnshape", "no model can be placed as 'nnshape'"),
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
    assert set(model_placements("")) == {AUTO, *AUTO_PLACEMENTS}

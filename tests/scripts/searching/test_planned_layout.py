"""A planned layout becomes the settings that cut a model so."""

from __future__ import annotations

import pytest

from scripts.searching.planned_layout import placement_name, settings_of_layout
from tessel.planning.layout import Layout, PlacementName
from tuner.tuning.tune import TuningSettings

pytestmark = pytest.mark.tvm

CUTS = ((0, 0), (1, 4), (5, 8), (9, 9))


@pytest.mark.parametrize(
    ("placement", "pipeline", "width", "name", "devices"),
    [
        ("mshape", 2, 1, "mshape", ((0, 1), (0,), (1,), (0, 1))),
        ("vshape", 4, 2, "vshape of 2", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("zbv", 2, 2, "zbv of 2", ((0, 1), (2, 3), (2, 3), (0, 1))),
        ("interleaved", 2, 1, "interleaved:2", ((0,), (1,), (0,), (1,))),
    ],
)
def test_stages_lie_where_the_layout_has_them(
    placement: PlacementName, pipeline: int, width: int, name: str, devices: tuple[tuple[int, ...], ...]
) -> None:
    layout = Layout(
        data_parallel=1,
        pipeline=pipeline,
        tensor_parallel=width,
        micro_batch=1,
        micro_batches=8,
        placement=placement,
        cuts=CUTS,
    )
    settings = settings_of_layout(layout, TuningSettings(num_stages=4, hop_us=1.0))
    assert placement_name(layout) == name
    assert settings.devices_by_stage == devices
    assert settings.layer_cuts == (1, 5, 9)
    assert settings.are_some_divided == (placement == "mshape" or width > 1)

"""Which placements of branches a model's structure offers, before anything is measured."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

from tessel.tuned_model.model_placement import BRANCHED_PLACEMENTS, model_placement
from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.stages.placed_stages import PlacedStages
from tuner.tuning.cut_model import require_placeable

pytestmark = pytest.mark.tvm


@pytest.mark.parametrize(
    ("model", "offered"),
    [
        pytest.param("mt5:tiny", {"nnshape", "kshape"}, marks=pytest.mark.slow),
        ("flava:tiny", {"kshape"}),
        ("gpt2:tiny", set()),
    ],
)
def test_a_model_offers_what_its_data_allow(model: str, offered: set[str]) -> None:
    loaded, found = load_model(model, training=True), set()
    for name in BRANCHED_PLACEMENTS:
        placement = model_placement(name, 2)
        placed = PlacedStages(placement.stages, placement.before, placement.needs_words)
        try:
            require_placeable(loaded, placed)
        except TunerError:
            continue
        found.add(name)
        with pytest.raises(TunerError, match=r"needs|fit|limit"):
            require_placeable(loaded, placed, memory_limit_bytes=1000)
    assert found == offered

"""Plain data of a plan: figures are honest, documents refuse what they do not know."""

from __future__ import annotations

import msgspec
import pytest

from tests.samples.tuned_model import tuned_model
from tuner.plan import Figure, ModelPlan


@pytest.mark.parametrize("latency_us", [-1.0, float("inf"), float("nan")])
def test_a_latency_is_a_finite_number(latency_us: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Figure(latency_us=latency_us, source="measured")


def test_a_source_is_one_of_four() -> None:
    with pytest.raises(msgspec.ValidationError, match="source"):
        msgspec.json.decode(b'{"latency_us": 1.0, "source": "guessed"}', type=Figure)


def test_a_plan_round_trips_and_unknown_keys_are_named() -> None:
    plan = tuned_model([(1.0, 2.0, 1.0, 1.0), (2.0, 3.0, 2.0, 1.0)])
    text = msgspec.json.encode(plan, order="sorted")
    assert msgspec.json.decode(text, type=ModelPlan) == plan
    with pytest.raises(msgspec.ValidationError, match="surprise"):
        msgspec.json.decode(text.replace(b'"batch":1', b'"batch":1,"surprise":2'), type=ModelPlan)

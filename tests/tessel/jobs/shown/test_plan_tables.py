"""What a plan's tables say of a step adds up."""

from __future__ import annotations

import re

import pytest

from tessel.jobs.shown.plan_tables import step_words
from tessel.planning.costs.training_step import StepEstimate


@pytest.mark.parametrize(
    ("step_us", "update_us", "words"),
    [
        (110e3, 4e3, "110 ms = 100 pipeline + 4 optimizer + 6 synchronisation"),
        # Of a device whose last block ends sooner, the optimizer is at work beside other blocks.
        (101e3, 4e3, "101 ms = 100 pipeline + 1 optimizer + 0 synchronisation"),
    ],
)
def test_the_parts_of_a_step_add_up(step_us: float, update_us: float, words: str) -> None:
    estimate = StepEstimate(
        step_us=step_us,
        pipeline_us=100e3,
        synchronisation_us=9e3,
        update_us=update_us,
        memory_bytes=(1,),
        fits=True,
        busy_ratio=0.5,
    )
    assert step_words(estimate) == words
    step, *parts = map(float, re.findall(r"[\d.]+", words))
    assert step == sum(parts)

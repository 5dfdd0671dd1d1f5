"""Equal programs have one latency, whoever found them."""

import pytest

from tests.samples.programs.whole_programs import Machine, two_layers
from tuner.plan import Figure
from tuner.tuning.end_to_end.cache import EndToEndCache
from tuner.tuning.partitioned_function import choose_partition

pytestmark = pytest.mark.tvm


def test_a_program_keeps_its_first_latency() -> None:
    wholes = EndToEndCache(Machine({"tvm": 5.0}).measure)
    priced = two_layers({"tvm": 1.0})
    function = choose_partition(priced)
    lucky = function, Figure(latency_us=1.0, source="given")
    assert wholes.known(lucky) == lucky
    measured = wholes.measure(function, label="mix")
    assert wholes.known(lucky) == measured != lucky

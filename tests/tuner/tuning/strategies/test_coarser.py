"""Partitions found where launches are dearer have fewer parts."""

from functools import partial

import pytest

from tests.samples.programs.whole_programs import Machine, count_parts, two_layers
from tuner.tuning.end_to_end.cache import EndToEndCache
from tuner.tuning.partitioned_function import choose_partition
from tuner.tuning.strategies.coarser import find_coarser

pytestmark = pytest.mark.tvm


def test_coarser_wholes_have_fewer_parts() -> None:
    priced = two_layers({"tvm": 3.0, "singles": 2.0})
    wholes = EndToEndCache(Machine({"tvm": 3.0, "singles": 2.0}).measure)
    searched = wholes.measure(choose_partition(priced), label="mix")
    assert count_parts(searched[0]) == {"singles": 4}
    coarser = find_coarser(wholes, choose_partition, searched[0], label="mix")
    assert coarser is not None
    assert count_parts(coarser[0]) == {"tvm": 2}
    assert coarser[1].latency_us == 6.0
    # TVM alone has nothing coarser than what it fuses.
    alone = partial(choose_partition, only="tvm")
    assert find_coarser(wholes, alone, alone(priced), label="mix") is None

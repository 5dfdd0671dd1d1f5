"""No layer takes longer than at a larger micro-batch, and nothing else changes."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from benchmarks.reality.smoothing import bound_by_larger
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts


def table(micro_batch: int, forward_us: float, *, degree: int = 1, backward_us: float = 5.0) -> CostTable:
    cost = StageCosts(
        forward_us=forward_us, backward_us=backward_us, update_us=micro_batch, saved_bytes=micro_batch
    )
    return CostTable(micro_batch=micro_batch, tensor_parallel=degree, costs=(cost,))


def test_noise_of_a_small_micro_batch_is_bound_by_larger_ones() -> None:
    """The forward of OPT-350 on GH200, four devices a layer: 2.381 ms at one sample, 1.509 ms at two."""
    profile = Profile(
        name="model",
        layers=(Layer("block"),),
        tables=(table(1, 2381.0), table(2, 1509.0), table(4, 1800.0), table(1, 900.0, degree=2)),
    )
    bound = bound_by_larger(profile)
    forwards = [each.costs[0].forward_us for each in bound.tables]
    assert forwards == [1509.0, 1509.0, 1800.0, 900.0]
    assert [each.costs[0].update_us for each in bound.tables] == [1, 2, 4, 1]
    assert [each.costs[0].saved_bytes for each in bound.tables] == [1, 2, 4, 1]


@given(st.lists(st.integers(1, 50).map(float), min_size=1, max_size=5))
def test_times_never_fall_with_the_micro_batch_and_only_fall_by_smoothing(forwards: list[float]) -> None:
    tables = tuple(table(2**index, forward) for index, forward in enumerate(forwards))
    profile = Profile(name="model", layers=(Layer("block"),), tables=tables)
    found = [each.costs[0].forward_us for each in bound_by_larger(profile).tables]
    assert found == sorted(found)
    assert all(after <= before for after, before in zip(found, forwards, strict=True))
    assert bound_by_larger(bound_by_larger(profile)) == bound_by_larger(profile)

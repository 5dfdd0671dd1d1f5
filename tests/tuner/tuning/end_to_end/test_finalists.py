"""Which programs race, and who wins a tie."""

import pytest

from tests.samples.programs.whole_programs import count_parts, two_layers
from tuner.measuring.race import RaceResult
from tuner.plan import Figure
from tuner.tuning.end_to_end.cache import Variant
from tuner.tuning.end_to_end.finalists import Finalist, find_finalists, simplest
from tuner.tuning.end_to_end.race import equally_fast, fastest_first
from tuner.tuning.partitioned_function import choose_partition

pytestmark = pytest.mark.tvm


def variant(name: str, latency_us: float, first_quartile_us: float | None = None) -> Variant:
    """Return one backend's answer, for two layers, with a latency."""
    cost_us = {"tvm": 3.0, "products": 3.0, "singles": 2.0}
    interval_us = None if first_quartile_us is None else (first_quartile_us, latency_us)
    return choose_partition(two_layers(cost_us), only=name), Figure(
        latency_us=latency_us, source="given", interval_us=interval_us
    )


def test_every_single_backend_races_and_mixes_that_may_be_as_fast() -> None:
    tvm, slow = variant("tvm", 10.0), variant("products", 20.0)
    disturbed = variant("singles", 30.0, first_quartile_us=12.0)
    finalists = find_finalists({"searched": disturbed, "coarser": tvm}, [tvm, slow])
    assert [(count_parts(each.function).keys(), each.is_single) for each in finalists] == [
        ({"singles"}, False),
        ({"tvm"}, True),
        ({"products", "tvm"}, True),
    ]
    hopeless, late = variant("products", 21.0), variant("singles", 12.6)
    finalists = find_finalists({"searched": late}, [tvm, hopeless])
    assert [count_parts(each.function).keys() for each in finalists] == [{"tvm"}]


def test_a_tie_goes_to_the_simplest() -> None:
    def finalist(name: str, *, is_single: bool) -> Finalist:
        function, figure = variant(name, 10.0)
        return Finalist(function=function, figure=figure, is_single=is_single)

    mixed, single = finalist("products", is_single=False), finalist("singles", is_single=True)
    assert (mixed.num_backends, single.num_backends) == (2, 1)
    assert simplest([mixed, single]) is single
    two, one = finalist("products", is_single=True), finalist("singles", is_single=True)
    assert simplest([two, one]) is one
    # Two versions of one backend: a measured lead, however small, says more than the number of parts.
    other = finalist("tvm", is_single=True)
    assert simplest([other, one]) is other
    assert simplest([one, other]) is one


def test_of_those_left_the_fastest_comes_first() -> None:
    samples = tuple((base,) * 15 for base in (10.3, 10.0, 10.1))
    assert fastest_first(RaceResult(samples=samples, survivors=(1, 0, 2))) == [1, 2, 0]


def test_what_a_race_leaves_is_no_tie_with_what_was_clearly_faster_in_it() -> None:
    samples = tuple((base,) * 15 for base in (10.3, 10.0, 10.1))
    assert equally_fast(RaceResult(samples=samples, survivors=(1, 0, 2))) == [1, 2]

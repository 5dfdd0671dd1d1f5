"""Active pricing finds what full measurement finds, with fewer measurements, and says what it predicted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_physics import many_records, measured
from tvm import relax

from cost_model.dataset import load_dataset
from cost_model.kernel_training import train_kernel_model
from tests.samples.dataflow_samples import graph_of
from tests.samples.known_speed import keep_made_up_speed
from tests.samples.partition_samples import function_module
from tuner.graph import DataflowGraph, NodeSet, SubGraph
from tuner.graph.relax_types import NUM_INPUTS_ATTRIBUTE
from tuner.partition.candidate import CandidatePartition
from tuner.partition.find_partition import Partition, find_partition
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure
from tuner.pricing.active import _corrected, _estimates, _price_actively
from tuner.pricing.measured import workload_of_candidate
from tuner.pricing.protocol import Pricing, is_predicted
from tuner.tuning.session import SessionSettings, start_session

pytestmark = pytest.mark.tvm


def chain(length: int) -> DataflowGraph:
    return graph_of([(index - 1,) if index else () for index in range(length)])


def candidates_of(graph: DataflowGraph) -> list[CandidatePartition]:
    """Every run of up to three nodes, on two backends."""
    runs = [
        SubGraph.of(graph, NodeSet.of(range(first, last)))
        for first in range(len(graph))
        for last in range(first + 1, min(first + 4, len(graph) + 1))
    ]
    return [CandidatePartition(run, backend, "runs") for run in runs for backend in ("tvm", "blas")]


def predicted(truth_us: float, error: float, width: float) -> Figure:
    guess = truth_us * error
    return Figure(latency_us=guess, source="predicted", interval_us=(guess / width, guess * width))


def price_a_chain(
    length: int, seed: int, regret: float
) -> tuple[float, float, list[CandidatePartition], Sequence[Price]]:
    """Return the best cost, what active pricing found at true prices, what it measured, and its prices."""
    rng = random.Random(seed)
    graph = chain(length)
    candidates = candidates_of(graph)
    truth = [Figure(latency_us=rng.uniform(1, 100), source="measured") for _ in candidates]
    truth_of = dict(zip(candidates, truth, strict=True))
    estimates: list[Price] = [predicted(figure.latency_us, rng.uniform(0.7, 1.4), 1.5) for figure in truth]
    asked: list[CandidatePartition] = []

    def measure(wanted: Sequence[CandidatePartition]) -> list[Price]:
        asked.extend(wanted)
        return [truth_of[candidate] for candidate in wanted]

    def solve(offered: Sequence[CandidatePartition], prices: Sequence[Price]) -> Partition:
        return find_partition(graph, offered, prices, launch_penalty_us=0.5)

    prices = _price_actively(
        graph, candidates, estimates, measure, Pricing(mode="active", regret=regret), solve=solve
    )
    return solve(candidates, truth).cost_us, solve(candidates, prices).cost_us, asked, prices


@settings(max_examples=40, deadline=None)
@given(length=st.integers(2, 7), seed=st.integers(0, 10_000), regret=st.sampled_from([0.0, 0.05]))
def test_the_answer_is_measured_and_nothing_is_measured_twice(length: int, seed: int, regret: float) -> None:
    best_us, found_us, asked, prices = price_a_chain(length, seed, regret)
    assert not any(is_predicted(price) for price in prices)
    assert found_us >= best_us - 1e-6
    assert len(set(asked)) == len(asked)


def test_where_intervals_hold_the_regret_is_rarely_exceeded() -> None:
    runs = [price_a_chain(6, seed, 0.05) for seed in range(40)]
    regrets = [found_us / best_us - 1 for best_us, found_us, _, _ in runs]
    assert sum(regrets) / len(regrets) <= 0.05
    assert sum(regret <= 0.05 / 0.95 for regret in regrets) >= 36
    num_candidates = len(candidates_of(chain(6)))
    assert sum(len(asked) for _, _, asked, _ in runs) < 0.5 * num_candidates * len(runs)


def test_predictions_are_raised_by_what_the_measured_ones_took_longer() -> None:
    slow, other, failed = predicted(10, 1.0, 2.0), predicted(40, 1.0, 1.5), predicted(5, 1.0, 1.5)
    measured = Figure(latency_us=15, source="measured")
    known = Figure(latency_us=7, source="measured")
    estimates = [slow, slow, other, other, failed, known]
    prices = _corrected(estimates, [measured, measured, other, other, Invalid("failed"), known], [""] * 6)
    # Equal programs count once, and what was known from the start says nothing about predictions.
    assert prices[2] == predicted(60, 1.0, 1.5)
    assert prices[2] is prices[3]
    assert [prices[0], prices[5]] == [measured, known]
    assert _corrected([other, known], [other, known], ["", ""]) == [other, known]


def test_what_was_measured_of_a_new_backend_tells_of_it_alone() -> None:
    first, second, third = (Figure(latency_us=bound, source="predicted") for bound in (10, 20, 40))
    ours = predicted(7, 1.0, 1.5)
    measured = [Figure(latency_us=latency, source="measured") for latency in (2, 6)]
    prices = _corrected([first, second, third, ours], [*measured, third, ours], ["new", "new", "new", ""])
    # The measured ones took 0.2 and 0.3 of their estimates.
    assert isinstance(prices[2], Figure)
    assert prices[2].interval_us is not None
    assert prices[2].latency_us == pytest.approx(10)
    assert prices[2].interval_us == pytest.approx((8 / 1.25, 12 * 1.25))
    assert prices[3] is ours


def test_a_backend_that_the_model_does_not_know_is_tried() -> None:
    """It is the fastest by far, though by its estimates it is the slowest."""
    graph = chain(12)
    single = [SubGraph.of(graph, NodeSet.of([index])) for index in range(len(graph))]
    candidates = [CandidatePartition(run, backend, "single") for run in single for backend in ("tvm", "new")]
    truth_us = {"tvm": 20.0, "new": 12.0}
    asked: list[CandidatePartition] = []

    def measure(wanted: Sequence[CandidatePartition]) -> list[Price]:
        asked.extend(wanted)
        return [Figure(latency_us=truth_us[each.backend], source="measured") for each in wanted]

    def solve(offered: Sequence[CandidatePartition], prices: Sequence[Price]) -> Partition:
        return find_partition(graph, offered, prices, launch_penalty_us=0.5)

    estimates = [
        Figure(latency_us=100, source="predicted", interval_us=(10, 1000))
        if each.backend == "new"
        else predicted(20.0, 1.0, 1.2)
        for each in candidates
    ]
    prices = _price_actively(
        graph, candidates, estimates, measure, Pricing(mode="active"), solve=solve, unseen={"new"}
    )
    assert {part.backend for part in solve(candidates, prices).chosen} == {"new"}


@pytest.mark.parametrize("budget", [None, 3])
def test_what_is_out_of_range_is_measured_before_anything_is_decided(budget: int | None) -> None:
    graph = chain(4)
    candidates = candidates_of(graph)
    far = list(range(0, len(candidates), 3))
    asked: list[CandidatePartition] = []

    def measure(wanted: Sequence[CandidatePartition]) -> list[Price]:
        asked.extend(wanted)
        return [Figure(latency_us=5, source="measured") for _ in wanted]

    def solve(offered: Sequence[CandidatePartition], prices: Sequence[Price]) -> Partition:
        return find_partition(graph, offered, prices, launch_penalty_us=0.5)

    # As predicted, none of these is worth a look.
    estimates = [predicted(1e6 if index in far else 10.0, 1.0, 1.01) for index in range(len(candidates))]
    pricing = Pricing(mode="active", budget=budget)
    _price_actively(graph, candidates, estimates, measure, pricing, solve=solve, far=far)
    wanted = [candidates[index] for index in far]
    assert asked[: len(wanted[:budget])] == wanted[:budget]


def test_a_budget_ends_measuring_with_an_answer_that_is_measured() -> None:
    rng = random.Random(1)
    graph = chain(6)
    candidates = candidates_of(graph)
    truth_of = {candidate: rng.uniform(1, 100) for candidate in candidates}
    asked: list[CandidatePartition] = []

    def measure(wanted: Sequence[CandidatePartition]) -> list[Price]:
        asked.extend(wanted)
        return [Figure(latency_us=truth_of[candidate], source="measured") for candidate in wanted]

    def solve(offered: Sequence[CandidatePartition], prices: Sequence[Price]):
        return find_partition(graph, offered, prices, launch_penalty_us=0.5)

    prices = _price_actively(
        graph,
        candidates,
        [predicted(truth_of[candidate], 1.0, 3.0) for candidate in candidates],
        measure,
        Pricing(mode="active", budget=1),
        solve=solve,
    )
    assert {figure.source for figure in solve(candidates, prices).figures} == {"measured"}
    assert len(asked) < len(candidates) / 2


def test_a_program_with_bound_weights_is_priced_by_its_own_record(tmp_path: Path) -> None:
    url = str(tmp_path / "records.db")
    keep_made_up_speed(url)
    module = function_module([(16, 32), (32, 48)], lambda x, w: relax.op.matmul(x, w))
    module["main"] = module["main"].with_attr(NUM_INPUTS_ATTRIBUTE, 1)
    graph = DataflowGraph.from_function(module)
    candidate = CandidatePartition(SubGraph.of(graph, graph.all_indices), "blas", "product")
    model = train_kernel_model(load_dataset(many_records(40)), calibrated=False)
    with start_session(
        "cpu",
        SessionSettings(backend_names=("blas",), num_threads=1),
        records_url=url,
    ) as session:
        speed = session.pricing.device_speed(session.measurer)
        workload = workload_of_candidate(graph, candidate)
        kept = measured(workload, "blas", 5.0, 1).measurement
        for settings, latency_us in (("", 5.0), ("bound=1", 3.0)):
            before, far = _estimates(graph, [candidate], session.measurer, model, speed)
            assert "threads" in far[0]  # It was trained on two.
            assert [is_predicted(price) for price in before] == [True]
            record = msgspec.structs.replace(
                kept,
                settings=settings,
                samples_us=(latency_us,),
                environment=session.measurer.environment("blas"),
                target=session.measurer.target.text,
            )
            session.store.append(workload, record)
        (price,), far = _estimates(graph, [candidate], session.measurer, model, speed)
    assert isinstance(price, Figure)
    assert (price.source, price.latency_us) == ("measured", 3.0)
    assert far == {}

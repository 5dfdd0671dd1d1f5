"""Even cuts have the layers that repeat in equal parts, and are there where no balanced cut is found."""

from __future__ import annotations

import math

import msgspec
import pytest

from benchmarks.published.headline import ROWS
from benchmarks.published.layouts import cluster_of, layout_of, profile_of, simulate
from tessel.architectures.gpu_sheets import find_sheet
from tessel.planning.candidates import sweep
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.stage_costs import TableKey, layer_sums
from tessel.planning.cutting.even_cuts import even_cuts
from tessel.planning.cutting.run_prices import run_prices
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.sharding import Shares
from tessel.profiles import CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget

MIB = 2**20


def profile(num_blocks: int) -> Profile:
    """Return an embedding, equal blocks, and a norm and a head."""
    embedding, block, norm, head = (
        StageCosts(
            forward_us=each * 100.3,
            backward_us=each * 200.7,
            weight_bytes=each * 3 * MIB,
            saved_bytes=each * MIB,
            boundary_bytes=MIB,
        )
        for each in (1, 10, 2, 17)
    )
    costs = (embedding, *[block] * num_blocks, norm, head)
    names = tuple(Layer(f"layer{index}") for index in range(len(costs)))
    return Profile(
        name="gpt", layers=names, tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=costs),)
    )


@pytest.mark.parametrize(
    ("num_blocks", "num_stages", "sizes"),
    [
        (8, 4, [[3, 2, 2, 4], [2, 3, 3, 3]]),
        (6, 4, [[2, 2, 2, 3]]),
        (3, 4, [[2, 1, 1, 2], [1, 2, 1, 2]]),
        (4, 1, [[7]]),
    ],
)
def test_blocks_are_divided_evenly(num_blocks: int, num_stages: int, sizes: list[list[int]]) -> None:
    sums = layer_sums(profile(num_blocks), TableKey(1))
    prices = run_prices(sums, splits=False, shares=Shares(weights=1.0, trained=4.0))
    found = even_cuts(prices, num_stages)
    assert [
        [after - first for first, after in zip(cut.bounds, cut.bounds[1:], strict=False)] for cut in found
    ] == sizes


def test_they_are_tried_where_no_balanced_cut_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "chunked_cut", lambda *_: None)
    link = Link(bytes_per_s=25e9, latency_us=10)
    job = Job(cluster=Cluster(devices=4, hop=link, collective=link, memory_bytes=2**40), global_batch=8)
    options = PlanOptions(placements=("interleaved",), chunks=2, pipeline=4, what_if=False)
    found = find_plan(profile(14), job, options=options, budget=SearchBudget(work_limit=0.1))
    assert found.best.layout.chunks == 2
    (row,) = (each for each in found.baselines if each.name == "interleaved-2")
    assert row.fits


@pytest.mark.slow
def test_a_published_layout_is_matched_in_the_memory_that_it_takes() -> None:
    """Llama-3.1 405B on 512 H100 (MLPerf): no balanced cut of 64 stages fits in what its even one holds."""
    gpu, run = ROWS[1]
    sheet = find_sheet(gpu)
    published = simulate(run, sheet)
    memory_bytes = math.ceil(max(published.memory_bytes))
    costs = profile_of(run, sheet)
    job = Job(
        cluster=msgspec.structs.replace(cluster_of(run.devices, sheet), memory_bytes=memory_bytes),
        global_batch=run.global_batch,
        optimizer=OPTIMIZERS["adam-mixed"],
        sharding=run.sharding,
    )
    layout = layout_of(run, costs)
    options = PlanOptions(
        data_parallel=layout.data_parallel,
        pipeline=layout.pipeline,
        placements=("interleaved",),
        what_if=False,
    )
    found = find_plan(costs, job, options=options, budget=SearchBudget(work_limit=1))
    assert found.best.estimate.step_us <= published.step_us * (1 + 1e-9)

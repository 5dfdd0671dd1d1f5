"""Sharded training state against formulas written out by hand, and plans over what replicas divide."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tessel
from tessel.errors import UsageError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.find_plan import find_plan
from tessel.planning.find_sharded import find_sharded
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.sharding import SHARDINGS
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget
from tests.samples.plan_samples import random_profile, small_cluster

LINK = Link(bytes_per_s=1e9, latency_us=5.0)
ADAM = OPTIMIZERS["adam-mixed"]
WEIGHTS = (3_000, 7_000, 11_000, 2_000)
REPLICAS = 4


def profile() -> Profile:
    """Four layers; the second has as many frozen bytes as trained ones."""
    costs = tuple(
        StageCosts(
            forward_us=10.0 + index,
            backward_us=20.0 + index,
            backward_input_us=12.0,
            backward_weight_us=9.0,
            weight_bytes=size,
            trained_bytes=size // 2 if index == 1 else None,
            saved_bytes=100,
            boundary_bytes=10,
        )
        for index, size in enumerate(WEIGHTS)
    )
    layers = tuple(Layer(f"layer{index}") for index in range(len(costs)))
    return Profile(
        name="four", layers=layers, tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=costs),)
    )


def layout() -> Layout:
    return Layout(
        data_parallel=REPLICAS,
        pipeline=2,
        micro_batch=1,
        micro_batches=4,
        cuts=((0, 1), (2, 3)),
        split_backward=True,
    )


def job(sharding: str) -> Job:
    cluster = Cluster(devices=8, hop=LINK, collective=LINK)
    return Job(cluster=cluster, optimizer=ADAM, sharding=sharding)


def part_us(num_bytes: float) -> float:
    """A reduce-scatter or an all-gather: each replica sends three messages of a fourth."""
    return (REPLICAS - 1) * (5.0 + num_bytes / REPLICAS / 1e3)


HELD, TRAINED = (10_000, 13_000), (6_500, 13_000)
"""Bytes of weights of the two stages, and of these the trained ones."""


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        ("none", lambda held, trained, layer, own: held + trained * 8),
        ("optimizer", lambda held, trained, layer, own: held + trained * 2 + trained * 6 / 4),
        ("gradients", lambda held, trained, layer, own: held + trained * 8 / 4 + 2 * own),
        ("parameters", lambda held, trained, layer, own: held / 4 + trained * 8 / 4 + 2 * own + 2 * layer),
    ],
)
def test_memory_is_what_each_replica_keeps(sharding: str, expected) -> None:
    """Beside shares: a layer's whole gradient while it is computed, and two layers' gathered weights."""
    figures = stage_figures(profile(), layout(), job(sharding))
    by_hand = [
        expected(held, trained, layer, own)
        for held, trained, layer, own in zip(HELD, TRAINED, (7_000, 11_000), (3_500, 11_000), strict=True)
    ]
    assert figures.static_bytes == tuple(map(round, by_hand))


def test_an_all_reduce_becomes_a_scatter_before_and_a_gather_after_the_update() -> None:
    whole, divided = (stage_figures(profile(), layout(), job(each)) for each in ("none", "optimizer"))
    assert [each.us for each in divided.synchronisations] == pytest.approx(
        [part_us(2 * trained) for trained in TRAINED]
    )
    assert [each.us for each in whole.synchronisations] == pytest.approx(
        [2 * part_us(2 * trained) for trained in TRAINED]
    )
    assert divided.gather_us == pytest.approx([part_us(trained) for trained in TRAINED])
    assert whole.gather_us == (0.0, 0.0)
    assert np.array(divided.update_us) == pytest.approx(np.array(whole.update_us) / REPLICAS)


def test_collectives_of_each_micro_batch_count_as_far_as_they_are_longer() -> None:
    figures = stage_figures(profile(), layout(), job("parameters"))
    assert figures.synchronisations == ()
    assert figures.gather_us == (0.0, 0.0)
    forward = [max(10.0 + 11.0, part_us(HELD[0])), max(12.0 + 13.0, part_us(HELD[1]))]
    assert figures.forward_us == pytest.approx(forward)
    assert figures.backward_input_us == pytest.approx([max(24.0, part_us(held)) for held in HELD])
    assert figures.backward_weight_us == pytest.approx([max(18.0, part_us(2 * each)) for each in TRAINED])
    joint = [part_us(held) + part_us(2 * each) for held, each in zip(HELD, TRAINED, strict=True)]
    assert figures.backward_us is None or figures.backward_us == pytest.approx(
        np.maximum((41.0, 45.0), joint)
    )


def test_one_replica_divides_nothing() -> None:
    alone = msgspec.structs.replace(layout(), data_parallel=1)
    whole, *others = (stage_figures(profile(), alone, job(each)) for each in SHARDINGS)
    for other in others:
        assert other.static_bytes == whole.static_bytes
        assert other.update_us == whole.update_us
        assert other.forward_us == pytest.approx(whole.forward_us)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_an_open_sharding_is_no_slower_than_any(seed: int) -> None:
    """Each job is planned to the end; the bound holds for all of them."""
    model = random_profile(np.random.default_rng(seed), 4, has_update=seed == 1)
    cluster = small_cluster(4, memory_bytes=(60 + 20 * seed) << 20)
    jobs = [Job(cluster=cluster, global_batch=4, sharding=each) for each in SHARDINGS]
    options = PlanOptions(what_if=False)
    found = find_sharded(model, jobs, options=options, budget=SearchBudget(work_limit=4.0))
    alone = [find_plan(model, each, options=options, budget=SearchBudget(work_limit=1.0)) for each in jobs]
    assert found.best.estimate.step_us <= min(each.best.estimate.step_us for each in alone) * (1 + 1e-9)
    assert found.lower_bound_us <= min(each.lower_bound_us for each in alone) * (1 + 1e-9)
    assert found.job.sharding in SHARDINGS


def rows() -> list[dict[str, object]]:
    layer = {"forward_ms": 1.0, "backward_ms": 2.0, "weights_mib": 1000, "saved_mib": 10, "boundary_mib": 1}
    return [{"layer": f"block{number}", **layer} for number in range(8)]


def test_sharded_state_fits_where_whole_state_does_not(tmp_path: Path) -> None:
    asked = {
        "devices": 8,
        "global_batch": 32,
        "data_parallel": 4,
        "memory": "24GiB",
        "optimizer": "adam-mixed",
        "work": 0.5,
        "progress": False,
    }
    assert not tessel.plan(rows(), **asked).fits
    divided = tessel.plan(rows(), **asked, sharding="optimizer")
    assert divided.fits
    chosen = tessel.plan(rows(), **{**asked, "work": 2}, sharding="auto")
    assert chosen.step_ms <= divided.step_ms * (1 + 1e-9)
    assert "sharding" in str(divided.explain())
    chain = tessel.plan(rows(), **{**asked, "placement": "vshape", "pipeline": 2}, sharding="optimizer")
    assert chain.export("torch")
    options = chain.export("torchtitan", version="0.3.0", roles="Et*6L")["titan.py"]
    assert "'data_parallel_shard_degree': 4" in options
    loaded = tessel.load_plan(divided.save(tmp_path / "plan.json"))
    assert loaded.planned is not None
    assert dataclasses.asdict(loaded.planned.job)["sharding"] == "optimizer"
    whole = msgspec.structs.replace(loaded.planned, sharding="none")
    (tmp_path / "whole.json").write_bytes(whole.to_json())
    with pytest.raises(tessel.ScheduleError, match="static_bytes"):
        tessel.load_plan(tmp_path / "whole.json")  # its memory is not that of whole state
    with pytest.raises(UsageError, match="its pipelines divide no more than the optimizer's state"):
        tessel.plan(rows(), **asked, runtime="deepspeed", sharding="gradients")

"""Activations on the hosts: figures by hand, room by a simulation of the copies, and when a plan has them."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tessel.planning.cluster import Cluster, Link
from tessel.planning.costs.stage_figures import StageFigures, stage_figures
from tessel.planning.costs.training_step import build_step
from tessel.planning.find_sharded import find_sharded
from tessel.planning.job import BUFFERS, Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search import SearchBudget
from tests.samples.plan_samples import MIB, QUIET, random_profile, small_cluster

SAVED = (500, 700, 300, 2_000)
LINK = Link(bytes_per_s=1e9)

LAYOUT = Layout(data_parallel=1, pipeline=2, micro_batch=1, micro_batches=4, cuts=((0, 1), (2, 3)))


def profile() -> Profile:
    costs = tuple(
        StageCosts(
            forward_us=1.0,
            backward_us=2.0,
            backward_input_us=0.8,
            backward_weight_us=1.0,
            saved_bytes=size,
            saved_for_weight_bytes=size // 2,
            boundary_bytes=100,
        )
        for size in SAVED
    )
    layers = tuple(Layer(f"layer{index}") for index in range(len(costs)))
    return Profile(
        name="four", layers=layers, tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=costs),)
    )


def figures(layout: Layout, bytes_per_s: float, offload: str = "activations") -> StageFigures:
    host = Link(bytes_per_s=bytes_per_s)
    cluster = Cluster(devices=layout.devices, hop=LINK, collective=LINK, host=host)
    return stage_figures(profile(), layout, Job(cluster=cluster, optimizer=QUIET, offload=offload))


def test_blocks_take_their_copies_time_and_devices_have_room_for_three() -> None:
    """Of 1000 bytes a microsecond, stages of 1200 and 2300 bytes take 1.2 and 2.3 one way."""
    layout = msgspec.structs.replace(LAYOUT, split_backward=True)
    found = figures(layout, 1e9)
    assert found.forward_us == pytest.approx([2.0, 2.3])
    assert found.backward_us == pytest.approx([4.0, 4.0])
    assert found.backward_input_us == pytest.approx([1.6, 2.3])
    assert found.backward_weight_us == pytest.approx([2.0, 2.0])
    assert found.static_bytes == (3 * 1200, 3 * 2300)
    assert found.kept_bytes.tolist() == [0.0, 0.0]
    assert found.halved_bytes.tolist() == [600.0, 1150.0]
    # Layers that run again keep what they take: nothing, and 100 bytes each. Their backward takes 2 x 3.
    again = figures(msgspec.structs.replace(layout, recompute=(True, True)), 2e7)
    assert again.forward_us == pytest.approx([100 / 20, 200 / 20])
    assert again.backward_us == pytest.approx([6.0, 200 / 20])
    assert again.backward_input_us == pytest.approx([100 / 20, 200 / 20])
    assert again.static_bytes == (3 * 100 + 600, 3 * 200 + 1900)
    # Both stages of a folded pipeline are on one device: room for the larger.
    folded = msgspec.structs.replace(LAYOUT, pipeline=1, placement="zbv")
    assert figures(folded, 1e9).static_bytes == (3 * 2300,)


def test_over_a_free_link_blocks_are_those_that_hold_nothing() -> None:
    plain, free = (figures(LAYOUT, 1e30, offload) for offload in ("none", "activations"))
    assert plain.backward_us is not None
    assert free.backward_us is not None
    assert free.forward_us.tolist() == plain.forward_us.tolist()
    assert free.backward_us.tolist() == plain.backward_us.tolist()
    host = Link(bytes_per_s=1e30)
    cluster = Cluster(devices=2, hop=LINK, collective=LINK, host=host, memory_bytes=10**6)
    step = build_step(profile(), LAYOUT, Job(cluster=cluster, optimizer=QUIET, offload="activations"))
    assert {block.memory for block in step.placement.blocks} == {0}


@pytest.mark.parametrize("seed", range(20))
def test_three_buffers_hold_what_is_on_its_way(seed: int) -> None:
    """Copies leave as soon, and come as late, as the link allows, in any order of a device's blocks."""
    rng = np.random.default_rng(seed)
    saved = rng.integers(1, 50, size=rng.integers(1, 5)).astype(float)  # by stage; the link moves 1 a time
    stage = rng.integers(len(saved), size=40)
    is_forward = rng.random(40) < 0.5
    spans = saved[stage] * rng.choice([1.0, 1.0, 2.0], size=40)
    sizes = saved[stage]

    def on_its_way(order: slice, sent: np.ndarray) -> np.ndarray:
        """Return the bytes that still wait when each block begins and ends; shape (40, 2)."""
        waiting, found = 0.0, []
        for span, size, is_sent in zip(spans[order], sizes[order], sent[order], strict=True):
            begun = waiting
            waiting = max(0.0, waiting - span) + (size if is_sent else 0.0)
            found.append((begun, waiting))
        return np.array(found)[order]

    leave = on_its_way(slice(None), is_forward)
    come = on_its_way(slice(None, None, -1), ~is_forward)
    # At the ends of a block: it runs, the others leave, and what is needed later comes.
    held = np.stack([leave[:, 0] + sizes + come[:, 1], leave[:, 1] + come[:, 0]])
    assert held.max() <= BUFFERS * saved.max() + 1e-9
    if len(saved) == 1:
        assert held.max() > (BUFFERS - 1) * saved.max()


@pytest.mark.parametrize(("bytes_per_s", "expected"), [(1e11, "activations"), (1e6, "none")])
def test_a_plan_has_them_where_they_make_it_shorter(bytes_per_s: float, expected: str) -> None:
    cluster = small_cluster(4, memory_bytes=60 * MIB, host=Link(bytes_per_s=bytes_per_s))
    plain = Job(cluster=cluster, global_batch=8, optimizer=QUIET)
    options = PlanOptions(what_if=False, baselines=False, pipeline=4, recompute=False)
    found = {
        len(jobs): find_sharded(
            random_profile(np.random.default_rng(4), 4, has_update=False),
            jobs,
            options=options,
            budget=SearchBudget(work_limit=0.2),
        )
        for jobs in ([plain], [plain, replace(plain, offload="activations")])
    }
    assert found[2].job.offload == expected
    is_shorter = found[2].best.estimate.step_us < found[1].best.estimate.step_us
    assert is_shorter == (expected != "none")

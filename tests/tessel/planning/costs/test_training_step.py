"""A training step's estimate against a recomputation by hand that shares no code with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from tessel.errors import InfeasibleError, ScheduleError
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link, Optimizer
from tessel.planning.costs.stage_figures import stage_figures
from tessel.planning.costs.training_step import StepEstimate, build_step, estimate_step
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.runtime import DEEPSPEED, OVERLAPPED, RUNTIMES, Runtime
from tessel.profiles.profile import Branches, CostTable, Layer, Profile, StageCosts

ADAM = OPTIMIZERS["adam"]

FAST = Link(bytes_per_s=1e9, latency_us=3.0)
SLOW = Link(bytes_per_s=1e8, latency_us=20.0)

BLOCKING = Runtime(
    name="test",
    has_blocking_hops=True,
    buffered_bytes=2000,
    hop_overhead_us=7.0,
    splits_hops=True,
    bucket_bytes=5000,
    context_bytes=123_456,
    peak_factor=2.0,
    update_bytes_per_s=1e9,
)


def profile_of(costs: Sequence[StageCosts], *, tied: bool = False, tensor_parallel: int = 1) -> Profile:
    last = len(costs) - 1
    return Profile(
        name="model",
        layers=tuple(
            Layer(f"layer{index}", "embedding" if tied and index in (0, last) else "")
            for index in range(len(costs))
        ),
        tables=(CostTable(micro_batch=1, tensor_parallel=tensor_parallel, costs=tuple(costs)),),
    )


def estimate(
    profile: Profile,
    layout: Layout,
    cluster: Cluster,
    optimizer: Optimizer = ADAM,
    runtime: Runtime = OVERLAPPED,
) -> StepEstimate:
    step = build_step(profile, layout, Job(cluster=cluster, optimizer=optimizer, runtime=runtime))
    return estimate_step(step, ONE_F_ONE_B.build(step.placement, micro_batches=step.micro_batches))


@dataclass
class ByHand:
    """The same step, computed from the definitions: 1F1B event by event, in microseconds."""

    costs: Sequence[StageCosts]
    layout: Layout
    cluster: Cluster
    runtime: Runtime
    optimizer: Optimizer = ADAM
    tied: bool = False

    def stage(self, index: int) -> Sequence[StageCosts]:
        first, last = self.layout.cuts[index]
        return self.costs[first : last + 1]

    def hop(self, index: int) -> tuple[float, float]:
        """What the sender waits for, and the receiver, between a stage and the next."""
        whole = self.costs[self.layout.cuts[index][1]].boundary_bytes
        parts = self.layout.tensor_parallel if self.runtime.splits_hops else 1
        if not whole:
            return self.runtime.hop_overhead_us, self.runtime.hop_overhead_us
        sent = self.cluster.hop.latency_us + whole / parts / self.cluster.hop.bytes_per_s * 1e6
        node = self.cluster.intra_node or self.cluster.hop
        gathered = (parts - 1) * (node.latency_us + whole / parts / node.bytes_per_s * 1e6)
        received = self.runtime.hop_overhead_us + sent + gathered
        waits = sent if whole / parts > self.runtime.buffered_bytes else 0.0
        return self.runtime.hop_overhead_us + waits, received

    def span(self, index: int, *, backward: bool) -> float:
        us = sum(
            (cost.joint_backward_us or 0.0) if backward else cost.forward_us for cost in self.stage(index)
        )
        if backward and self.layout.recompute and self.layout.recompute[index]:
            us += sum(cost.forward_us for cost in self.stage(index))
        if self.runtime.has_blocking_hops:
            before, after = index > 0, index + 1 < self.layout.pipeline
            us += self.hop(index - 1)[0 if backward else 1] if before else 0.0
            us += self.hop(index)[1 if backward else 0] if after else 0.0
        return us

    def ends(self) -> list[float]:
        """When each stage's last backward ends."""
        count, total = self.layout.pipeline, self.layout.micro_batches
        queues = []
        for stage in range(count):
            warm_up = min(count - stage, total)
            order = [("f", number) for number in range(warm_up)]
            for number in range(total):
                order.append(("b", number))
                if number + warm_up < total:
                    order.append(("f", number + warm_up))
            queues.append(order)
        done: dict[tuple[str, int, int], float] = {}
        free = [0.0] * count
        while any(queues):
            for stage in range(count):
                while queues[stage]:
                    kind, number = queues[stage][0]
                    ready = self.ready(done, kind, stage, number)
                    if ready is None:
                        break
                    start = max(free[stage], ready)
                    free[stage] = start + self.span(stage, backward=kind == "b")
                    done[kind, stage, number] = free[stage]
                    queues[stage].pop(0)
        return free

    def ready(
        self, done: dict[tuple[str, int, int], float], kind: str, stage: int, number: int
    ) -> float | None:
        source = stage - 1 if kind == "f" else stage + 1
        found = [0.0] if kind == "f" else [done.get(("f", stage, number), math.nan)]
        if 0 <= source < self.layout.pipeline:
            lag = 0.0 if self.runtime.has_blocking_hops else self.hop(min(source, stage))[1]
            found.append(done.get((kind, source, number), math.nan) + lag)
        return None if any(map(math.isnan, found)) else max(found)

    def ring(self, devices: int, num_bytes: float) -> float:
        link = self.cluster.collective
        if devices == 1 or not num_bytes:
            return 0.0
        return 2 * (devices - 1) * (link.latency_us + num_bytes / devices / link.bytes_per_s * 1e6)

    def step_us(self) -> float:
        count = self.layout.pipeline
        finished = []
        weights = [sum(cost.weight_bytes for cost in self.stage(index)) for index in range(count)]
        for end, held in zip(self.ends(), weights, strict=True):
            finished.append(end + self.ring(self.layout.data_parallel, held * self.optimizer.gradient_ratio))
        shared = min(self.costs[0].weight_bytes, self.costs[-1].weight_bytes)
        if self.tied and count > 1 and shared:
            both = max(finished[0], finished[-1]) + self.ring(2, shared * self.optimizer.gradient_ratio)
            finished[0] = finished[-1] = both
        updates = [sum(cost.update_us or 0.0 for cost in self.stage(index)) for index in range(count)]
        if self.optimizer.name == "none":
            updates = [0.0] * count
        elif all(cost.update_us is None for cost in self.costs):
            moved = 2 + self.optimizer.gradient_ratio + 2 * self.optimizer.state_ratio
            updates = [held * moved / self.runtime.update_bytes_per_s * 1e6 for held in weights]
        if self.optimizer.name != "none":  # set to zero and looked through; read and written to be scaled
            passes = 2 if self.layout.data_parallel == 1 else 4
            for index in range(count):
                updates[index] += passes * sum(cost.gradient_pass_us for cost in self.stage(index))
        return max(end + update for end, update in zip(finished, updates, strict=True))

    def memory_bytes(self) -> list[float]:
        found = []
        for index in range(self.layout.pipeline):
            layers = self.stage(index)
            recomputes = bool(self.layout.recompute) and self.layout.recompute[index]
            inputs = [
                self.costs[place - 1].boundary_bytes if place else 0
                for place in range(self.layout.cuts[index][0], self.layout.cuts[index][1] + 1)
            ]
            kept = sum(
                min(cost.saved_bytes, taken) if recomputes else cost.saved_bytes
                for cost, taken in zip(layers, inputs, strict=True)
            )
            peak = max(
                cost.peak_bytes + (cost.saved_bytes - min(cost.saved_bytes, taken) if recomputes else 0)
                for cost, taken in zip(layers, inputs, strict=True)
            )
            weights = sum(cost.weight_bytes for cost in layers)
            if self.tied and self.layout.pipeline == 1:
                weights -= min(self.costs[0].weight_bytes, self.costs[-1].weight_bytes)
            in_flight = min(self.layout.pipeline - index, self.layout.micro_batches)
            found.append(
                self.runtime.context_bytes
                + weights * (1 + self.optimizer.gradient_ratio + self.optimizer.state_ratio)
                + min(weights * self.optimizer.gradient_ratio, self.runtime.bucket_bytes)
                + self.runtime.peak_factor * peak
                + in_flight * kept
            )
        return found


cost_of_layer = st.builds(
    StageCosts,
    forward_us=st.integers(1, 500).map(float),
    backward_us=st.integers(1, 900).map(float),
    update_us=st.integers(0, 30).map(float),
    gradient_pass_us=st.integers(0, 9).map(float),
    weight_bytes=st.integers(0, 50_000),
    saved_bytes=st.integers(0, 9_000),
    peak_bytes=st.integers(0, 9_000),
    boundary_bytes=st.integers(0, 9_000),
)


@st.composite
def cases(draw: st.DrawFn) -> ByHand:
    pipeline = draw(st.integers(1, 4))
    num_layers = draw(st.integers(pipeline, 7))
    bounds = sorted(
        draw(st.sets(st.integers(1, num_layers - 1), min_size=pipeline - 1, max_size=pipeline - 1))
        if pipeline > 1
        else []
    )
    costs = draw(st.lists(cost_of_layer, min_size=num_layers, max_size=num_layers))
    if draw(st.booleans()):
        costs = [msgspec.structs.replace(cost, update_us=None) for cost in costs]
    layout = Layout(
        data_parallel=draw(st.integers(1, 3)),
        pipeline=pipeline,
        tensor_parallel=draw(st.sampled_from([1, 2])),
        micro_batch=1,
        micro_batches=draw(st.integers(1, 6)),
        cuts=tuple(
            (first, after - 1) for first, after in zip([0, *bounds], [*bounds, num_layers], strict=True)
        ),
        recompute=tuple(draw(st.booleans()) for _ in range(pipeline)) if draw(st.booleans()) else (),
    )
    cluster = Cluster(
        devices=layout.devices,
        hop=draw(st.sampled_from([FAST, SLOW])),
        collective=draw(st.sampled_from([FAST, SLOW])),
        intra_node=draw(st.sampled_from([None, FAST])),
    )
    return ByHand(
        costs=costs,
        layout=layout,
        cluster=cluster,
        runtime=draw(st.sampled_from([OVERLAPPED, BLOCKING])),
        optimizer=draw(st.sampled_from([ADAM, OPTIMIZERS["adam-mixed"], OPTIMIZERS["none"]])),
        tied=num_layers > 1 and draw(st.booleans()),
    )


@settings(max_examples=80, deadline=None)
@given(cases())
def test_step_and_memory_are_what_the_definitions_give(case: ByHand) -> None:
    profile = profile_of(case.costs, tied=case.tied, tensor_parallel=case.layout.tensor_parallel)
    found = estimate(profile, case.layout, case.cluster, case.optimizer, case.runtime)
    wanted = case.step_us()
    # Blocks are rounded up to whole steps: at most one for each block and hop on the longest path.
    assert wanted - 1e-6 <= found.step_us <= wanted * 1.03 + 1e-6
    assert found.memory_bytes == pytest.approx(case.memory_bytes(), abs=case.layout.pipeline + 2)


def test_gradients_are_synchronised_beside_the_blocks_that_still_run() -> None:
    """Only the first stage's all-reduce is exposed: the last one's is over before the first stage ends."""
    cost = StageCosts(forward_us=100.0, backward_us=200.0, update_us=0.0, weight_bytes=1000)
    light = msgspec.structs.replace(cost, weight_bytes=0)
    layout = Layout(data_parallel=2, pipeline=2, micro_batch=1, micro_batches=1, cuts=((0, 0), (1, 1)))
    cluster = Cluster(devices=4, hop=FAST, collective=Link(bytes_per_s=1e7))
    last = estimate(profile_of([light, cost]), layout, cluster)
    first = estimate(profile_of([cost, light]), layout, cluster)
    assert last.step_us == pytest.approx(600, rel=2e-3)
    assert first.step_us == pytest.approx(700, rel=2e-3)
    assert last.synchronisation_us == first.synchronisation_us == pytest.approx(100)


@pytest.mark.parametrize(
    ("tensor_parallel", "bytes_per_s"), [(1, 4e9), (2, 2e9), (4, 1e9)], ids=["1", "2", "4"]
)
def test_a_ring_through_several_devices_of_a_node_has_all_of_their_links(
    tensor_parallel: int, bytes_per_s: float
) -> None:
    """Eight devices in nodes of four: a gradient group has 4, 2 or 1 of them in each node."""
    cost = StageCosts(forward_us=1.0, backward_us=1.0, weight_bytes=10**6)
    layout = Layout(
        data_parallel=8 // tensor_parallel,
        pipeline=1,
        tensor_parallel=tensor_parallel,
        micro_batch=1,
        micro_batches=1,
        cuts=((0, 0),),
    )
    cluster = Cluster(
        devices=8,
        hop=FAST,
        collective=Link(bytes_per_s=1e9),
        devices_per_node=4,
        intra_node=Link(bytes_per_s=1e12),
    )
    figures = stage_figures(
        profile_of([cost], tensor_parallel=tensor_parallel), layout, Job(cluster=cluster, optimizer=ADAM)
    )
    replicas = layout.data_parallel
    assert [sync.us for sync in figures.synchronisations] == pytest.approx(
        [2 * (replicas - 1) / replicas * 10**6 / bytes_per_s * 1e6]
    )


def test_a_table_that_a_branch_holds_whole_is_exchanged_whole_with_its_parts() -> None:
    whole = StageCosts(forward_us=1.0, backward_us=1.0, weight_bytes=2 * 10**6, boundary_bytes=10**6)
    part = msgspec.structs.replace(whole, weight_bytes=10**6)
    profile = Profile(
        name="towers",
        layers=(Layer("image"), Layer("words", "table"), Layer("head", "table")),
        tables=(
            CostTable(micro_batch=1, tensor_parallel=1, costs=(whole,) * 3),
            CostTable(micro_batch=1, tensor_parallel=2, costs=(part,) * 3),
        ),
        branches=Branches(1, 2),
    )
    layout = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=1,
        micro_batches=1,
        cuts=((0, 0), (1, 1), (2, 2)),
        placement="kshape",
        branch_devices=1,
    )
    cluster = Cluster(devices=2, hop=FAST, collective=Link(bytes_per_s=1e9))
    figures = stage_figures(profile, layout, Job(cluster=cluster, optimizer=ADAM))
    assert [tie.us for tie in figures.ties] == pytest.approx([2000.0])
    # The second device holds its part of the table once, though two of its stages do.
    copies = 1 + ADAM.gradient_ratio + ADAM.state_ratio
    assert figures.static_bytes == (int(3 * 10**6 * copies), int(2 * 10**6 * copies))


def test_a_slower_device_slows_its_stage_and_its_update() -> None:
    cost = StageCosts(forward_us=100.0, backward_us=200.0, update_us=10.0)
    layout = Layout(data_parallel=1, pipeline=2, micro_batch=1, micro_batches=1, cuts=((0, 0), (1, 1)))
    cluster = Cluster(devices=2, hop=FAST, collective=FAST, device_speed=(1.0, 0.5))
    figures = stage_figures(profile_of([cost, cost]), layout, Job(cluster=cluster, optimizer=ADAM))
    assert figures.forward_us.tolist() == [100.0, 200.0]
    assert figures.update_us == (10.0, 20.0)


def test_what_cannot_fit_is_refused_with_what_it_needs() -> None:
    cost = StageCosts(forward_us=1.0, backward_us=1.0, weight_bytes=1 << 30, saved_bytes=1 << 30)
    layout = Layout(data_parallel=1, pipeline=1, micro_batch=1, micro_batches=1, cuts=((0, 0),))
    cluster = Cluster(devices=1, hop=FAST, collective=FAST, memory_bytes=4 << 30)
    with pytest.raises(InfeasibleError, match=r"device 0 needs 5\.00 GiB .* the limit is 4\.00 GiB"):
        build_step(profile_of([cost]), layout, Job(cluster=cluster, optimizer=ADAM))


def test_runtimes_are_named_and_checked() -> None:
    assert RUNTIMES == {"overlapped": OVERLAPPED, "deepspeed": DEEPSPEED}
    with pytest.raises(ScheduleError, match="at least 0"):
        Runtime(name="impossible", hop_overhead_us=-1.0)
    with pytest.raises(ScheduleError, match="bandwidth"):
        Runtime(name="impossible", update_bytes_per_s=0.0)

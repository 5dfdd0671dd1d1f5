"""Context and expert parallelism, recipes of data types, and offload, against a list of who holds what."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import pytest

from tessel.errors import ScheduleError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.replicas import collective_link
from tessel.planning.costs.stage_figures import StageFigures, stage_figures
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.sharding import SHARDINGS
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts

MIB = 2**20
LINK = Link(bytes_per_s=1e9, latency_us=5.0)
ADAM = OPTIMIZERS["adam-mixed"]

DENSE, EXPERTS = (3 * MIB, 5 * MIB), (0, 24 * MIB)
"""Bytes of weights of the two layers: of all but experts, and of all experts together."""


def profile(expert: int, *, context: int = 1, update_us: float | None = None) -> Profile:
    costs = tuple(
        StageCosts(
            forward_us=1000.0,
            backward_us=2000.0,
            update_us=update_us,
            weight_bytes=dense + experts // expert,
            expert_bytes=experts // expert,
            saved_bytes=100,
            boundary_bytes=10,
        )
        for dense, experts in zip(DENSE, EXPERTS, strict=True)
    )
    table = CostTable(
        micro_batch=1, tensor_parallel=2, context_parallel=context, expert_parallel=expert, costs=costs
    )
    return Profile(name="two", layers=(Layer("first"), Layer("second")), tables=(table,))


def layout(data: int, context: int, expert: int) -> Layout:
    return Layout(
        data_parallel=data,
        pipeline=2,
        tensor_parallel=2,
        context_parallel=context,
        expert_parallel=expert,
        micro_batch=1,
        micro_batches=4,
        cuts=((0, 0), (1, 1)),
    )


def holders(data: int, context: int, expert: int, *, experts: bool) -> list[list[int]]:
    """Return the devices of the second position by what they hold: equal lists exchange with each other."""
    found = defaultdict(list)
    device = data * context * 2
    for replica in range(data):
        for part in range(context):
            for shard in range(2):
                own = (replica * context + part) % expert if experts else 0
                found[shard, own].append(device)
                device += 1
    return list(found.values())


def figures(data: int, context: int, expert: int, sharding: str, **job: object) -> StageFigures:
    cluster = Cluster(devices=data * context * 4, hop=LINK, collective=LINK, host=LINK)
    asked = Job(cluster=cluster, optimizer=ADAM, sharding=sharding, **job)  # type: ignore[arg-type]
    return stage_figures(profile(expert, context=context), layout(data, context, expert), asked)


def part_us(num_bytes: float, devices: int) -> float:
    """A reduce-scatter or an all-gather round a ring of so many devices."""
    return (devices - 1) * (5.0 + num_bytes / devices / 1e3) if num_bytes else 0.0


DEGREES = [(4, 1, 1), (2, 2, 1), (4, 1, 2), (2, 2, 4), (1, 4, 2), (4, 2, 4)]


@pytest.mark.parametrize(("data", "context", "expert"), DEGREES)
def test_experts_have_replicas_of_their_own(data: int, context: int, expert: int) -> None:
    rings = [
        {len(group) for group in holders(data, context, expert, experts=experts)} for experts in (False, True)
    ]
    ((dense,), (routed,)) = rings
    assert layout(data, context, expert).devices == data * context * 4
    assert layout(data, context, expert).global_batch == 4 * data
    own = EXPERTS[1] // expert
    by_sharding = {each: figures(data, context, expert, each) for each in SHARDINGS}
    held = {each: found.static_bytes[1] for each, found in by_sharding.items()}
    whole = DENSE[1] + own
    assert held["none"] == 9 * whole
    assert held["optimizer"] == pytest.approx(3 * whole + 6 * (DENSE[1] / dense + own / routed), abs=1)
    passing = DENSE[1] + (own if routed > 1 else 0)
    assert held["gradients"] == pytest.approx(
        whole + 8 * (DENSE[1] / dense + own / routed) + 2 * passing, abs=1
    )
    assert held["parameters"] == pytest.approx(
        9 * (DENSE[1] / dense + own / routed) + 2 * passing + 2 * passing, abs=1
    )
    apart = ((DENSE[1], dense), (own, routed)) if expert > 1 else ((whole, dense),)
    exchanged = sum(part_us(2 * size, count) for size, count in apart)
    assert by_sharding["none"].synchronisations[-1].us == pytest.approx(2 * exchanged)
    assert by_sharding["optimizer"].synchronisations[-1].us == pytest.approx(exchanged)
    gathered = sum(part_us(size, count) for size, count in apart)
    assert by_sharding["optimizer"].gather_us[1] == pytest.approx(gathered)
    moved = (2 + 2 + 12) * (DENSE[1] / dense + own / routed) / 1e6
    assert by_sharding["optimizer"].update_us[1] == pytest.approx(moved)
    hidden = by_sharding["parameters"]
    assert hidden.backward_us is not None
    assert hidden.forward_us[1] == pytest.approx(max(1000.0, gathered))
    assert hidden.backward_us[1] == pytest.approx(max(2000.0, gathered + exchanged))


@pytest.mark.parametrize("node", [4, 8])
def test_experts_exchange_over_the_links_that_their_devices_have(node: int) -> None:
    """16 devices a position, 8 a kind of weight: those of the same expert are far apart."""
    fast = Link(bytes_per_s=4e9)
    cluster = Cluster(devices=32, hop=LINK, collective=LINK, devices_per_node=node, intra_node=fast)
    for expert in (1, 2, 4):
        for experts in (False, True):
            group = holders(4, 2, expert, experts=experts)[0]
            counts: dict[int, int] = defaultdict(int)
            for device in group:
                counts[device // node] += 1
            link = collective_link(layout(4, 2, expert), cluster, (1,), experts=experts)
            assert link.bytes_per_s == min(1e9 * min(counts.values()), 4e9)


def test_a_measured_update_is_divided_by_the_bytes_that_are_updated() -> None:
    cluster = Cluster(devices=16, hop=LINK, collective=LINK)
    job = Job(cluster=cluster, optimizer=ADAM, sharding="optimizer")
    found = stage_figures(profile(2, update_us=100.0), layout(4, 1, 2), job)
    routed = (EXPERTS[1] // 2) / (DENSE[1] + EXPERTS[1] // 2)
    assert found.update_us == pytest.approx((100.0 / 4, 100.0 * ((1 - routed) / 4 + routed / 2)))


def test_experts_go_to_devices_of_data_and_context_parallelism() -> None:
    with pytest.raises(ScheduleError, match=r"degree 4 does not divide the 2 devices of data × context"):
        layout(2, 1, 4)
    with pytest.raises(ScheduleError, match="has degree or count 0"):
        layout(2, 0, 1)


@pytest.mark.parametrize(
    ("name", "whole", "divided"),
    [
        # Megatron Core's table: all on each device, and the part that its distributed optimizer divides.
        ("adam-mixed", 18, 12),
        ("adam-fp16", 20, 16),
        ("adam-bf16-gradients", 16, 12),
        ("adam-bf16-moments", 14, 8),
        ("adam-fp8-weights", 17, 12),
        ("adam-8bit", 6, 2),
        ("adam-fsdp", 16, 8),
    ],
)
def test_recipes_have_their_published_bytes(name: str, whole: float, divided: float) -> None:
    cluster = Cluster(devices=16, hop=LINK, collective=LINK)
    parameters = (DENSE[0] / 2, (DENSE[1] + EXPERTS[1]) / 2)  # of 16 bits in the table
    for sharding, left in (("none", whole), ("optimizer", whole - divided + divided / 4)):
        job = Job(cluster=cluster, optimizer=OPTIMIZERS[name], sharding=sharding)
        found = stage_figures(profile(1), layout(4, 1, 1), job).static_bytes
        assert found == pytest.approx([left * each for each in parameters])


def test_weights_of_32_bits_are_gathered_as_16() -> None:
    cluster = Cluster(devices=16, hop=LINK, collective=LINK)
    for name, ratio in (("adam-fsdp", 1.0), ("adam-fp8-weights", 0.5)):
        job = Job(cluster=cluster, optimizer=OPTIMIZERS[name], sharding="optimizer")
        found = stage_figures(profile(1), layout(4, 1, 1), job)
        assert found.gather_us[0] == pytest.approx(part_us(ratio * DENSE[0], 4))


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_state_on_the_hosts_costs_its_way_there_and_back(sharding: str) -> None:
    """Twelve bytes a parameter are 6 for each byte of weights, there and back at 1000 bytes a microsecond."""
    here, there = (figures(4, 1, 2, sharding, offload=each) for each in ("none", "optimizer"))
    own = EXPERTS[1] // 2
    dense, routed = (1, 1) if sharding == "none" else (4, 2)
    state = 6 * (DENSE[1] / dense + own / routed)
    assert here.static_bytes[1] - there.static_bytes[1] == pytest.approx(state, abs=1)
    assert there.update_us[1] - here.update_us[1] == pytest.approx(2 * state / 1e3)


def test_offload_needs_a_link_and_something_to_move() -> None:
    cluster = Cluster(devices=1, hop=LINK, collective=LINK)
    with pytest.raises(ScheduleError, match="no link to its hosts' memory"):
        Job(cluster=cluster, optimizer=ADAM, offload="optimizer")
    with pytest.raises(ScheduleError, match=r"offload is activations, .* no link to its hosts' memory"):
        Job(cluster=cluster, offload="activations")
    with pytest.raises(ScheduleError, match="no offload 'disk'; there are none, optimizer"):
        Job(cluster=cluster, optimizer=ADAM, offload="disk")
    assert not Job(cluster=cluster, optimizer=OPTIMIZERS["sgd"], offload="optimizer").offloads_state
    hosted = msgspec.structs.replace(cluster, host=LINK)
    assert Job(cluster=hosted, optimizer=ADAM, offload="optimizer").offloads_state

"""Small profiles and clusters to plan with, and a price of a layout that shares no code with the planner."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import msgspec
import numpy as np

from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.planning.cluster import Cluster, Link, Optimizer
from tessel.planning.layout import Layout
from tessel.profiles.profile import Branches, CostTable, Layer, Profile, ShardTable, StageCosts

MIB = 2**20

QUIET = Optimizer(name="quiet", gradient_ratio=0.0, state_ratio=3.0)
"""Nothing to synchronise and no update, so that a step is its pipeline's makespan."""


def random_profile(
    rng: np.random.Generator,
    num_layers: int,
    *,
    is_split: bool = False,
    is_tied: bool = False,
    micro_batches: tuple[int, ...] = (1,),
    has_update: bool = True,
    shards: tuple[int, ...] = (),
    tensor: tuple[int, ...] = (),
) -> Profile:
    """Return a profile of unequal layers.

    If asked for, the first and the last are also divided over `shards` devices, and all over `tensor`.
    """
    tables = []
    base = [[float(rng.integers(1, 9)) for _ in range(9)] for _ in range(num_layers)]
    for size in micro_batches:
        scale = size**0.9
        tables.append(
            CostTable(
                micro_batch=size,
                tensor_parallel=1,
                costs=tuple(
                    _cost(row, scale, size, is_split=is_split, has_update=has_update) for row in base
                ),
            )
        )
    ends = (0, num_layers - 1) if is_tied else ()
    layers = tuple(Layer(f"l{index}", tie="t" if index in ends else "") for index in range(num_layers))
    divided = tuple(
        ShardTable(
            micro_batch=table.micro_batch,
            shards=count,
            first=_divided(table.costs[0], count),
            last=_divided(table.costs[-1], count),
        )
        for table in tables
        for count in shards
    )
    tables += [
        CostTable(
            micro_batch=table.micro_batch,
            tensor_parallel=count,
            costs=tuple(_divided(cost, count) for cost in table.costs),
        )
        for table in tuple(tables)
        for count in tensor
    ]
    return Profile(name="random", layers=layers, tables=tuple(tables), shards=divided)


def with_experts(profile: Profile, degrees: tuple[tuple[int, int], ...]) -> Profile:
    """Return the profile whose inner layers have experts, at degrees of context and expert parallelism."""
    tables = tuple(_with_experts(table, each) for table in profile.tables for each in ((1, 1), *degrees))
    return msgspec.structs.replace(profile, tables=tables)


def _with_experts(table: CostTable, degrees: tuple[int, int]) -> CostTable:
    """Return the table of layers of which half of the weights are experts, of unequal shares."""
    context, expert = degrees
    costs = []
    for index, cost in enumerate(table.costs):
        routed = cost.weight_bytes * (1 + index % 3) // 4 if 0 < index < len(table.costs) - 1 else 0
        costs.append(
            msgspec.structs.replace(
                cost.with_times_scaled(1 / context + (0.1 if context * expert > 1 else 0.0)),
                weight_bytes=cost.weight_bytes - routed + routed // expert,
                expert_bytes=routed // expert,
                saved_bytes=cost.saved_bytes // context,
                boundary_bytes=cost.boundary_bytes // context,
            )
        )
    return CostTable(
        micro_batch=table.micro_batch,
        tensor_parallel=table.tensor_parallel,
        context_parallel=context,
        expert_parallel=expert,
        costs=tuple(costs),
    )


def branched(profile: Profile, branches: Branches) -> Profile:
    """Return the profile whose layers are two branches, the second of which relays what the first makes."""

    def relaying(costs: tuple[StageCosts, ...]) -> tuple[StageCosts, ...]:
        handed_on = costs[branches.second - 1].boundary_bytes
        return tuple(
            msgspec.structs.replace(
                cost, boundary_bytes=cost.boundary_bytes + handed_on, relayed_bytes=handed_on
            )
            if branches.second <= index < branches.joined
            else cost
            for index, cost in enumerate(costs)
        )

    tables = (msgspec.structs.replace(table, costs=relaying(table.costs)) for table in profile.tables)
    return msgspec.structs.replace(profile, tables=tuple(tables), branches=branches)


def _divided(cost: StageCosts, count: int) -> StageCosts:
    """Return what a shard costs: its part, and something for the collectives; boundaries stay whole."""

    def part(value: float | None) -> float | None:
        return None if value is None else value / count + 7.0

    return StageCosts(
        forward_us=cost.forward_us / count + 7.0,
        backward_us=part(cost.backward_us),
        backward_input_us=part(cost.backward_input_us),
        backward_weight_us=part(cost.backward_weight_us),
        update_us=None if cost.update_us is None else cost.update_us / count,
        weight_bytes=cost.weight_bytes // count,
        saved_bytes=cost.saved_bytes // count,
        peak_bytes=cost.peak_bytes // count,
        boundary_bytes=cost.boundary_bytes,
    )


def _cost(row: list[float], scale: float, size: int, *, is_split: bool, has_update: bool) -> StageCosts:
    f, b, i, w, weights, saved, peak, boundary, update = row
    return StageCosts(
        forward_us=100 * f * scale,
        backward_us=100 * (f + b) * scale,
        backward_input_us=100 * (f + i) / 2 * scale if is_split else None,
        backward_weight_us=100 * (b + w) / 2 * scale if is_split else None,
        update_us=10 * update if has_update else 0.0,
        weight_bytes=int(weights) * MIB,
        saved_bytes=int(saved) * MIB * size,
        peak_bytes=int(peak) * MIB // 8,
        boundary_bytes=int(boundary) * MIB // 16 * size,
    )


def small_cluster(devices: int, *, memory_bytes: int | None = None, **options: object) -> Cluster:
    """Return devices with links that show in a step."""
    link = Link(bytes_per_s=5e9, latency_us=20.0)
    return Cluster(devices=devices, hop=link, collective=link, memory_bytes=memory_bytes, **options)  # type: ignore[arg-type]


def every_layout(
    num_layers: int,
    devices: int,
    *,
    samples: int,
    recompute: bool,
    divides: bool = False,
    tensor: tuple[int, ...] = (),
    branches: Branches | None = None,
    has_own: bool = False,
) -> Iterator[Layout]:
    """Yield every layout with joint backwards of `samples` micro-batches of one sample on these devices.

    Args:
        num_layers: of the model.
        devices: of the cluster.
        samples: micro-batches.
        recompute: whether stages may recompute.
        divides: whether first and last layer may be divided over the devices of a pipeline.
        tensor: numbers of devices over which each layer may be divided.
        branches: where two branches stand, which may run side by side if what joins them may be divided so.
        has_own: whether each stage of a chain may be divided over another number of devices.
    """
    for stages in range(2, num_layers + 1) if has_own else ():
        for degrees in itertools.product((1, *tensor), repeat=stages):
            replicas, rest = divmod(devices, sum(degrees))
            if rest or not replicas or samples % replicas or len(set(degrees)) == 1:
                continue
            for inner in itertools.combinations(range(1, num_layers), stages - 1):
                for flags in itertools.product((False, True) if recompute else (False,), repeat=stages):
                    yield Layout(
                        data_parallel=replicas,
                        pipeline=stages,
                        tensor_parallel=max(degrees),
                        stage_tensor_parallel=degrees,
                        micro_batch=1,
                        micro_batches=samples // replicas,
                        cuts=tuple((a, b - 1) for a, b in itertools.pairwise((0, *inner, num_layers))),
                        recompute=flags if any(flags) else (),
                    )
    for width, pipeline in itertools.product((1, *tensor), range(1, devices + 1)):
        if devices % (width * pipeline) or samples % (devices // (width * pipeline)):
            continue
        replicas = devices // (width * pipeline)
        shapes = [("vshape", pipeline)]
        if pipeline > 1:
            shapes += [("xshape", pipeline)] if samples // replicas % 2 == 0 else []
            shapes += [("zbv", 2 * pipeline)]
            shapes += [("interleaved", chunks * pipeline) for chunks in range(2, num_layers // pipeline + 1)]
            if divides and width == 1 and pipeline + 2 <= num_layers:
                shapes += [("mshape", pipeline + 2)]
            if branches is not None and pipeline * width in tensor:
                shapes += [("kshape", pipeline + 1)]
        for placement, stages in shapes:
            for inner in itertools.combinations(range(1, num_layers), stages - 1):
                bounds = (0, *inner, num_layers)
                if placement == "mshape" and (bounds[1] > 1 or bounds[-2] < num_layers - 1):
                    continue
                first = 0
                if placement == "kshape" and branches is not None:
                    if branches.second not in bounds or bounds[-2] != branches.joined:
                        continue
                    first = bounds.index(branches.second)
                for flags in itertools.product((False, True) if recompute else (False,), repeat=stages):
                    yield Layout(
                        data_parallel=replicas,
                        pipeline=pipeline,
                        tensor_parallel=width,
                        micro_batch=1,
                        micro_batches=samples // replicas,
                        cuts=tuple((first, after - 1) for first, after in itertools.pairwise(bounds)),
                        placement=placement,  # type: ignore[arg-type]
                        recompute=flags if any(flags) else (),
                        branch_devices=first,
                    )


def hop_by_hand(num_bytes: int, source: int, target: int, cluster: Cluster) -> float:
    """Return microseconds of a tensor that is whole on each device of both ends, the longer way of the two.

    From few to many, each sender gives its receivers a part each, and these gather the others' in their node.
    """
    few, many = sorted((source, target))
    parts, node = -(-many // few), cluster.intra_node or cluster.hop
    us = parts * cluster.hop.latency_us + num_bytes / cluster.hop.bytes_per_s * 1e6
    return us + (parts - 1) * node.latency_us + num_bytes * (1 - few / many) / node.bytes_per_s * 1e6


def placed_by_hand(
    profile: Profile,
    layout: Layout,
    cluster: Cluster,
    optimizer: Optimizer,
    offloads: bool = False,
) -> tuple[Placement, tuple[int, ...] | None, float]:
    """Return blocks, room for activations and the length of a step, from the definitions, layer by layer.

    If it `offloads`, activations are on the hosts, and three stages' on the way there or back.
    """
    tables = {each.tensor_parallel: each.costs for each in profile.tables}
    costs, stages = list(tables[layout.tensor_parallel]), len(layout.cuts)
    degrees = layout.stage_tensor_parallel or (layout.tensor_parallel,) * stages
    if layout.stage_tensor_parallel:
        for stage, (first, last) in enumerate(layout.cuts):
            costs[first : last + 1] = tables[degrees[stage]][first : last + 1]
    chains = [[(layout.device_of(stage),) for stage in range(stages)]]
    if layout.placement == "xshape":
        chains.append([(layout.pipeline - 1 - device,) for (device,) in chains[0]])
    if layout.placement == "mshape":
        (divided,) = (each for each in profile.shards if each.shards == layout.pipeline)
        costs[0], costs[-1] = divided.first, divided.last
        every = tuple(range(layout.pipeline))
        chains = [[every, *((device,) for device in every), every]]
    taken = [0, *(cost.boundary_bytes for cost in costs[:-1])]
    if profile.branches is not None:
        second, joined = profile.branches.second, profile.branches.joined
        # A layer of the second branch keeps what it reads, not what it relays.
        taken[second + 1 : joined] = [
            size - costs[second - 1].boundary_bytes for size in taken[second + 1 : joined]
        ]
        taken[second] = 0
    following = {stage: stage + 1 for stage in range(stages - 1)}
    if layout.placement == "kshape":
        assert profile.branches is not None
        (whole,) = (
            each for each in profile.tables if each.tensor_parallel == layout.devices // layout.data_parallel
        )
        costs[joined:] = whole.costs[joined:]
        for index in range(second, joined):
            sent = costs[index].boundary_bytes - costs[second - 1].boundary_bytes
            costs[index] = msgspec.structs.replace(costs[index], boundary_bytes=sent, relayed_bytes=0)
        chains = [[*((device,) for device in range(stages - 1)), tuple(range(stages - 1))]]
        (last_of_first,) = (stage for stage, cut in enumerate(layout.cuts) if cut[1] == second - 1)
        following[last_of_first] = stages - 1
    busy, static = [0.0] * layout.pipeline, [0.0] * layout.pipeline
    running = [0.0] * layout.pipeline
    buffered = [0.0] * layout.pipeline
    held_ties: set[tuple[int, str]] = set()
    times, kept = [], []
    for stage, (first, last) in enumerate(layout.cuts):
        again = bool(layout.recompute) and layout.recompute[stage]
        forward = backward = keeps = 0.0
        for index in range(first, last + 1):
            cost = costs[index]
            forward += cost.forward_us
            backward += (cost.backward_us or 0.0) + (cost.forward_us if again else 0.0)
            keeps += min(cost.saved_bytes, taken[index]) if again else cost.saved_bytes
        if offloads:
            assert cluster.host is not None
            copy = keeps / cluster.host.bytes_per_s * 1e6
            forward, backward = max(forward, copy), max(backward, copy)
            for device in {device for chain in chains for device in chain[stage]}:
                buffered[device] = max(buffered[device], 3 * keeps)
            keeps = 0.0
        times.append((forward, backward))
        kept.append(keeps)
        for device in (device for chain in chains for device in chain[stage]):
            busy[device] += forward + backward
            for index in range(first, last + 1):
                cost, tie = costs[index], profile.layers[index].tie
                needs = cost.peak_bytes + (cost.saved_bytes if again else 0)
                running[device] = max(running[device], needs)
                if not tie or (device, tie) not in held_ties:
                    static[device] += cost.weight_bytes * (
                        1 + optimizer.gradient_ratio + optimizer.state_ratio
                    )
                if tie:
                    held_ties.add((device, tie))
    step_us = max(busy) / 4096
    blocks, edges = [], []
    for number, chain in enumerate(chains):
        for stage, group in enumerate(chain):
            forward, backward = (math.ceil(us / step_us - 1e-9) for us in times[stage])
            name = f"{number}.{stage}"
            units = int(kept[stage])
            blocks += [
                Block(name=f"f{name}", kind=BlockKind.FORWARD, devices=group, span=forward, memory=units),
                Block(name=f"b{name}", kind=BlockKind.BACKWARD, devices=group, span=backward, memory=-units),
            ]
            edges.append(Edge(f"f{name}", f"b{name}"))
            if stage in following:
                us, later = 0.0, following[stage]
                num_bytes = costs[layout.cuts[stage][1]].boundary_bytes
                if chain[later] != group and num_bytes:
                    us = hop_by_hand(num_bytes, degrees[stage], degrees[later], cluster)
                lag = math.ceil(us / step_us - 1e-9)
                edges += [
                    Edge(f"f{name}", f"f{number}.{later}", lag),
                    Edge(f"b{number}.{later}", f"b{name}", lag),
                ]
    rooms = None
    if cluster.memory_bytes is not None:
        limit = cluster.memory_bytes
        rooms = tuple(math.floor(limit - sum(each)) for each in zip(static, running, buffered, strict=True))
    placement = Placement(devices=layout.pipeline, blocks=tuple(blocks), edges=tuple(edges))
    return placement, rooms, step_us

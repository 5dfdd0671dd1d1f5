"""Build a pipeline from measured stages: placement in steps and bytes, searched schedule, plan.

Stages run on the devices that they were cut for: in order (a V: forward down, backward up), several chunks on
each, or, where one is divided into shards, on all of them at once, such as embedding and head of an m shape.
Real latencies become whole steps, rounded up, so that no schedule promises less than was measured; a hop
becomes the lag of an edge. Each stage's backward is a choice, joint or split into input and weight halves,
since splitting costs what it was measured to cost. Weights, gradients and optimizer state are static; what a
forward saves is held until the backward half that needs it starts. Under a memory limit, which stages
recompute is searched with the order (`tessel.tuned_model.recomputation`). Not modelled: contention between
hops, and memory that a block needs only while it runs, but for what a recomputing backward holds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from tessel.comparison import compare_schedules
from tessel.errors import InfeasibleError
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.plan import Plan
from tessel.search import SearchBudget, find_schedule
from tessel.tuned_model.recomputation import search_with_recomputation
from tuner.plan import Figure, ModelPlan, StagePlan

OPTIMIZER_STATES = {"none": 0, "sgd": 0, "momentum": 1, "adam": 2}
"""Tensors as large as the weights that an optimizer keeps beside weights and gradients."""

STEPS_IN_SHORTEST_BLOCK = 200
"""Rounding a block up to whole steps then costs at most half a percent."""


def build_plan(
    tuned: ModelPlan,
    *,
    micro_batches: int,
    memory_limit_bytes: int | None,
    optimizer: str = "sgd",
    budget: SearchBudget | None = None,
    time_limit_s: float | None = None,
    recompute: bool = True,
    seed: int = 0,
) -> Plan:
    """Place the stages, search the order of all blocks, and compare it with hand-written schedules.

    Args:
        tuned: stages with measured or predicted costs.
        micro_batches: micro-batches of one training step.
        memory_limit_bytes: memory of one device; None for no limit.
        optimizer: a key of `OPTIMIZER_STATES`; decides the static bytes when training.
        budget: what the schedule search may spend, and who is told of its progress; see `find_schedule`.
        time_limit_s: in place of a budget: seconds of the schedule search.
        recompute: whether stages may recompute where memory is limited.
        seed: seed of the schedule search.

    Raises:
        InfeasibleError: a stage cannot fit its device; names the device and what it needs.
    """
    step_us = choose_step_us(tuned.stages)
    budget = SearchBudget.of(budget, time_limit_s=time_limit_s)
    if memory_limit_bytes is None or not recompute:
        schedule = find_schedule(
            place_stages(tuned, step_us=step_us),
            micro_batches=micro_batches,
            memory=_activation_limits(tuned, optimizer, memory_limit_bytes),
            budget=budget,
            seed=seed,
        )
    else:
        limit = memory_limit_bytes
        tuned, schedule = search_with_recomputation(
            tuned,
            place=lambda stages: place_stages(stages, step_us=step_us),
            limits=lambda stages: _limits_of(stages, optimizer, limit),
            micro_batches=micro_batches,
            budget=budget,
            seed=seed,
        )
    static_bytes = _static_bytes_by_device(tuned, optimizer)
    comparison = compare_schedules(schedule, step_us=step_us, static_bytes=static_bytes)
    return Plan(
        **{name: getattr(tuned, name) for name in ModelPlan.__struct_fields__},
        step_us=step_us,
        memory_limit_bytes=memory_limit_bytes,
        static_bytes=static_bytes,
        optimizer=optimizer,
        placement=schedule.placement,
        schedule=schedule,
        comparison=comparison.rows,
    )


def choose_step_us(stages: Sequence[StagePlan]) -> float:
    """Return a step of 1, 2 or 5 times a power of ten microseconds, fine enough for the shortest block."""
    shortest = min(figure.latency_us for stage in stages for figure in _figures(stage))
    wanted = max(shortest / STEPS_IN_SHORTEST_BLOCK, 0.1)
    power = 10.0 ** math.floor(math.log10(wanted))
    return max(factor * power for factor in (1, 2, 5) if factor * power <= wanted * (1 + 1e-9))


def place_stages(tuned: ModelPlan, *, step_us: float) -> Placement:
    """Return the placement of the stages; those with shards hold every device.

    ```
    device 0   f0 . . b0            with choices, `b0` may instead run as `b0_input` and `b0_weight`
    device 1   . f1 b1 .

    device 0   f0 f1 . f3 b3 . b1 b0        stages 0 and 3 have shards
    device 1   f0 . f2 f3 b3 b2 . b0
    ```

    Args:
        tuned: the stages and their hop latencies.
        step_us: microseconds of a step; spans and lags are rounded up to whole steps.
    """
    lags = [math.ceil(latency / step_us) for latency in tuned.hop_latency_us]
    devices = devices_of(tuned)
    blocks: list[Block] = []
    choices: list[Choice] = []
    for index, stage in enumerate(tuned.stages):
        forward_us = stage.forward.latency_us
        blocks.append(
            _block(f"f{index}", BlockKind.FORWARD, devices[index], forward_us, step_us, stage.kept_bytes)
        )
        if not tuned.training:
            blocks[-1] = msgspec.structs.replace(blocks[-1], memory=0)
            continue
        backward, choice = _backward_blocks(index, devices[index], stage, step_us)
        blocks += backward
        choices += choice
    return Placement(
        devices=1 + max(max(each) for each in devices),
        blocks=tuple(blocks),
        edges=tuple(_edges(tuned, {block.name for block in blocks}, lags)),
        choices=tuple(choices),
    )


def devices_of(tuned: ModelPlan) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each stage: those that it was cut for, or else as `devices_of_stages` says.

    Raises:
        ValueError: they are not those of its shards, or a device is left out.
    """
    devices = tuned.stage_devices or devices_of_stages(tuned.stages)
    used = {device for each in devices for device in each}
    counts = [1 if stage.shards is None else stage.shards.num_shards for stage in tuned.stages]
    if [len(each) for each in devices] != counts or used != set(range(len(used))):
        raise ValueError(
            f"the stages lie on devices {devices}, which are not one for each shard or leave a device out; "
            "tune the model again"
        )
    return devices


def devices_of_stages(stages: Sequence[StagePlan]) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each stage: the next one by itself, or all of them for a stage with shards.

    Raises:
        ValueError: a stage has more or fewer shards than there are other stages, one for each device.
    """
    alone = [stage for stage in stages if stage.shards is None]
    every = tuple(range(len(alone)))
    for stage in stages:
        if stage.shards is not None and stage.shards.num_shards != len(every):
            raise ValueError(
                f"{stage.name} has {stage.shards.num_shards} shards, and the stages without fill "
                f"{len(every)} devices; tune the model again"
            )
    following = iter(every)
    return tuple((next(following),) if stage.shards is None else every for stage in stages)


def block_of_function(function: str) -> str:
    """Return the block that runs a stage's function: `b1_input` for `stage1.backward_input`."""
    stage, _, kind = function.partition(".")
    index = stage.removeprefix("stage")
    if kind == "forward":
        return f"f{index}"
    return f"b{index}{kind.removeprefix('backward')}"


def _figures(stage: StagePlan) -> list[Figure]:
    figures = (stage.forward, stage.backward, stage.backward_input, stage.backward_weight)
    return [figure for figure in figures if figure is not None]


def _block(
    name: str,
    kind: BlockKind,
    devices: tuple[int, ...],
    latency_us: float,
    step_us: float,
    memory: int,
) -> Block:
    span = math.ceil(latency_us / step_us)
    return Block(name=name, kind=kind, devices=devices, span=span, memory=memory)


def _backward_blocks(
    index: int, devices: tuple[int, ...], stage: StagePlan, step_us: float
) -> tuple[list[Block], list[Choice]]:
    """Return a stage's backward, joint and in halves; one that recomputes has its forward before either."""
    blocks, choices = [], []
    again_us = stage.forward.latency_us if stage.recomputes else 0.0

    def add(name: str, kind: BlockKind, latency_us: float, memory: int) -> None:
        blocks.append(_block(name, kind, devices, latency_us, step_us, memory))

    if stage.backward is not None:
        add(f"b{index}", BlockKind.BACKWARD, again_us + stage.backward.latency_us, -stage.kept_bytes)
    if stage.backward_input is not None and stage.backward_weight is not None:
        halves = (f"b{index}_input", f"b{index}_weight")
        held = stage.saved_for_weight_bytes
        input_us = again_us + stage.backward_input.latency_us
        add(halves[0], BlockKind.BACKWARD_INPUT, input_us, held - stage.kept_bytes)
        add(halves[1], BlockKind.BACKWARD_WEIGHT, stage.backward_weight.latency_us, -held)
        choices.append(Choice(f"b{index}", ((f"b{index}",), halves)))
    return blocks, choices


def _edges(tuned: ModelPlan, names: set[str], lags: Sequence[int]) -> list[Edge]:
    """Return forward edges down, backward edges up (from either form to either form), and B before W.

    Copies of the pipeline have nothing to do with one another.
    """
    num_stages = len(tuned.stages)
    after: list[list[int]] = [[] for _ in range(num_stages)]
    for stage, earlier in enumerate(tuned.before):
        for source in earlier:
            after[source].append(stage)
    edges = [Edge(f"f{i}", f"f{later}", lags[i]) for i in range(num_stages) for later in after[i]]
    for index in range(num_stages):
        starts = [name for name in (f"b{index}", f"b{index}_input") if name in names]
        edges += [Edge(f"f{index}", name) for name in starts]
        if f"b{index}_weight" in names:
            edges.append(Edge(f"b{index}_input", f"b{index}_weight"))
        for later in after[index]:
            above = [name for name in (f"b{later}", f"b{later}_input") if name in names]
            edges += [Edge(source, target, lags[index]) for source in above for target in starts]
    return edges


def _static_bytes_by_device(tuned: ModelPlan, optimizer: str) -> tuple[int, ...]:
    """Sum what each device holds throughout, of all its stages.

    With what the one recomputing backward that holds most has beyond what its stage keeps, and what is made
    of weights that stay as they are.
    """
    copies = 2 + OPTIMIZER_STATES[optimizer] if tuned.training else 1
    weights = weight_bytes_by_device(tuned)
    recomputed, bound = [0] * len(weights), [0] * len(weights)
    for stage, own in zip(tuned.stages, devices_of(tuned), strict=True):
        for device in own:
            bound[device] += stage.bound_bytes
            if stage.recomputes:
                recomputed[device] = max(recomputed[device], stage.saved_bytes - stage.kept_bytes)
    return tuple(copies * own + sum(more) for own, *more in zip(weights, recomputed, bound, strict=True))


def weight_bytes_by_device(tuned: ModelPlan) -> tuple[int, ...]:
    """Return the bytes of weights of each device; a tied tensor counts once on each."""
    devices = devices_of(tuned)
    weights = [0] * (1 + max(max(each) for each in devices))
    for stage, own in zip(tuned.stages, devices, strict=True):
        for device in own:
            weights[device] += stage.weight_bytes
    for group, num_bytes in zip(tuned.tied, tuned.tied_bytes, strict=bool(tuned.tied_bytes)):
        holders = Counter(device for member in group for device in devices[member.stage])
        for device, times in holders.items():
            weights[device] -= (times - 1) * num_bytes
    return tuple(weights)


def _activation_limits(
    tuned: ModelPlan, optimizer: str, memory_limit_bytes: int | None
) -> tuple[int, ...] | None:
    return None if memory_limit_bytes is None else _limits_of(tuned, optimizer, memory_limit_bytes)


def _limits_of(tuned: ModelPlan, optimizer: str, memory_limit_bytes: int) -> tuple[int, ...]:
    """Return the bytes that each device has left for what micro-batches keep.

    Raises:
        InfeasibleError: a device cannot hold one micro-batch of its stages.
    """
    static_bytes = _static_bytes_by_device(tuned, optimizer)
    by_device: dict[int, list[StagePlan]] = {}
    for stage, own in zip(tuned.stages, devices_of(tuned), strict=True):
        for device in own:
            by_device.setdefault(device, []).append(stage)
    for device, stages in sorted(by_device.items()):
        needed = static_bytes[device] + sum(stage.kept_bytes for stage in stages)
        if needed > memory_limit_bytes:
            names = " + ".join(stage.name for stage in stages)
            raise InfeasibleError(
                f"device {device} needs {needed / 2**30:.2f} GiB for {names} and one micro-batch in "
                f"flight, the limit is {memory_limit_bytes / 2**30:.2f} GiB; add devices or raise --memory"
            )
    return tuple(memory_limit_bytes - static for static in static_bytes)

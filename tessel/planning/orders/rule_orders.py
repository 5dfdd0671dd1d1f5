"""Orders of hand-written schedules, kept apart from spans, so that thousands of cuts are timed in them.

What 1F1B runs after what depends on the number of stages and micro-batches alone. A `RuleOrder` is that
order once, as arrays in an order in which every task follows those it waits for; `time_order` then walks over
the tasks with the spans of one layout and says when each stage ends and what each device holds at most.
O(tasks), some nanoseconds each. Beside the published schedules there are 1F1B and ZB-H1 with at most K
micro-batches in flight, for tight memory. Checked in tests/tessel/planning/orders/test_rule_orders.py against
the schedules of `tessel.handwritten`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.handwritten.chimera import CHIMERA
from tessel.handwritten.construction.rule import StreamRule, Streams
from tessel.handwritten.construction.stages import read_pipeline
from tessel.handwritten.dualpipe_v import DUALPIPE_V
from tessel.handwritten.gpipe import GPIPE
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B
from tessel.handwritten.looped_bfs import LOOPED_BFS
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B, one_f_one_b
from tessel.handwritten.zero_bubble.zb_h1 import ZB_H1, zero_bubble
from tessel.handwritten.zero_bubble.zb_h2 import ZB_H2
from tessel.handwritten.zero_bubble.zb_v import ZB_V
from tessel.instruction import Backward, BackwardInput, BackwardWeight, Forward, Instruction
from tessel.placement import Placement
from tessel.placement_builder import PlacementBuilder
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import StepEstimate, TrainingStep, estimate_ends, whole_steps
from tessel.planning.layout import Layout
from tessel.schedule import Schedule
from tessel.search.jit.compiled import compiled

IntArray = npt.NDArray[np.int64]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(4)
"""Forms of a block; block `form · stages + stage`."""

OPERATIONS_A_TASK = 25
"""Charged for each task that is timed."""

OPERATIONS_A_LAYOUT = 400_000
"""Charged for pricing the stages of one layout and ending its step."""

OPERATIONS_A_NEW_TASK = 4_000
"""Charged for each task of an order that is made for the first time."""


@dataclass(frozen=True, slots=True)
class OrderKey:
    """What an order depends on.

    Attributes:
        rule: name of the rule; `1f1b<K` and `zb-h1<K` are those with at most K in flight.
        stage_devices: device of each stage of a chain.
        num_chains: 2 for an `xshape`, of which `stage_devices` is the way down.
        micro_batches: of the placement.
        is_joint: whether stages have a joint backward.
        is_split: whether stages have the halves of one.
    """

    rule: str
    stage_devices: tuple[int, ...]
    num_chains: int
    micro_batches: int
    is_joint: bool
    is_split: bool

    @property
    def has_backward(self) -> bool:
        """Whether it is trained."""
        return self.is_joint or self.is_split


class RuleOrder(NamedTuple):
    """One order of all tasks; all int64, shape (num_tasks,), each task after those it waits for.

    Attributes:
        block: block of each task.
        micro_batch: micro-batch of each task.
        device: device of each task.
        source: place of the task of the neighbouring stage that it waits for, or -1.
        hop: hop between the two stages; 0 where there is none.
    """

    block: IntArray
    micro_batch: IntArray
    device: IntArray
    source: IntArray
    hop: IntArray

    @property
    def num_tasks(self) -> int:
        """Blocks of all micro-batches."""
        return len(self.block)


# The rule takes pipeline and micro-batches, the last number is the limit of those in flight.
_Streams = Callable[[Placement, int, int], Streams]


def _published(rule: StreamRule) -> _Streams:
    return lambda placement, micro_batches, _: rule.streams(read_pipeline(placement), micro_batches)


def _limited_1f1b(placement: Placement, micro_batches: int, in_flight: int) -> Streams:
    num_stages = placement.devices
    return [
        one_f_one_b(stage, warm_up=min(num_stages - stage, in_flight), micro_batches=micro_batches)
        for stage in range(num_stages)
    ]


def _limited_zb_h1(placement: Placement, micro_batches: int, in_flight: int) -> Streams:
    num_stages = placement.devices
    return [
        zero_bubble(
            stage,
            warm_up=min(num_stages - stage, in_flight),
            weight_delay=max(0, min(stage, in_flight - min(num_stages - stage, in_flight))),
            micro_batches=micro_batches,
        )
        for stage in range(num_stages)
    ]


def _forwards(placement: Placement, micro_batches: int, _: int) -> Streams:
    """All forwards in turn, for inference; chunks of a device in groups of as many as there are devices."""
    pipeline = read_pipeline(placement)
    group = placement.devices
    return pipeline.on_devices(
        [
            [
                Forward(stage, micro_batch)
                for first in range(0, micro_batches, group)
                for stage in own
                for micro_batch in range(first, min(first + group, micro_batches))
            ]
            for own in _own_in_order(pipeline.chain_devices() or ())
        ]
    )


def _own_in_order(devices: Sequence[int]) -> Iterable[list[int]]:
    for device in dict.fromkeys(devices):
        yield [stage for stage, other in enumerate(devices) if other == device]


_RULES: dict[str, _Streams] = {
    **{
        rule.name: _published(rule)
        for rule in (
            GPIPE,
            ONE_F_ONE_B,
            ZB_H1,
            ZB_H2,
            INTERLEAVED_1F1B,
            LOOPED_BFS,
            ZB_V,
            DUALPIPE_V,
            CHIMERA,
        )
    },
    "1f1b<": _limited_1f1b,
    "zb-h1<": _limited_zb_h1,
    "forwards": _forwards,
}

MAX_TASKS_OF_EVERY_RULE = 20_000
"""Tasks above which rules that are rarely the best are left out: writing one down takes long."""

_RARELY_BEST = ("gpipe", "zb-h2", "looped-bfs")

_BY_PLACEMENT = {
    "vshape": ("1f1b", "zb-h1", "zb-h2", "gpipe"),
    "interleaved": ("interleaved", "looped-bfs"),
    "zbv": ("zb-v", "dualpipe-v"),
    "xshape": ("chimera",),
    "custom": (),
}


def rules_of(
    layout: Layout, *, has_backward: bool, is_split: bool, in_flight: Sequence[int] = ()
) -> tuple[str, ...]:
    """Return the names of the rules that apply to a layout.

    Args:
        layout: degrees and placement; the cuts do not matter.
        has_backward: whether it is trained.
        is_split: whether its backwards may run in halves.
        in_flight: limits of micro-batches in flight for which 1F1B is wanted.
    """
    if not has_backward:
        return ("forwards",) if layout.placement in ("vshape", "interleaved", "zbv") else ()
    found = [name for name in _BY_PLACEMENT[layout.placement] if _applies(name, layout, is_split)]
    if 2 * len(layout.cuts) * layout.micro_batches > MAX_TASKS_OF_EVERY_RULE:
        found = [name for name in found if name not in _RARELY_BEST] or found
    if layout.placement == "vshape":
        for limit in in_flight:
            if limit < min(layout.pipeline, layout.micro_batches):
                found += [f"1f1b<{limit}", *([f"zb-h1<{limit}"] if is_split else [])]
    return tuple(found)


def _applies(rule: str, layout: Layout, is_split: bool) -> bool:
    if rule in ("zb-h1", "zb-h2", "zb-v"):
        return is_split and (rule != "zb-v" or layout.chunks == 2)
    if rule in ("interleaved", "looped-bfs"):
        return layout.micro_batches % layout.pipeline == 0
    if rule == "dualpipe-v":
        return layout.chunks == 2 and layout.micro_batches >= 2 * layout.pipeline
    if rule == "chimera":
        return layout.pipeline % 2 == 0
    return True


def order_key(rule: str, layout: Layout, figures: StageFigures) -> OrderKey:
    """Return what the order of a rule depends on for this layout."""
    num_chains = len(figures.chains)
    return OrderKey(
        rule=rule,
        stage_devices=figures.devices[: len(layout.cuts)],
        num_chains=num_chains,
        micro_batches=layout.micro_batches // num_chains,
        is_joint=figures.backward_us is not None,
        is_split=figures.backward_input_us is not None,
    )


# Large orders take tens of megabytes; a plan returns to the same few again and again.
@lru_cache(maxsize=48)
def rule_order(key: OrderKey) -> RuleOrder:
    """Return an order, each task after those it waits for; some microseconds a task.

    Raises:
        ValueError: the rule's order dead-locks, which no rule's does where it applies.
    """
    name, _, limit = key.rule.partition("<")
    streams = _RULES[f"{name}<" if limit else name]
    placement = _skeleton(key.stage_devices, key.num_chains, key.is_joint, key.is_split)
    ends, tasks = _tasks(key, streams(placement, key.micro_batches, int(limit or 0)))
    sequence = np.full(len(tasks), -1, dtype=np.int64)
    source = np.full(len(tasks), -1, dtype=np.int64)
    num_stages = len(key.stage_devices) * key.num_chains
    count = _sequence(tasks, ends, num_stages, len(key.stage_devices), key.micro_batches, sequence, source)
    if count < len(tasks):
        raise ValueError(f"the order of {key.rule} dead-locks on {key.stage_devices}")
    block = tasks // key.micro_batches
    stage, form = block % num_stages, block // num_stages
    device = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    hop = np.where(form == FORWARD, stage - 1, stage)
    return RuleOrder(
        block=block[sequence],
        micro_batch=(tasks % key.micro_batches)[sequence],
        device=device[sequence],
        source=source,
        hop=np.where(source >= 0, hop[sequence], 0),
    )


# Rules and numbers of micro-batches share it.
@lru_cache(maxsize=64)
def _skeleton(stage_devices: tuple[int, ...], num_chains: int, is_joint: bool, is_split: bool) -> Placement:
    """Return a placement of this form, for the rules to read."""
    num_devices = max(stage_devices) + 1
    builder = PlacementBuilder(
        num_devices,
        {"split_backward": is_split} if is_joint or is_split else {"infer": True},
    )
    chains = [stage_devices, tuple(num_devices - 1 - device for device in stage_devices)]
    for chain in chains[:num_chains]:
        builder.link([builder.stage(device) for device in chain])
    return builder.placement()


def _tasks(key: OrderKey, streams: Streams) -> tuple[IntArray, IntArray]:
    """Return where each device's tasks begin, and all tasks as `block · micro_batches + micro_batch`."""
    num_stages = len(key.stage_devices) * key.num_chains
    by_device = [
        [
            (form * num_stages + instruction.stage) * key.micro_batches + instruction.micro_batch
            for instruction in stream
            for form in _forms(instruction, key)
        ]
        for stream in streams
    ]
    ends = np.cumsum([0, *map(len, by_device)])
    return ends, np.array([task for tasks in by_device for task in tasks], dtype=np.int64)


def _forms(instruction: Instruction, key: OrderKey) -> Iterator[int]:
    match instruction:
        case Forward():
            yield FORWARD
        case Backward() if key.is_joint:
            yield BACKWARD
        case Backward():
            yield BACKWARD_INPUT
            yield BACKWARD_WEIGHT
        case BackwardInput():
            yield BACKWARD_INPUT if key.is_split else BACKWARD
        case BackwardWeight() if key.is_split:
            yield BACKWARD_WEIGHT


@compiled
def _sequence(
    tasks: IntArray,
    ends: IntArray,
    num_stages: int,
    chain_length: int,
    micro_batches: int,
    sequence: IntArray,
    source: IntArray,
) -> int:
    """Write places of `tasks` in a topological order, and each one's source as a place of that order.

    Returns how many tasks are not stuck.
    """
    place_of = np.full(4 * num_stages * micro_batches, -1, dtype=np.int64)
    following = ends[:-1].copy()
    count = 0
    is_moving = True
    while is_moving:
        is_moving = False
        for device in range(len(following)):
            while following[device] < ends[device + 1]:
                task = tasks[following[device]]
                block, micro_batch = task // micro_batches, task % micro_batches
                form, stage = block // num_stages, block % num_stages
                found, own = -1, -1
                needs_neighbour, needs_own = False, form > 0
                if form == 0 and stage % chain_length > 0:
                    needs_neighbour = True
                    found = place_of[(block - 1) * micro_batches + micro_batch]
                elif form == 1 or form == 2:
                    own = place_of[stage * micro_batches + micro_batch]
                    if stage % chain_length < chain_length - 1:
                        needs_neighbour = True
                        # The next stage ran its backward in one of two ways.
                        found = max(
                            place_of[(num_stages + stage + 1) * micro_batches + micro_batch],
                            place_of[(2 * num_stages + stage + 1) * micro_batches + micro_batch],
                        )
                elif form == 3:
                    own = place_of[(2 * num_stages + stage) * micro_batches + micro_batch]
                if (needs_neighbour and found < 0) or (needs_own and own < 0):
                    break
                source[count] = found
                sequence[count] = following[device]
                place_of[task] = count
                count += 1
                following[device] += 1
                is_moving = True
    return count


@dataclass(frozen=True, slots=True)
class TimedOrder:
    """A layout in the order of a rule.

    Attributes:
        rule: its name.
        estimate: of the step.
    """

    rule: str
    estimate: StepEstimate


def time_rule(rule: str, layout: Layout, figures: StageFigures, step_us: float) -> TimedOrder:
    """Return what a step takes in the order of a rule, spans rounded up to whole steps."""
    key = order_key(rule, layout, figures)
    order = rule_order(key)
    ends, peaks = time_order(order, figures, step_us)
    return TimedOrder(
        rule,
        estimate_ends(
            figures,
            stage_ends_us=(ends * step_us).tolist(),
            activation_bytes=peaks.tolist(),
            micro_batches=key.micro_batches,
        ),
    )


def time_order(order: RuleOrder, figures: StageFigures, step_us: float) -> tuple[IntArray, IntArray]:
    """Return the end of each stage's last block in steps, and the most bytes that each device holds."""
    ends, peaks, _ = _timed(order, figures, step_us)
    return ends, peaks


def in_flight_by_stage(rule: str, layout: Layout, figures: StageFigures) -> tuple[float, ...]:
    """Return micro-batches that each stage of the chain holds at once in the order of a rule.

    Of several stages on a device each gets the same part of what the device holds at most.
    """
    order = rule_order(order_key(rule, layout, figures))
    num_stages = len(figures.devices)
    ones = np.ones(num_stages, dtype=np.int64)
    work = np.stack((np.ones(4 * num_stages, dtype=np.int64), np.concatenate([ones, -ones, 0 * ones, -ones])))
    peaks = np.zeros(len(figures.static_bytes), dtype=np.int64)
    end = np.zeros(order.num_tasks, dtype=np.int64)
    _time(order, work, np.zeros(num_stages, dtype=np.int64), 0 * ones, peaks, end)
    chunks = np.bincount(np.array(figures.devices))
    return tuple((peaks / chunks)[np.array(figures.devices[: len(layout.cuts)])].tolist())


def schedule_in_order(rule: str, step: TrainingStep) -> Schedule:
    """Return the schedule of a step in the order of a rule; it may exceed the limits."""
    key = order_key(rule, step.layout, step.figures)
    order = rule_order(key)
    _, _, end = _timed(order, step.figures, step.step_us)
    start = end - _spans(step.figures, step.step_us)[order.block]
    num_stages = len(step.figures.devices)
    index = [
        step.placement.index_by_name.get(name.format(stage), -1)
        for name in ("f{}", "b{}", "b{}_input", "b{}_weight")
        for stage in range(num_stages)
    ]
    tasks = zip(order.block.tolist(), order.micro_batch.tolist(), start.tolist(), strict=True)
    return Schedule.of(
        step.placement,
        {(index[block], micro_batch): when for block, micro_batch, when in tasks},
        micro_batches=key.micro_batches,
        memory=step.limits,
        found_by=rule,
    )


def _timed(order: RuleOrder, figures: StageFigures, step_us: float) -> tuple[IntArray, IntArray, IntArray]:
    ends = np.zeros(len(figures.devices), dtype=np.int64)
    peaks = np.zeros(len(figures.static_bytes), dtype=np.int64)
    end = np.zeros(order.num_tasks, dtype=np.int64)
    lags = whole_steps(figures.hop_us, step_us) if len(figures.hop_us) else np.zeros(1, dtype=np.int64)
    work = np.stack((_spans(figures, step_us), _memory(figures)))
    _time(order, work, lags, ends, peaks, end)
    return ends, peaks, end


def _spans(figures: StageFigures, step_us: float) -> IntArray:
    nothing = np.zeros(len(figures.devices))
    every = (
        figures.forward_us,
        figures.backward_us,
        figures.backward_input_us,
        figures.backward_weight_us,
    )
    return whole_steps(np.concatenate([nothing if us is None else us for us in every]), step_us)


def _memory(figures: StageFigures) -> IntArray:
    kept = np.ceil(figures.kept_bytes).astype(np.int64) * figures.has_backward
    extra = np.ceil(figures.extra_bytes).astype(np.int64)
    return np.concatenate([kept, -kept, extra, -kept - extra])


@compiled
def _time(
    order: RuleOrder, work: IntArray, lag: IntArray, ends: IntArray, peaks: IntArray, end: IntArray
) -> None:
    """Write the last end of each stage, the peak of each device, and the end of each task.

    Args:
        order: the tasks.
        work: spans and memory by block, shape (2, 4 · num_stages).
        lag: steps by hop.
        ends: by stage; zeros.
        peaks: by device; zeros.
        end: by task; overwritten.
    """
    num_stages = len(ends)
    free = np.zeros(len(peaks), dtype=np.int64)
    held = np.zeros(len(peaks), dtype=np.int64)
    for place in range(len(end)):
        task, here = order.block[place], order.device[place]
        start = free[here]
        if order.source[place] >= 0:
            start = max(start, end[order.source[place]] + lag[order.hop[place]])
        end[place] = start + work[0, task]
        free[here] = end[place]
        held[here] += work[1, task]
        peaks[here] = max(peaks[here], held[here])
        stage = task % num_stages
        ends[stage] = max(ends[stage], end[place])

"""The order of a hand-written schedule, kept apart from spans.

What 1F1B runs after what depends on the number of stages and micro-batches alone. A `RuleOrder` is that
order once, as arrays in an order in which every task follows those it waits for. Checked in
tests/tessel/planning/orders/test_rule_orders.py against the schedules of `tessel.handwritten`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessel.handwritten.construction.columns import Columns
from tessel.handwritten.construction.rule import Streams
from tessel.instruction import Backward, BackwardInput, BackwardWeight, Forward, Instruction
from tessel.placement import Placement
from tessel.placement_builder import PlacementBuilder
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.layout import Layout
from tessel.planning.orders.rules import STREAMS_OF_RULE
from tessel.search.jit.compiled import compiled

IntArray = npt.NDArray[np.int64]

FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(4)
"""Forms of a block; block `form · stages + stage`."""


APART, FORWARD_FIRST, BACKWARD_FIRST = range(3)
PAIRINGS = (FORWARD_FIRST, BACKWARD_FIRST, APART)
"""Which neighbours run together: none, a forward and what follows it, a backward and what does."""


@dataclass(frozen=True, slots=True)
class OrderKey:
    """What an order depends on.

    Attributes:
        rule: name of the rule; `1f1b<K` and `zb-h1<K` are those with at most K in flight.
        stage_devices: device of each stage of a chain.
        num_chains: 2 for an `xshape`, of which `stage_devices` is the way down.
        is_joint: whether stages have a joint backward.
        is_split: whether stages have the halves of one.
        pairing: which neighbours run together: one of `PAIRINGS`.
    """

    rule: str
    stage_devices: tuple[int, ...]
    num_chains: int
    micro_batches: int
    is_joint: bool
    is_split: bool
    pairing: int = APART

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
        joined: bool, whether a task runs together with the next one.
    """

    block: IntArray
    micro_batch: IntArray
    device: IntArray
    source: IntArray
    hop: IntArray
    joined: npt.NDArray[np.bool_]

    @property
    def num_tasks(self) -> int:
        """Blocks of all micro-batches."""
        return len(self.block)


def order_key(rule: str, layout: Layout, figures: StageFigures, pairing: int = APART) -> OrderKey:
    """Return what the order of a rule depends on for this layout, with neighbours that run together."""
    num_chains = len(figures.chains)
    return OrderKey(
        rule=rule,
        stage_devices=figures.devices[: len(layout.cuts)],
        num_chains=num_chains,
        micro_batches=layout.micro_batches // num_chains,
        is_joint=figures.backward_us is not None,
        is_split=figures.backward_input_us is not None,
        pairing=pairing,
    )


# Large orders take tens of megabytes; a plan returns to the same few again and again.
@lru_cache(maxsize=48)
def rule_order(key: OrderKey) -> RuleOrder:
    """Return an order, each task after those it waits for; some microseconds a task.

    Raises:
        ValueError: the rule's order deadlocks, which no rule's does where it applies.
    """
    name, _, limit = key.rule.partition("<")
    streams = STREAMS_OF_RULE[f"{name}<" if limit else name]
    placement = _skeleton(key.stage_devices, key.num_chains, key.is_joint, key.is_split)
    ends, tasks = _tasks(key, streams(placement, key.micro_batches, int(limit or 0)))
    sequence = np.full(len(tasks), -1, dtype=np.int64)
    source = np.full(len(tasks), -1, dtype=np.int64)
    num_stages = len(key.stage_devices) * key.num_chains
    together = _together(tasks, ends, num_stages, key.micro_batches, key.pairing)
    joined = np.zeros(len(tasks), dtype=np.bool_)
    sizes = num_stages, len(key.stage_devices), key.micro_batches
    count = _sequence(tasks, ends, together, sizes, sequence, source, joined)
    if count < len(tasks):
        raise ValueError(f"the order of {key.rule} deadlocks on {key.stage_devices}")
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
        joined=joined,
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
    by_device = []
    for columns in map(Columns.of, streams):
        forms = np.array([_forms(kind, key) for kind in columns.kinds], dtype=np.int64).reshape(-1, 2)
        each = forms[columns.kind]
        tasks = (each * num_stages + columns.stage[:, None]) * key.micro_batches + columns.micro_batch[
            :, None
        ]
        by_device.append(tasks[each >= 0])
    ends = np.cumsum([0, *map(len, by_device)])
    return ends, np.concatenate([np.empty(0, dtype=np.int64), *by_device])


def _forms(kind: type[Instruction], key: OrderKey) -> tuple[int, int]:
    """Return the forms that a kind of instruction takes here, one after the other; -1 for none."""
    if kind is Forward:
        return FORWARD, -1
    if kind is Backward:
        return (BACKWARD, -1) if key.is_joint else (BACKWARD_INPUT, BACKWARD_WEIGHT)
    if kind is BackwardInput:
        return (BACKWARD_INPUT if key.is_split else BACKWARD), -1
    if kind is BackwardWeight and key.is_split:
        return BACKWARD_WEIGHT, -1
    return -1, -1


@compiled
def _together(
    tasks: IntArray, ends: IntArray, num_stages: int, micro_batches: int, pairing: int
) -> npt.NDArray[np.bool_]:
    """Return which tasks run together with the next one of their device, each with one at most."""
    found = np.zeros(len(tasks), dtype=np.bool_)
    for device in range(len(ends) - 1):
        place = ends[device]
        while pairing and place < ends[device + 1] - 1:
            one, other = tasks[place], tasks[place + 1]
            forms = one // micro_batches // num_stages, other // micro_batches // num_stages
            wanted = (0, 1) if pairing == 1 else (1, 0)
            if forms == wanted and one % micro_batches != other % micro_batches:
                found[place] = True
                place += 1
            place += 1
    return found


@compiled
def _source(
    task: int, num_stages: int, chain_length: int, micro_batches: int, place_of: IntArray
) -> tuple[bool, int]:
    """Return whether all that a task waits for has a place, and the place of its source, or -1."""
    block, micro_batch = task // micro_batches, task % micro_batches
    form, stage = block // num_stages, block % num_stages
    found = -1
    if form == 0 and stage % chain_length > 0:
        found = place_of[(block - 1) * micro_batches + micro_batch]
        return found >= 0, found
    if form == 1 or form == 2:
        if stage % chain_length < chain_length - 1:
            # The next stage ran its backward in one of two ways.
            found = max(
                place_of[(num_stages + stage + 1) * micro_batches + micro_batch],
                place_of[(2 * num_stages + stage + 1) * micro_batches + micro_batch],
            )
            if found < 0:
                return False, found
        return place_of[stage * micro_batches + micro_batch] >= 0, found
    if form == 3:
        return place_of[(2 * num_stages + stage) * micro_batches + micro_batch] >= 0, found
    return True, found


@compiled
def _sequence(
    tasks: IntArray,
    ends: IntArray,
    together: npt.NDArray[np.bool_],
    sizes: tuple[int, int, int],
    sequence: IntArray,
    source: IntArray,
    joined: npt.NDArray[np.bool_],
) -> int:
    """Write places of `tasks` in a topological order, and each one's source as a place of that order.

    Sizes are stages, those of a chain, and micro-batches. Pairs that would wait for themselves come apart.
    Returns how many tasks are not stuck.
    """
    num_stages, chain_length, micro_batches = sizes
    place_of = np.full(4 * num_stages * micro_batches, -1, dtype=np.int64)
    following = ends[:-1].copy()
    count = 0
    is_moving = True
    while is_moving:
        is_moving = False
        for device in range(len(following)):
            while following[device] < ends[device + 1]:
                first = following[device]
                size = 2 if together[first] else 1
                is_ready = True
                for place in range(first, first + size):
                    own_ready, found = _source(
                        tasks[place], num_stages, chain_length, micro_batches, place_of
                    )
                    is_ready = is_ready and own_ready
                    source[count + place - first] = found
                if not is_ready:
                    break
                joined[count] = size == 2
                for place in range(first, first + size):
                    sequence[count] = place
                    place_of[tasks[place]] = count
                    count += 1
                following[device] += size
                is_moving = True
        for device in range(len(following)):
            first = following[device]
            if not is_moving and first < ends[device + 1] and together[first]:
                is_ready, _ = _source(tasks[first], num_stages, chain_length, micro_batches, place_of)
                together[first] = not is_ready
                is_moving = is_ready
    return count

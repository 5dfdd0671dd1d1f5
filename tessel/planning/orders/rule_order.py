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
        ValueError: the rule's order deadlocks, which no rule's does where it applies.
    """
    name, _, limit = key.rule.partition("<")
    streams = STREAMS_OF_RULE[f"{name}<" if limit else name]
    placement = _skeleton(key.stage_devices, key.num_chains, key.is_joint, key.is_split)
    ends, tasks = _tasks(key, streams(placement, key.micro_batches, int(limit or 0)))
    sequence = np.full(len(tasks), -1, dtype=np.int64)
    source = np.full(len(tasks), -1, dtype=np.int64)
    num_stages = len(key.stage_devices) * key.num_chains
    count = _sequence(tasks, ends, num_stages, len(key.stage_devices), key.micro_batches, sequence, source)
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

"""Run one rank's actions: wait for its inputs, run it, send its results.

Tensors travel point to point over torch.distributed (`tessel.engine.ranks.transport`), so any valid order
works. A stage on several ranks (a tensor-parallel block) runs on each of them; a rank that holds both ends of
an edge passes tensors locally, otherwise the source's first rank sends. Of a stage that several follow, the
gradients that come back of one tensor are added, in the order of the stages. On a GPU the host waits for the
device before and after each action: its times are then the device's, and a rank that hangs is seen in the
action that does it; the price is one launch latency per action. Not modelled: overlap of sending and
computing on a device; on a CPU both take cores. Checked in tests/tessel/engine/ranks/test_executor.py.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from tessel.engine.actions import EXPECTED_AHEAD, Action, ActionKind, RankActions, input_half
from tessel.engine.errors import EngineError
from tessel.engine.job import MAX_TENSORS, Event
from tessel.engine.program import StageProgram, Tensors, UnequalProgram, routes_of
from tessel.engine.ranks.progress import Progress
from tessel.engine.ranks.transport import Handover, HandoverKey, Transport, synchronize
from tuner.plan import TensorInfo


class Step(NamedTuple):
    """One rank's part of a step.

    Attributes:
        actions: what it runs, in order.
        own: the same, to look up.
        arrivals: what each other rank sends here, in the order in which that rank makes it.
        taken: stages and micro-batches that gradients come back for, on any rank. A stage that no trained
            weight comes before, or is in, has no backward, and nothing is sent to it.
    """

    actions: tuple[Action, ...]
    own: frozenset[Action]
    arrivals: dict[int, tuple[Handover, ...]]
    taken: frozenset[tuple[int, int]]


class _Arrival(NamedTuple):
    """What an action waits for, and the rank that sends it; this one where it is handed over locally."""

    handover: Handover
    source: int


class Executor:
    """Runs the actions of one rank.

    Args:
        ranks_by_stage: the ranks of each stage, ascending.
        programs: the stages that this rank holds, by number.
        progress: told what the rank is doing.
        device: where the programs compute.

    Raises:
        EngineError: more tensors cross a boundary than transfers can be distinguished.
    """

    def __init__(
        self,
        rank: int,
        ranks_by_stage: Sequence[Sequence[int]],
        programs: Mapping[int, StageProgram],
        progress: Progress,
        device: torch.device,
    ) -> None:
        for stage, program in programs.items():
            if max(len(program.received), len(program.sent)) > MAX_TENSORS:
                raise EngineError(
                    f"stage {stage} receives {len(program.received)} tensors and sends {len(program.sent)}, "
                    f"but at most {MAX_TENSORS} may cross a boundary; cut the model elsewhere"
                )
        self._rank = rank
        self._progress = progress
        self._device = device
        self._ranks_by_stage = [tuple(ranks) for ranks in ranks_by_stage]
        self._programs = dict(programs)
        self._routes = {stage: routes_of(program, stage) for stage, program in programs.items()}
        self._local: dict[HandoverKey, Tensors] = {}

    def prepare(self, orders: RankActions) -> Step:
        """Return this rank's part of a step, given every rank's actions."""
        own = frozenset(orders[self._rank])
        found: dict[int, list[tuple[int, Handover]]] = defaultdict(list)
        positions = [{action: position for position, action in enumerate(order)} for order in orders]
        for action in orders[self._rank]:
            for arrival in self._incoming(action, own):
                if arrival.source == self._rank:
                    continue
                made_at = next(
                    positions[arrival.source][made]
                    for made in _makers(arrival.handover)
                    if made in positions[arrival.source]
                )
                found[arrival.source].append((made_at, arrival.handover))
        arrivals = {
            source: tuple(handover for _, handover in sorted(handovers, key=_sending_order))
            for source, handovers in found.items()
        }
        backward = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        taken = frozenset(
            (action.stage, action.micro_batch)
            for order in orders
            for action in order
            if action.kind in backward
        )
        return Step(tuple(orders[self._rank]), own, arrivals, taken)

    def run_step(self, step: Step, num_micro_batches: int, transport: Transport) -> list[Event]:
        """Run one training step's actions in order, and wait until all that was sent has left."""
        self._local.clear()
        for program in self._programs.values():
            program.start_step(num_micro_batches)
        transport.start_step(step.arrivals)
        arrivals = [self._incoming(action, step.own) for action in step.actions]
        events = []
        for position, action in enumerate(step.actions):
            for expected in arrivals[position : position + EXPECTED_AHEAD]:
                for ahead in expected:
                    if ahead.source != self._rank:
                        transport.expect(ahead.handover, ahead.source)
            ready_s = time.perf_counter()
            self._progress.wait(f"waiting for what {action} needs")
            given = self._take(arrivals[position], transport)
            self._progress.work(f"running {action}")
            start_s = time.perf_counter()
            made = self._programs[action.stage].run(action, given)
            synchronize(self._device)
            end_s = time.perf_counter()
            self._hand_on(action, made, step.taken, transport)
            events.append(Event(action=str(action), ready_s=ready_s, start_s=start_s, end_s=end_s))
        self._progress.wait("waiting for others to take what it sent")
        transport.finish()
        return events

    def _incoming(self, action: Action, own: frozenset[Action]) -> tuple[_Arrival, ...]:
        routes = self._routes[action.stage]
        is_gradient = action.kind is not ActionKind.FORWARD
        if action.kind is ActionKind.BACKWARD_WEIGHT and input_half(action) in own:
            return ()  # Its input half took the gradients before.
        arrivals = []
        program = self._programs[action.stage]
        for origin, tensors in sorted(
            (routes.received_gradients if is_gradient else routes.received).items()
        ):
            sources = self._ranks_by_stage[origin]
            arrivals.append(
                _Arrival(
                    Handover(
                        action.stage,
                        action.micro_batch,
                        is_gradient,
                        origin,
                        _in_micro_batch(program, tensors, action.micro_batch),
                    ),
                    self._rank if self._rank in sources else sources[0],
                )
            )
        return tuple(arrivals)

    def _outgoing(self, action: Action, taken: frozenset[tuple[int, int]]) -> tuple[Handover, ...]:
        routes = self._routes[action.stage]
        if action.kind is ActionKind.BACKWARD_WEIGHT:
            return ()
        is_gradient = action.kind is not ActionKind.FORWARD
        targets = routes.sent_gradients if is_gradient else routes.sent
        return tuple(
            Handover(stage, action.micro_batch, is_gradient, action.stage, tensors)
            for stage, tensors in sorted(targets.items())
            if not is_gradient or (stage, action.micro_batch) in taken
        )

    def _take(self, arrivals: Sequence[_Arrival], transport: Transport) -> Tensors:
        taken: Tensors = {}
        for arrival in arrivals:
            for name, tensor in self._take_one(arrival, transport).items():
                taken[name] = taken[name] + tensor if name in taken else tensor
        return taken

    def _take_one(self, arrival: _Arrival, transport: Transport) -> Tensors:
        if arrival.source == self._rank:
            return self._local.pop(arrival.handover.key)
        given = transport.receive(arrival.handover, arrival.source)
        synchronize(self._device)
        return given

    def _hand_on(
        self, action: Action, made: Tensors, taken: frozenset[tuple[int, int]], transport: Transport
    ) -> None:
        mine = self._ranks_by_stage[action.stage]
        for handover in self._outgoing(action, taken):
            for peer in self._ranks_by_stage[handover.stage]:
                if peer == self._rank:
                    self._local[handover.key] = {info.name: made[info.name] for info in handover.tensors}
                elif peer not in mine and self._rank == mine[0]:
                    transport.send(handover, made, peer)


def _in_micro_batch(
    program: StageProgram, tensors: tuple[TensorInfo, ...], micro_batch: int
) -> tuple[TensorInfo, ...]:
    """Return the tensors as they are in a micro-batch."""
    if not isinstance(program, UnequalProgram):
        return tensors
    return tuple(program.of_micro_batch(info, micro_batch) for info in tensors)


def _sending_order(made: tuple[int, Handover]) -> tuple[int, int]:
    """Order handovers as their source sends them: by its actions, and of one action by the stage."""
    made_at, handover = made
    return made_at, handover.stage


def _makers(handover: Handover) -> tuple[Action, ...]:
    """Return the actions of which one makes what is handed over."""
    if not handover.is_gradient:
        return (Action(handover.origin, ActionKind.FORWARD, handover.micro_batch),)
    return tuple(
        Action(handover.origin, kind, handover.micro_batch)
        for kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
    )

"""Run one rank's actions: wait for what each needs, run it, hand on what it made.

Tensors travel point to point over torch.distributed, each under a tag of its own (edge, micro-batch, tensor),
so orders may be any; receives are posted ahead, so a sender never waits for a busy receiver. A stage on
several ranks (a tensor-parallel block) runs on each of them; whoever holds both ends of an edge hands over
locally, and otherwise the source's first rank sends. What the model leaves out: a device's own parallelism
between sending and computing; on a CPU both take cores. Checked in tests/tessel/engine/test_executor.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from tessel.engine.actions import Action, ActionKind
from tessel.engine.errors import EngineError
from tessel.engine.job import MAX_TENSORS, Event
from tessel.engine.program import StageProgram, Tensors
from tessel.engine.progress import Progress
from tuner.plan import TensorInfo

_RECEIVES_AHEAD = 8
"""Actions whose receives are posted before their turn: enough to hide a hop, few enough to bound buffers."""


class _Route(NamedTuple):
    """One hand-over that an action waits for or makes."""

    peer_stage: int
    tensors: tuple[TensorInfo, ...]
    is_gradient: bool


class Executor:
    """Runs the actions of one rank.

    Args:
        rank: this rank.
        ranks_by_stage: the ranks of each stage, ascending.
        programs: the stages that this rank holds, by number.
        progress: told what the rank is doing.

    Raises:
        EngineError: more tensors cross a border than transfers can be told apart.
    """

    def __init__(
        self,
        rank: int,
        ranks_by_stage: Sequence[Sequence[int]],
        programs: Mapping[int, StageProgram],
        progress: Progress,
    ) -> None:
        for stage, program in programs.items():
            if max(len(program.received), len(program.sent)) > MAX_TENSORS:
                raise EngineError(
                    f"stage {stage} receives {len(program.received)} tensors and sends {len(program.sent)}, "
                    f"but at most {MAX_TENSORS} may cross a border; cut the model elsewhere"
                )
        self._rank = rank
        self._progress = progress
        self._ranks_by_stage = [tuple(ranks) for ranks in ranks_by_stage]
        self._programs = dict(programs)
        self._own: frozenset[Action] = frozenset()
        self._local: dict[tuple[int, int, bool], Tensors] = {}
        self._posted: dict[Action, list[tuple[str, torch.Tensor, dist.Work]]] = {}
        self._sends: list[tuple[dist.Work, torch.Tensor]] = []

    def run_step(self, actions: Sequence[Action], num_micro_batches: int) -> list[Event]:
        """Run one training step's actions in order, and wait until all that was sent has left."""
        self._local.clear()
        self._own = frozenset(actions)
        for program in self._programs.values():
            program.start_step(num_micro_batches)
        events = []
        for position, action in enumerate(actions):
            for ahead in actions[position : position + _RECEIVES_AHEAD]:
                self._post_receives(ahead)
            ready_s = time.perf_counter()
            self._progress.wait(f"waiting for what {action} needs")
            given = self._take(action)
            self._progress.work(f"running {action}")
            start_s = time.perf_counter()
            made = self._programs[action.stage].run(action, given)
            end_s = time.perf_counter()
            self._hand_on(action, made)
            events.append(Event(action=str(action), ready_s=ready_s, start_s=start_s, end_s=end_s))
        self._progress.wait("waiting for others to take what it sent")
        for work, _ in self._sends:
            work.wait()
        self._sends.clear()
        return events

    def _incoming(self, action: Action) -> _Route | None:
        program = self._programs[action.stage]
        if action.kind is ActionKind.FORWARD:
            route = _Route(action.stage - 1, program.received, False)
        elif action.kind is ActionKind.BACKWARD_WEIGHT and self._input_half_of(action) in self._own:
            return None  # Its input half took the gradients before.
        else:
            route = _Route(action.stage + 1, program.received_gradients, True)
        return route if route.tensors else None

    @staticmethod
    def _input_half_of(action: Action) -> Action:
        return action._replace(kind=ActionKind.BACKWARD_INPUT)

    def _outgoing(self, action: Action) -> _Route | None:
        program = self._programs[action.stage]
        if action.kind is ActionKind.FORWARD:
            route = _Route(action.stage + 1, program.sent, False)
        elif action.kind is ActionKind.BACKWARD_WEIGHT:
            return None
        else:
            route = _Route(action.stage - 1, program.sent_gradients, True)
        return route if route.tensors else None

    def _post_receives(self, action: Action) -> None:
        route = self._incoming(action)
        if route is None or action in self._posted or self._rank in self._ranks_by_stage[route.peer_stage]:
            return
        source = self._ranks_by_stage[route.peer_stage][0]
        posted = []
        for number, info in enumerate(route.tensors):
            buffer = torch.empty(info.shape, dtype=getattr(torch, info.dtype))
            tag = self._tag(action.stage, action.micro_batch, number, is_gradient=route.is_gradient)
            posted.append((info.name, buffer, _work(dist.irecv(buffer, src=source, tag=tag))))
        self._posted[action] = posted

    def _take(self, action: Action) -> Tensors:
        route = self._incoming(action)
        if route is None:
            return {}
        if action in self._posted:
            given = {}
            for name, buffer, work in self._posted.pop(action):
                work.wait()
                given[name] = buffer
            return given
        return self._local.pop((action.stage, action.micro_batch, route.is_gradient))

    def _hand_on(self, action: Action, made: Tensors) -> None:
        route = self._outgoing(action)
        if route is None:
            return
        mine = self._ranks_by_stage[action.stage]
        for peer in self._ranks_by_stage[route.peer_stage]:
            if peer == self._rank:
                self._local[route.peer_stage, action.micro_batch, route.is_gradient] = made
            elif peer not in mine and self._rank == mine[0]:
                self._send(route, action.micro_batch, made, peer)

    def _send(self, route: _Route, micro_batch: int, made: Tensors, peer: int) -> None:
        for number, info in enumerate(route.tensors):
            tensor = made[info.name].contiguous()
            tag = self._tag(route.peer_stage, micro_batch, number, is_gradient=route.is_gradient)
            self._sends.append((_work(dist.isend(tensor, dst=peer, tag=tag)), tensor))

    def _tag(self, receiving_stage: int, micro_batch: int, number: int, *, is_gradient: bool) -> int:
        transfer = micro_batch * len(self._ranks_by_stage) + receiving_stage
        return (transfer * 2 + is_gradient) * MAX_TENSORS + number


def _work(work: dist.Work | None) -> dist.Work:
    if work is None:
        raise RuntimeError("this process is not part of the group that the tensor travels in")
    return work

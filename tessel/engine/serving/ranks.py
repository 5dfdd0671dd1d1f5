"""The caller's side of a served pipeline: start its ranks, feed them, gather results, name what failed.

Each rank is a process. It has one connection to the caller, over which inputs and results travel, and a pipe
to each rank that its stages hand on to; all are inherited, so that nothing listens on the network. At most
`depth` micro-batches are on their way: a further one waits. A rank that fails, is killed, or does not answer
ends the pipeline with an error that names it. Checked in tests/tessel/jobs/test_loading.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

import numpy as np

from tessel.engine.errors import EngineError
from tessel.engine.ranks.launch import log_end
from tessel.engine.ranks.progress import is_stopped
from tessel.engine.serving import messages
from tessel.engine.serving.messages import INPUTS, Failed, RankJob, Ready
from tuner.runtime.manifest import Manifest
from tuner.runtime.native import aligned_copy

_GRACE_S = 5.0
"""How long ranks have to end by themselves."""

_T = TypeVar("_T")

Result = list[np.ndarray]
"""Bytes of each of the model's outputs, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingJob:
    """What is served.

    Attributes:
        provider: `module:function` that builds stages.
        spec: what that is given, as JSON text.
        rank_by_stage: of each stage, in order.
        before: the stages that each stage receives from.
        num_threads: of each rank.
        depth: micro-batches on their way at once.
        timeout_s: longest that ranks may take to start, and a micro-batch to come back.
    """

    provider: str
    spec: str
    rank_by_stage: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    num_threads: int = 1
    depth: int = 4
    timeout_s: float = 300.0

    @property
    def num_ranks(self) -> int:
        """How many processes there are."""
        return max(self.rank_by_stage) + 1

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Return the stages of a rank."""
        return tuple(stage for stage, its in enumerate(self.rank_by_stage) if its == rank)

    def pairs(self) -> Sequence[tuple[int, int]]:
        """Return who hands on to whom."""
        found = {
            (self.rank_by_stage[origin], self.rank_by_stage[stage])
            for stage, origins in enumerate(self.before)
            for origin in origins
        }
        return sorted((source, target) for source, target in found if source != target)


class ServingRanks:
    """The running processes; may be used by several threads.

    Raises:
        EngineError: a rank could not start; names it.
    """

    def __init__(self, job: ServingJob) -> None:
        self._job = job
        self._folder = tempfile.TemporaryDirectory(prefix="tessel-serving-")
        self._changed = threading.Condition()
        self._pending: dict[int, Future[Result]] = {}
        self._made: dict[int, dict[str, np.ndarray]] = {}
        self._next = 0
        self._failure: EngineError | None = None
        self._is_closed = False
        self._sending = threading.Lock()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controls: list[Connection] = []
        try:
            self._start()
            self._ready = self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        self._outputs = self._ready[0].outputs
        for rank, control in enumerate(self._controls):
            threading.Thread(target=self._gather, args=(rank, control), daemon=True).start()

    @property
    def manifest(self) -> Manifest:
        """What the pipeline is, as it is called."""
        return self._ready[0].manifest

    def submit(self, inputs: Mapping[str, np.ndarray]) -> Future[Result]:
        """Hand in a micro-batch; wait while as many as allowed are on their way.

        Args:
            inputs: bytes of each of the model's inputs, by name.

        Raises:
            EngineError: a rank has failed, or the pipeline was closed.
        """
        specs = {spec.name: spec for spec in self.manifest.inputs}
        # One at a time, so that every rank gets micro-batches in one order.
        with self._sending:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over() or len(self._pending) < self._job.depth)
                self._require_open()
                micro_batch, future = self._next, Future[Result]()
                self._next += 1
                self._pending[micro_batch] = future
                self._made[micro_batch] = {
                    name: aligned_copy(inputs[name]) for name in self._outputs if name in specs
                }
            for rank, control in enumerate(self._controls):
                read = tuple(specs[name] for name in self._ready[rank].reads)
                message = messages.Tensors(micro_batch=micro_batch, stage=INPUTS, origin=INPUTS, tensors=read)
                with suppress(OSError):  # who gathers from that rank finds that it has ended
                    messages.send(control, message, inputs)
        return future

    @property
    def depth(self) -> int:
        """How many micro-batches may be on their way."""
        return self._job.depth

    def wait(self, future: Future[_T]) -> _T:
        """Return a result when it is there.

        Raises:
            EngineError: a rank has failed or does not answer; names it.
        """
        try:
            return future.result(self._job.timeout_s)
        except TimeoutError:
            self._fail(self._what_hangs())
            raise self._failure from None  # type: ignore[misc]  # there is one now

    def close(self) -> None:
        """Wait for what is on its way, and end all ranks."""
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(
                lambda: self._failure is not None or not self._pending, self._job.timeout_s
            )
        self._end()

    def _is_over(self) -> bool:
        return self._is_closed or self._failure is not None

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise EngineError("the pipeline was closed; load its plan again")

    def _start(self) -> None:
        job = self._job
        pipes = {pair: Pipe(duplex=False) for pair in job.pairs()}
        threads = str(job.num_threads)
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TVM_NUM_THREADS")
        for rank in range(job.num_ranks):
            own, its = Pipe()
            incoming = {source: read.fileno() for (source, to), (read, _) in pipes.items() if to == rank}
            outgoing = {to: write.fileno() for (source, to), (_, write) in pipes.items() if source == rank}
            with self._log(rank).open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tessel.engine.serving.rank", str(its.fileno())],
                    env={**os.environ, **dict.fromkeys(names, threads)},
                    pass_fds=(its.fileno(), *incoming.values(), *outgoing.values()),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is the caller's
                )
            its.close()
            self._processes.append(process)
            self._controls.append(own)
            told = RankJob(
                provider=job.provider,
                spec=job.spec,
                stages=job.stages_of(rank),
                rank_by_stage=job.rank_by_stage,
                num_threads=job.num_threads,
                incoming=incoming,
                outgoing=outgoing,
            )
            messages.send(own, told)
        for ends in pipes.values():
            for end in ends:
                end.close()

    def _wait_until_ready(self) -> list[Ready]:
        ends_s = time.monotonic() + self._job.timeout_s
        ready: dict[int, Ready] = {}
        while len(ready) < len(self._controls):
            left = {self._controls[rank]: rank for rank in range(self._job.num_ranks) if rank not in ready}
            arrived = wait(list(left), max(0.0, ends_s - time.monotonic()))
            if not arrived:
                raise EngineError(
                    f"rank {min(left.values())} was not ready within {self._job.timeout_s:.0f} s; give more "
                    f"time. The end of its log: {log_end(self._log(min(left.values())))}"
                )
            for control in arrived:
                rank = left[control]  # type: ignore[index]  # one of those that were waited for
                try:
                    message, _ = messages.receive(control)  # type: ignore[arg-type]  # likewise
                except (EOFError, OSError):
                    raise EngineError(self._what_ended(rank)) from None
                if not isinstance(message, Ready):
                    raise EngineError(self._what_failed(rank, message))
                ready[rank] = message
        return [ready[rank] for rank in range(self._job.num_ranks)]

    def _gather(self, rank: int, control: Connection) -> None:
        """Take a rank's results until it ends."""
        try:
            while True:
                message, data = messages.receive(control)
                if not isinstance(message, messages.Tensors):
                    self._fail(self._what_failed(rank, message))
                    return
                self._add(message.micro_batch, data)
        except (EOFError, OSError):
            if not self._is_closed:
                self._fail(self._what_ended(rank))

    def _add(self, micro_batch: int, data: Mapping[str, np.ndarray]) -> None:
        with self._changed:
            made = self._made.get(micro_batch)
            if made is None:
                return  # the pipeline has failed
            made.update(data)
            if not made.keys() >= set(self._outputs):
                return
            future = self._pending.pop(micro_batch)
            del self._made[micro_batch]
            self._changed.notify_all()
        future.set_result([made[name] for name in self._outputs])

    def _fail(self, reason: str) -> None:
        """Have every waiting micro-batch end with the first failure."""
        with self._changed:
            if self._failure is None:
                self._failure = EngineError(reason)
            failure, waiting = self._failure, list(self._pending.values())
            self._pending.clear()
            self._made.clear()
            self._changed.notify_all()
        for process in self._processes:
            process.kill()
        for future in waiting:
            future.set_exception(failure)

    def _what_failed(self, rank: int, message: messages.Message) -> str:
        assert isinstance(message, Failed), "a rank says nothing else"
        return f"{self._named(rank)} failed ({message.reason}), and the others were ended"

    def _what_ended(self, rank: int) -> str:
        process = self._processes[rank]
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        status = process.returncode
        how = f"was ended by signal {-status}" if status is not None and status < 0 else f"ended ({status})"
        return (
            f"{self._named(rank)} {how}, and the others were ended; the end of its log: "
            f"{log_end(self._log(rank))}"
        )

    def _what_hangs(self) -> str:
        stopped = [rank for rank, process in enumerate(self._processes) if is_stopped(process.pid)]
        named = f"{self._named(stopped[0])} is stopped" if stopped else "no rank is stopped"
        return (
            f"a micro-batch took longer than {self._job.timeout_s:.0f} s ({named}), and all ranks were ended"
        )

    def _named(self, rank: int) -> str:
        stages = ", ".join(map(str, self._job.stages_of(rank)))
        return f"rank {rank} (stage {stages}, process {self._processes[rank].pid})"

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank-{rank}.log"

    def _end(self) -> None:
        for control in self._controls:
            _say_end(control)
        for process in self._processes:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for control in self._controls:
            control.close()
        self._folder.cleanup()


def _say_end(control: Connection) -> None:
    """Let a rank see the end of what it is sent; closing does not while a thread here waits for results."""
    with suppress(OSError), socket.socket(fileno=os.dup(control.fileno())) as its:
        its.shutdown(socket.SHUT_WR)

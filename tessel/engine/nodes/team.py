"""This process's part in a run on several machines: meet, run one rank, watch all, end together.

    supervisor of rank 0   read plan ─ meet ─ rank 0 ── results of all ── check ─ conclude ─ one table
    supervisor of rank 1   read plan ─ meet ─ rank 1 ── (wait for what rank 0 finds) ─────── same status
          every half second each says what its rank does, and hears of the others (`heartbeat`)

`torchrun` starts the supervisors; each starts its rank as on one machine (`tessel.engine.ranks.launch`), only
that the ranks meet in torchrun's store instead of in a file. Ranks send what they measured and computed to
rank 0 over their process group; the end of a failed rank's log goes through the store, for then the group is
broken. When a rank or a node is lost, every supervisor ends its own rank, and one on each node says whose
fault it was (`failure_cause`). Checked in tests/scripts/commands/run/test_run_nodes.py.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import msgspec
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, unlisted

from tessel.engine.errors import EngineError
from tessel.engine.job import FOLDER_PREFIX, JobSpec, RankResult, Rendezvous
from tessel.engine.nodes.failure_cause import FailureCause, find_failure_cause, find_late, lost_a_peer
from tessel.engine.nodes.heartbeat import PERIOD_S, Heartbeat, PeerState, RankFailure
from tessel.engine.nodes.identity import Identity, digest_of_job, own_versions, why_not
from tessel.engine.nodes.member import Member, Route
from tessel.engine.ranks.launch import (
    SILENCE_S,
    log_end,
    read_failure,
    read_results,
    start_ranks,
)
from tessel.engine.ranks.progress import read_standing

_CONNECT_S = 60.0
"""How long a supervisor tries to reach the store."""

_MEET_S = 120.0
"""How long the first supervisor that is ready waits for the others, which import and read as it did."""

_LINGER_S = 3 * PERIOD_S
"""How long a supervisor stays when all is over, so that the others hear of it."""

_LOOK_PERIOD_S = 0.1

_TOLD = "was told to end by its torchrun"


class QuietEnd(EngineError):
    """The run ended for a reason that another process of this node tells the user."""


class _ToldToEnd(EngineError):
    """torchrun wants this process to end."""


class Team:
    """One rank's supervisor among those of all nodes; a context, which says how it ended.

    Args:
        member: which rank this process was started for.
        route: how it reaches the others.
        silence_s: silence after which a supervisor counts as lost.
    """

    def __init__(self, member: Member, route: Route, *, silence_s: float = SILENCE_S) -> None:
        self._member = member
        self._route = route
        self._silence_s = silence_s
        self._identity = Identity(
            rank=member.rank,
            node=member.node,
            address=route.address,
            local_rank=member.local_rank,
            versions=own_versions(),
        )
        self._ranks_by_stage: Sequence[Sequence[int]] = ()
        self._failing_since: float | None = None
        self._former_handler: object = None
        self._is_over = False

    def __enter__(self) -> Self:
        """Connect to the store, and say that this rank is there.

        Raises:
            EngineError: the store cannot be reached.
        """
        member = self._member
        try:
            store = TCPStore(
                member.host,
                member.port,
                is_master=member.rank == 0 and not member.agent_holds_store,
                timeout=timedelta(seconds=_CONNECT_S),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except Exception as error:  # torch raises several kinds
            raise EngineError(
                f"rank {member.rank} cannot reach the store at {member.host}, where the ranks meet "
                f"({str(error).partition(chr(10))[0]}); give --rdzv-endpoint an address that every node "
                "reaches"
            ) from error
        prefixed = PrefixStore(f"tessel/{member.attempt}", store)
        self._heartbeat = Heartbeat(prefixed, self._identity, member.world_size)
        self._heartbeat.start()
        self._former_handler = signal.signal(signal.SIGTERM, self._end_as_told)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Say how this rank's part ended, and stay until that is heard."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if isinstance(error, _ToldToEnd):
                self._find_reason()
            elif error is not None and not self._is_over:
                what = f"could not go on: {str(error) or type(error).__name__}"
                self._heartbeat.fail(RankFailure(kind="raised", what=what))
                time.sleep(_LINGER_S)
        finally:
            self._heartbeat.leave(patience_s=_LINGER_S)
            signal.signal(signal.SIGTERM, self._former_handler)  # type: ignore[arg-type]  # as returned

    @property
    def is_first(self) -> bool:
        """Whether this process gathers results, checks them and writes."""
        return self._member.rank == 0

    def launch(
        self,
        job: JobSpec,
        /,
        *,
        plan_digest: str,
        timeout_s: float,
        read: Callable[[Path], None] = lambda folder: None,
    ) -> tuple[RankResult, ...]:
        """Run this process's rank of a job beside all others.

        Args:
            plan_digest: of the file that it came from.
            timeout_s: longest the ranks may take.
            read: called on rank 0 with the folder of what all ranks wrote.

        Returns:
            What every rank reports; empty but for rank 0.

        Raises:
            EngineError: a rank failed, was stopped or lost, or the time-out passed; names it with its node.
        """
        self._ranks_by_stage = job.ranks_by_stage
        self._meet(
            msgspec.structs.replace(
                self._identity, plan_digest=plan_digest, options_digest=digest_of_job(job)
            )
        )
        member = self._member
        rendezvous = Rendezvous(
            rank=member.rank, host=member.host, port=member.port, prefix=f"tessel/{member.attempt}/ranks"
        )
        own_job = msgspec.structs.replace(job, rendezvous=rendezvous)
        with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX) as name:
            folder = Path(name)
            (folder / "job.json").write_bytes(msgspec.json.encode(own_job))
            with start_ranks(own_job, folder, interface=self._route.interface) as process:
                self._watch(process, folder, timeout_s)
            if not self.is_first:
                self._heartbeat.finish()
                return ()
            results = read_results(folder, job.num_ranks)
            read(folder)
            return results

    def await_conclusion(self) -> bool:
        """Return whether rank 0 found the results right.

        Raises:
            EngineError: rank 0 could not tell, or was lost.
        """
        while (is_right := self._look().beats[0].is_right) is None:
            time.sleep(_LOOK_PERIOD_S)
        self._is_over = True
        return is_right

    def conclude(self, *, is_right: bool) -> None:
        """Tell the others what was found, and wait until they have heard it."""
        self._heartbeat.finish(is_right=is_right)
        self._is_over = True
        patience_s = time.monotonic() + self._silence_s
        while time.monotonic() < patience_s:
            others = self._heartbeat.see().beats[1:]
            if all(beat.has_left for beat in others):
                return
            time.sleep(_LOOK_PERIOD_S)

    def _meet(self, identity: Identity) -> None:
        """Wait until all ranks are there and are told the same."""
        self._heartbeat.introduce(identity)
        until_s = time.monotonic() + _MEET_S
        while True:
            found = [beat.identity for beat in self._look().beats]
            ready = [each for each in found if each is not None and each.options_digest]
            if len(ready) == len(found):
                break
            if time.monotonic() > until_s:
                missing = sorted(set(range(len(found))) - {each.rank for each in ready})
                late = f"ranks {', '.join(map(str, missing))} have not come within {_MEET_S:.0f} s"
                self._end(FailureCause(tuple(missing), f"{late}; see what torchrun printed on their node"))
            time.sleep(_LOOK_PERIOD_S)
        reason = why_not(ready)
        if reason:
            self._end(FailureCause((), reason))

    def _watch(self, process: subprocess.Popen[bytes], folder: Path, timeout_s: float) -> None:
        """Wait until this process's rank has run.

        Raises:
            EngineError: some rank has not, and never will.
        """
        rank, begin_s = self._member.rank, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                if process.wait(_LOOK_PERIOD_S) == 0:
                    return
                self._heartbeat.fail(_failure_of(folder, rank))
                time.sleep(_LOOK_PERIOD_S)
            standing = read_standing(folder, rank)
            self._heartbeat.tell(standing.what, is_waiting=standing.is_waiting)
            if standing.is_stopped and standing.silent_s >= self._silence_s:
                what = f"has been stopped for {standing.silent_s:.0f} s while {standing.what}"
                log = log_end(folder / f"rank-{rank}.log")
                self._heartbeat.fail(RankFailure(kind="stopped", what=what, log_end=log))
            peers = self._look()
            if time.monotonic() - begin_s >= timeout_s:
                late = find_late(peers, self._ranks_by_stage)
                what = f"ended the run, which took longer than its time-out of {timeout_s:.0f} s when {late}"
                log = log_end(folder / f"rank-{rank}.log")
                self._heartbeat.fail(RankFailure(kind="timed out", what=what, log_end=log))

    def _look(self) -> PeerState:
        """Return what is known now.

        Raises:
            EngineError: the run is over.
        """
        peers = self._heartbeat.see()
        has_failed = any(beat.failure is not None for beat in peers.beats)
        if has_failed and self._failing_since is None:
            self._failing_since = time.monotonic()
        cause = find_failure_cause(
            peers,
            self._ranks_by_stage,
            silence_s=self._silence_s,
            failing_s=None if self._failing_since is None else time.monotonic() - self._failing_since,
        )
        if cause is not None:
            self._end(cause)
        return peers

    def _end(self, cause: FailureCause) -> None:
        """Leave the run, with the reason if this is the process of its node that gives it.

        Raises:
            EngineError: always.
        """
        self._is_over = True
        own = self._member
        peers = self._heartbeat.see()
        here = [
            rank
            for rank, beat in enumerate(peers.beats)
            if beat.identity is not None
            and beat.identity.node == own.node
            and peers.silent_s[rank] < self._silence_s
        ]
        if min(here, default=own.rank) == own.rank:
            raise EngineError(f"{cause.message}; all ranks were ended")
        # torchrun ends the processes of a node when the first of them fails: the one that speaks goes first.
        time.sleep(_LINGER_S)
        raise QuietEnd(cause.message)

    def _end_as_told(self, number: int, frame: FrameType | None) -> None:
        """Take torchrun's signal to end: another process of this node has failed."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _ToldToEnd(_TOLD)

    def _find_reason(self) -> None:
        """Look a little longer for why torchrun ends this node: another process of it, or node 0, was lost.

        Raises:
            EngineError: always; quiet where no reason was found.
        """
        until_s = time.monotonic() + self._silence_s + _LINGER_S
        while time.monotonic() < until_s:
            self._look()
            time.sleep(_LOOK_PERIOD_S)
        self._heartbeat.fail(RankFailure(kind="ended", what=_TOLD))
        raise QuietEnd(_TOLD)


def _failure_of(folder: Path, rank: int) -> RankFailure:
    """Describe how a rank's process ended."""
    failure = read_failure(folder)
    if failure is None:
        return RankFailure(kind="raised", what="could not start", log_end=log_end(folder / "start.log"))
    log = log_end(folder / f"rank-{rank}.log")
    if failure.status < 0:
        name = signal.Signals(-failure.status).name
        return RankFailure(kind="killed", what=f"was ended by signal {-failure.status} ({name})", log_end=log)
    if lost_a_peer(log):
        return RankFailure(kind="lost a peer", what="lost the connection to another rank", log_end=log)
    return RankFailure(kind="raised", what=f"ended with status {failure.status}", log_end=log)

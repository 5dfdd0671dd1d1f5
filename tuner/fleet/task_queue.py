"""Tasks on a Dask cluster, and their results as they come, whatever happens to workers and scheduler.

A task whose worker dies is sent again, also beyond the number of deaths that Dask itself allows: it is no
candidate that kills a worker, since those run in a process of their own. Tasks that a scheduler forgets
because it was started anew are sent again when it is back. A task whose machine does not end it in time goes
to another, and that machine gets no more.

A machine does one task at a time, so that between two ends lies at most the longest that it holds: what it
holds is late when that one must have ended. It may work for somebody else meanwhile, as it says itself; that
time does not count. Checked in tests/tuner/fleet/test_task_queue.py and test_held_tasks.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import queue
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

from distributed import Client, Future
from distributed.scheduler import KilledWorker

from tuner.errors import TunerError

logger = logging.getLogger(__name__)

CONNECT_S = 10.0
"""How long nobody may answer at the scheduler's address at first."""

RECONNECT_S = 300.0
"""How long a scheduler may be away."""

NO_WORKER_S = 120.0
"""How long there may be no worker for what is to be done. A nanny starts one again within seconds."""

MAX_DEATHS = 25
"""Times that a task is sent again, each after as many deaths of workers as Dask allows."""

MAX_LATE = 3
"""Machines that may fail to end a task before the task, or the fleet, is given up."""

ANSWER_S = 60.0
"""How long a worker may take to say what it is: it may import torch first, on a busy machine."""

_POLL_S = 2.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sent(Generic[T]):
    """A task on its way.

    Attributes:
        subject: what it is about, for whoever sent it.
        key: names what it computes: tasks of one key that are in flight are one, whoever sent them.
        arguments: of the function, in bytes.
        num_deaths: how often it was sent again because its workers died.
        limit_s: how long a machine may take for it.
        num_late: how often it was sent again because its machine did not end it.
    """

    subject: T
    key: str
    arguments: tuple[bytes, ...]
    num_deaths: int = 0
    limit_s: float = math.inf
    num_late: int = 0

    @property
    def dask_key(self) -> str:
        """The key of this attempt: Dask remembers that an earlier one failed as long as anybody waits."""
        attempt = f"-{self.num_deaths}" if self.num_deaths else ""
        return self.key + attempt + ("-late" * self.num_late)


class TaskQueue:
    """A connection to a Dask scheduler that outlives the scheduler.

    Args:
        address: of the scheduler, such as `tcp://localhost:8786`; certificates for `tls://…` are found as
            Dask's configuration says.
        clock: seconds, by which machines are late.

    Raises:
        ValueError: that is no address.
        TunerError: no scheduler answers there.
    """

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        host_of(address)
        self._clock = clock
        self.address = address
        self._client: Client | None = None
        self._workers: dict[str, dict[str, Any]] = {}
        self._asked_s = self._watched_s = -_POLL_S
        self._held = HeldTasks()
        self._late: set[str] = set()
        self._connect(timeout_s=CONNECT_S)

    def close(self) -> None:
        """Close the connection; what is in flight is given up."""
        if self._client is not None:
            with contextlib.suppress(Exception):  # the scheduler may be gone
                self._client.close(timeout=2)
            self._client = None

    @property
    def client(self) -> Client:
        """The connection, made anew where it was lost.

        Raises:
            TunerError: the scheduler did not come back.
        """
        if self._client is None or self._client.status not in ("running", "connecting"):
            self._connect(timeout_s=RECONNECT_S)
        assert self._client is not None
        return self._client

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knew of each worker, by address, within two seconds; nothing while it is
        away."""
        if time.monotonic() - self._asked_s > _POLL_S:
            self._asked_s = time.monotonic()
            try:
                self._workers = self.client.scheduler_info(n_workers=-1)["workers"]
            except (OSError, RuntimeError, ValueError, KeyError):
                self._workers = {}  # a connection that Dask gave up meanwhile describes no scheduler
        return self._workers

    def ask_all(self, function: Callable[..., bytes], document: bytes) -> dict[str, bytes]:
        """Return each worker's answer by address; workers that do not answer are left out."""
        client, addresses = self.client, list(self.workers())

        async def ask(address: str) -> dict[str, Any]:
            asking = client.run(function, document, workers=[address], on_error="ignore")
            try:
                answers: dict[str, Any] = await asyncio.wait_for(asking, ANSWER_S)
            except (TimeoutError, OSError) as error:
                logger.info("the worker at %s does not answer: %r", address, error)
                return {}
            return answers

        async def ask_each() -> list[dict[str, Any]]:
            return await asyncio.gather(*map(ask, addresses))

        answers = itertools.chain.from_iterable(each.items() for each in client.sync(ask_each))
        return {address: answer for address, answer in answers if isinstance(answer, bytes)}

    def results(
        self,
        function: Callable[..., tuple[bytes, ...]],
        tasks: Iterable[Sent[T]],
        *,
        resources: Collection[str],
        in_flight: Callable[[], int],
    ) -> Iterator[tuple[T, tuple[bytes, ...]]]:
        """Send tasks, as many at a time as are wanted, and yield what each returns, as they end.

        Args:
            function: what runs on the workers.
            tasks: taken when there is room for them.
            resources: what a worker must have; a task takes one of each.
            in_flight: how many tasks may be on their way.

        Raises:
            TunerError: there is no worker or no scheduler for too long, or no machine ends a task in time.
        """
        waiting = iter(tasks)
        ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        sent: dict[Future[Any], Sent[T]] = {}
        is_exhausted = False
        last_seen = time.monotonic()
        try:
            while True:
                while not is_exhausted and len(sent) < in_flight():
                    task = next(waiting, None)
                    if task is None:
                        is_exhausted = True
                    else:
                        self._send(function, task, resources, sent, ended)
                if not sent:
                    return
                self._hand_over_late(function, resources, sent, ended)
                future = _next_ended(ended, sent)
                if future is None:
                    if self._has_worker(resources):
                        last_seen = time.monotonic()
                    elif time.monotonic() - last_seen > NO_WORKER_S:
                        raise TunerError(
                            f"the fleet at {self.address} has had no worker for this target for "
                            f"{NO_WORKER_S:.0f} s; start one by `tessel fleet worker {self.address}`, and "
                            "run the same command again: what was measured is in the records"
                        )
                    continue
                task = sent.pop(future)
                last_seen = time.monotonic()
                result = self._result(future)
                if isinstance(result, tuple):
                    yield task.subject, result
                    future.release()  # now that the caller has kept it: till then, others with its key get it
                else:
                    future.release()
                    self._send(function, _again(task, result), resources, sent, ended)
        finally:
            for future in sent:
                with contextlib.suppress(Exception):  # the scheduler may be gone
                    future.release()

    def _send(
        self,
        function: Callable[..., tuple[bytes, ...]],
        task: Sent[T],
        resources: Collection[str],
        sent: dict[Future[Any], Sent[T]],
        ended: queue.SimpleQueue[Future[Any]],
    ) -> None:
        future = self.client.submit(
            function,
            *task.arguments,
            key=task.dask_key,
            resources=dict.fromkeys(resources, 1),
            workers=self._punctual(resources) if self._late else None,
            pure=True,
        )
        sent[future] = task
        future.add_done_callback(ended.put)

    def _hand_over_late(
        self,
        function: Callable[..., tuple[bytes, ...]],
        resources: Collection[str],
        sent: dict[Future[Any], Sent[T]],
        ended: queue.SimpleQueue[Future[Any]],
    ) -> None:
        """Send what a machine holds and does not end to others."""
        if time.monotonic() - self._watched_s < _POLL_S:
            return
        self._watched_s = time.monotonic()
        try:
            held = self.client.processing()
        except (OSError, RuntimeError, ValueError):
            return  # the scheduler is away
        own = {task.key for task in sent.values()}
        said = {
            address: info["metrics"].get("tessel", {}).get("asked")
            for address, info in self.workers().items()
        }
        elsewhere = [address for address, asked in said.items() if asked and asked not in own]
        limit_s = {task.dask_key: task.limit_s for task in sent.values()}
        for address in self._held.late(held, limit_s, elsewhere=elsewhere, now=self._clock()):
            logger.warning("the worker at %s does not end what it was asked; others get it", address)
            self._late.add(address)
            for future, task in [each for each in sent.items() if each[1].dask_key in held[address]]:
                del sent[future]
                future.release()
                self._send(function, replace(task, num_late=task.num_late + 1), resources, sent, ended)

    def _punctual(self, resources: Collection[str]) -> list[str]:
        """Return the workers of these resources that end their tasks.

        Raises:
            TunerError: there are none, or as many did not as may be.
        """
        able = {
            address for address, info in self.workers().items() if set(resources) <= set(info["resources"])
        }
        punctual = sorted(able - self._late)
        if not punctual or len(self._late) > MAX_LATE:
            raise TunerError(
                f"{len(self._late)} machines of the fleet at {self.address} did not end what they were asked "
                "within its own limits, and no other is left to ask; start their workers again, and run the "
                "same command again: what was measured is in the records"
            )
        return punctual

    def _result(self, future: Future[Any]) -> tuple[bytes, ...] | BaseException:
        """Return what a task returned, or why it is to be sent again.

        Raises:
            TunerError: it failed for a reason of its own.
        """
        try:
            if future.status == "finished":
                return self._checked(future.result(timeout=RECONNECT_S))
            if future.status != "error":  # forgotten by a scheduler, or lost with the connection
                return OSError(future.status)
            error = future.exception(timeout=RECONNECT_S)
        except TunerError:
            raise
        except Exception as lost:  # of Dask's many, depending on where the connection broke
            logger.info("a task of the fleet was lost: %r", lost)
            return lost
        if isinstance(error, KilledWorker):
            return error
        raise TunerError(
            f"a task of the fleet at {self.address} failed ({type(error).__name__}: {error}); is the same "
            "version of this project installed on all of its machines?"
        )

    def _checked(self, result: object) -> tuple[bytes, ...]:
        """Return what a task returned.

        Raises:
            TunerError: it is nothing that any of this project's tasks returns.
        """
        if isinstance(result, tuple) and result and all(isinstance(each, bytes) for each in result):
            return result
        raise TunerError(
            f"a machine of the fleet at {self.address} answers with a {type(result).__name__}, which this "
            "version does not understand; install the same version on all of them"
        )

    def _has_worker(self, resources: Collection[str]) -> bool:
        return any(set(resources) <= set(info["resources"]) for info in self.workers().values())

    def _connect(self, *, timeout_s: float) -> None:
        self.close()
        deadline = time.monotonic() + timeout_s
        while self._client is None:
            left = deadline - time.monotonic()
            try:
                self._client = Client(
                    self.address,
                    timeout=max(1.0, min(left, 10.0)),
                    set_as_default=False,
                    name="tessel",
                )
            except (OSError, ValueError, TimeoutError) as error:
                if time.monotonic() > deadline or isinstance(error, ValueError):
                    raise TunerError(
                        f"no scheduler of a fleet answers at {self.address} ({error}); start one by `dask "
                        "scheduler`, or give the address that it prints"
                    ) from error
                time.sleep(0.2)


def host_of(scheduler: str) -> str:
    """Return the host in a scheduler's address.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(scheduler)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("tcp", "tls") or not parts.hostname or port is None:
        raise ValueError(
            f"{scheduler!r} is no scheduler's address; give the one that `dask scheduler` prints, such as "
            "tcp://localhost:8786"
        )
    return parts.hostname


def _next_ended(
    ended: queue.SimpleQueue[Future[Any]], sent: dict[Future[Any], Sent[T]]
) -> Future[Any] | None:
    """Return a task that has ended; None if there was none for a while."""
    try:
        while True:
            future = ended.get(timeout=_POLL_S)
            if future in sent:
                return future
    except queue.Empty:
        # A callback may be lost with the connection.
        return next((future for future in sent if future.status != "pending"), None)


def _again(task: Sent[T], reason: BaseException) -> Sent[T]:
    """Return the task as it is sent again.

    Raises:
        TunerError: too many workers have died of it.
    """
    if not isinstance(reason, KilledWorker):
        return task
    if task.num_deaths >= MAX_DEATHS:
        raise TunerError(
            f"the fleet's workers die again and again ({reason}); see their own output, and run the same "
            "command again: what was measured is in the records"
        )
    return replace(task, num_deaths=task.num_deaths + 1)


class HeldTasks:
    """Which tasks each machine holds, and since when it has ended none."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[frozenset[str], float]] = {}

    def late(
        self,
        held: Mapping[str, Collection[str]],
        limit_s: Mapping[str, float],
        *,
        elsewhere: Collection[str],
        now: float,
    ) -> tuple[str, ...]:
        """Return the machines that should have ended a task and have not.

        Args:
            held: keys of the tasks that each machine holds now, by its address.
            limit_s: by key, how long each of one's own tasks takes at most.
            elsewhere: machines that say that they work for somebody else.
            now: seconds, rising from call to call.
        """
        late = []
        known, self._held = self._held, {}
        for address, keys in held.items():
            before, since = known.get(address, (frozenset(), now))
            own = [limit_s[key] for key in keys if key in limit_s]
            if not own or before - set(keys) or address in elsewhere:
                since = now
            self._held[address] = frozenset(keys), since
            if own and now - since > max(own):
                late.append(address)
        return tuple(late)

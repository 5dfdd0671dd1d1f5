"""A machine of a fleet: one Dask worker for one device, under a nanny that starts it again when it dies.

It serves until it is told to stop. A scheduler that goes away is waited for, so that a fleet comes back when
its scheduler does. Workers, and the processes in which they measure on a CPU, are forked from processes that
have imported what they need, so that one that was killed is back within a second. Checked in
tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Nanny
from distributed.core import Status
from distributed.utils import get_mp_context

from tuner.errors import TunerError
from tuner.fleet.device_tasks import ALIKE, DEVICE, FORK_SERVER, THREADS, activity, identity
from tuner.fleet.documents import Identity, Query
from tuner.fleet.task_queue import host_of
from tuner.measuring.forked_process import ForkServer
from tuner.measuring.worker_process import THREAD_VARIABLES, worker_environment

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

_RETRY_S = 2.0

_START_S = 120.0
"""Starting a worker takes 2 s on an idle machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What one machine measures for, and where it listens.

    Attributes:
        scheduler: address of the fleet's scheduler.
        target: `cpu`, `cuda`, or a tag of the device that is here.
        num_threads: threads of a measurement; every core that a device can have if None.
        backends: references of backends to offer; every available one if None.
        host: address to listen at, by which the scheduler and other machines reach this one.
    """

    scheduler: str
    target: str = "cpu"
    num_threads: int | None = None
    backends: tuple[str, ...] | None = None
    host: str = LOOPBACK


def check_reachable(scheduler: str, host: str) -> None:
    """Refuse to listen only to this machine where the scheduler is another one.

    Raises:
        ValueError: the scheduler's address is none, or no loopback where `host` is one.
    """
    if _is_loopback(host) and not _is_loopback(host_of(scheduler)):
        raise ValueError(
            f"the scheduler at {scheduler} could not reach a worker that listens at {host}; give --host with "
            "this machine's address in a network that you trust"
        )


def own_identity(settings: WorkerSettings) -> Identity:
    """Return what this machine is.

    Raises:
        TunerError: the device is not here, or a backend cannot run.
        ValueError: the target or a backend is not known.
    """
    query = Query(target=settings.target, num_threads=settings.num_threads, backends=settings.backends)
    found = identity(query)
    if found.target is None:
        raise TunerError(f"target {settings.target!r} cannot be measured here ({found.obstacle})")
    return found


def serve(settings: WorkerSettings, found: Identity, *, tell: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        settings: what is served, and where.
        found: what this machine is.
        tell: is told what happens, a line each.
    """
    assert found.target is not None, "own_identity sees to it"
    num_threads = found.target.num_threads
    environment = dict.fromkeys(THREAD_VARIABLES, str(num_threads))
    os.environ.update(environment)  # libraries read it when they load, which is before a worker is forked
    options: dict[str, Any] = {
        "name": f"{socket.gethostname()}-{os.getpid()}",
        "host": settings.host,
        "resources": {DEVICE: 1, THREADS: num_threads, f"{ALIKE}{found.fingerprint}": 1},
        "metrics": {"tessel": activity},
    }
    if found.target.kind != "cpu":  # what CUDA has begun in a process does not survive its fork
        serve_tasks(settings.scheduler, {**options, "env": environment}, tell=tell)
        return
    server = ForkServer(worker_environment(num_threads), with_torch="torch" in found.backends)
    try:
        named = {**environment, FORK_SERVER: server.path}
        serve_tasks(
            settings.scheduler, {**options, "env": named}, tell=tell, preload=("tuner.fleet.device_tasks",)
        )
    finally:
        server.close()


def serve_tasks(
    scheduler: str, options: Mapping[str, Any], *, tell: Callable[[str], None], preload: Sequence[str] = ()
) -> None:
    """Run tasks one at a time, whatever becomes of worker and scheduler, until SIGINT or SIGTERM.

    Args:
        options: of `distributed.Nanny`.
        tell: is told what happens, a line each.
        preload: modules that the process has imported which workers are forked from.
    """
    dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"})
    get_mp_context().set_forkserver_preload(["distributed", *preload])
    asyncio.run(_serve_tasks(scheduler, options, tell))


async def _serve_tasks(scheduler: str, options: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    is_waiting = False
    while not stopped.is_set():
        try:
            with tempfile.TemporaryDirectory(prefix="tessel-fleet-") as folder:
                await _serve_once(scheduler, {**options, "local_directory": folder}, stopped, tell)
            is_waiting = False
        except (OSError, TimeoutError, RuntimeError) as error:
            logger.info("no connection to %s: %r", scheduler, error)
        if not stopped.is_set():
            if not is_waiting:
                tell(f"waiting for the scheduler at {scheduler}")
            is_waiting = True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _RETRY_S)


async def _serve_once(
    scheduler: str, options: Mapping[str, Any], stopped: asyncio.Event, tell: Callable[[str], None]
) -> None:
    """Serve one life of the scheduler."""
    # A program's memory is limited where it runs.
    nanny = Nanny(scheduler, nthreads=1, memory_limit=0, silence_logs=logging.ERROR, **options)
    try:
        await asyncio.wait_for(_started(nanny), _START_S)
        tell(f"measuring for {scheduler}")
        ended = asyncio.ensure_future(nanny.finished())
        stopping = asyncio.ensure_future(stopped.wait())
        while not (ended.done() or stopping.done()) and nanny.status == Status.running:
            await asyncio.wait((ended, stopping), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        for waiter in (ended, stopping):
            waiter.cancel()
    finally:
        with contextlib.suppress(Exception):  # a scheduler that is gone is no reason to stay
            await nanny.close(timeout=5)


async def _started(nanny: Nanny) -> None:
    await nanny


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

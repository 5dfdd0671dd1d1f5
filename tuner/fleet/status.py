"""Present state of a fleet, as `tessel fleet status` shows it.

Checked in tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

import msgspec

from tuner.fleet.device_tasks import describe
from tuner.fleet.documents import Identity, Query, identity_of
from tuner.fleet.task_queue import TaskQueue


class FleetMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of a fleet.

    Attributes:
        address: where it listens.
        device: its name; why it measures for no target, where it does not.
        num_threads: threads of a measurement; null where it measures for none.
        backends: who lowers programs on it.
        running: programs that it measures.
        queued: programs that wait for it.
        measured: programs that it has timed since it started.
        failed: programs that could not be built or timed.
        measured_per_minute: of both, since it started.
    """

    address: str
    device: str
    num_threads: int | None
    backends: tuple[str, ...]
    running: int
    queued: int
    measured: int
    failed: int
    measured_per_minute: float


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The machines of a fleet, by address, and its scheduler's address."""

    scheduler: str
    machines: tuple[FleetMachine, ...]


def fleet_status(address: str) -> FleetStatus:
    """Return what the fleet at a scheduler's address does.

    Raises:
        TunerError: no scheduler answers there.
    """
    tasks = TaskQueue(address)
    try:
        workers = tasks.workers()
        found = {}
        for kind in ("cpu", "cuda"):
            query = msgspec.msgpack.encode(Query(target=kind, num_threads=None, backends=None))
            for worker, answer in tasks.ask_all(describe, query).items():
                identity = identity_of(answer)
                if identity.device is not None or worker not in found:
                    found[worker] = identity
        assigned = {worker: len(keys) for worker, keys in tasks.client.processing().items()}
    finally:
        tasks.close()
    machines = []
    for worker, info in sorted(workers.items()):
        identity = found.get(worker, Identity(obstacle="it does not answer"))
        activity = info["metrics"].get("tessel", {})
        measured, failed = int(activity.get("measured", 0)), int(activity.get("failed", 0))
        running = int(info["metrics"].get("task_counts", {}).get("executing", 0))
        machines.append(
            FleetMachine(
                address=worker,
                device=identity.obstacle if identity.device is None else identity.device.device_model,
                num_threads=None if identity.device is None else identity.device.num_threads,
                backends=identity.backends,
                running=running,
                queued=max(0, assigned.get(worker, 0) - running),
                measured=measured,
                failed=failed,
                measured_per_minute=60 * (measured + failed) / max(1.0, activity.get("seconds", 1.0)),
            )
        )
    return FleetStatus(scheduler=address, machines=tuple(machines))

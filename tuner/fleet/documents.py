"""Documents between a tuner and the machines of a fleet: MessagePack inside Dask's messages.

Tasks take bytes and return bytes, so that what they mean is typed here and decoded strictly, whatever version
the other side has. Checked in tests/tuner/fleet/test_fleet.py.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import msgspec

from records import Environment, Measurement, Workload
from tuner.backends.metaschedule.kernel_exchange import TunedKernel
from tuner.measuring.messages import Build, Compare, Reply, Run
from tuner.measuring.race import RaceResult
from tuner.measuring.request import Limits
from tuner.targets.target import Target


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a machine whether it measures for a target.

    Attributes:
        target: as the user wrote it: `cpu` and `cuda` are whatever device the machine has.
        num_threads: threads of a measurement; the machine's own number if None.
        backends: references of the backends that are to lower programs; every available one if None.
        tuned: reference of one that tunes kernels, beside every available one.
    """

    target: str
    num_threads: int | None
    backends: tuple[str, ...] | None
    tuned: str | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine answers.

    Attributes:
        obstacle: why it does not measure for the target; empty if it does.
        target: the target as this machine resolves it.
        backends: references of the backends that lower programs here.
        device: where programs run, without any backend's versions.
        environments: the same with a backend's, by its name; with all backends' under no name.
        resource: Dask resource that machines have which are alike in device, threads and software.
    """

    obstacle: str = ""
    target: Target | None = None
    backends: tuple[str, ...] = ()
    device: Environment | None = None
    environments: dict[str, Environment] = {}
    resource: str = ""

    @property
    def fingerprint(self) -> str:
        """Name what measurements of this machine depend on by 32 hexadecimal digits."""
        target = "" if self.target is None else self.target.text
        own = [f"{name}={each.fingerprint}" for name, each in sorted(self.environments.items())]
        return hashlib.blake2b("\n".join([target, *own]).encode(), digest_size=16).hexdigest()


def identity_of(answer: bytes) -> Identity:
    """Return what a machine says that it is; that it measures for nothing, where that is not understood."""
    try:
        found = msgspec.msgpack.decode(answer, type=Identity)
    except msgspec.MsgspecError as error:
        return Identity(obstacle=f"a worker answers what this version does not understand: {error}")
    if found.target is not None and "" not in found.environments:
        return Identity(obstacle="a worker does not say with which backends it measures")
    return found


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a task expects of the machine that it runs on.

    Attributes:
        target: what is built for and measured on.
        backends: references of what lowers programs.
        fingerprint: of the identity that the tuner was told at its start.
    """

    target: Target
    backends: tuple[str, ...]
    fingerprint: str


class Candidate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Build one program, and time it if it can be built.

    Attributes:
        kernels: those that are tuned already; here and in what follows, none where nothing is tuned.
    """

    machine: Machine
    kernels: tuple[TunedKernel, ...] = ()
    build: Build
    build_timeout_s: float
    limits: Limits


class RaceOf(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Build programs, and run them in turn until it is known which is the fastest."""

    machine: Machine
    builds: tuple[Build, ...]
    build_timeouts_s: tuple[float, ...]
    limits: Limits
    seed: int
    kernels: tuple[TunedKernel, ...] = ()


class Ask(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Run a module once, on arrays whose bytes are further arguments of the task, or compare two modules."""

    machine: Machine
    request: Run | Compare
    timeout_s: float
    kernels: tuple[TunedKernel, ...] = ()


class Probe(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Measure the device's peak rates."""

    machine: Machine


class Measured(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How a candidate ended; `measured_at` is by the clock of the machine that measured it.

    Attributes:
        kernels: those that were tuned for it.
    """

    built: Reply
    timed: Reply | None
    measured_at: float
    kernels: tuple[TunedKernel, ...] = ()


class RaceEnded(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How a race ended."""

    result: RaceResult


class Answered(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """What the measuring process replied; the bytes of arrays are further results of the task."""

    reply: Reply


class Probed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The probes, as the records keep them."""

    probes: tuple[tuple[Workload, Measurement], ...]


class Refused(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Why a machine did not do what it was asked, in one line."""

    message: str


Task: TypeAlias = Candidate | RaceOf | Ask | Probe
Result: TypeAlias = Measured | RaceEnded | Answered | Probed | Refused


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A task on its way to a machine; `asked` is its fingerprint."""

    asked: str
    task: Task


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a task; `asked` is the fingerprint of the request that was carried out."""

    asked: str
    result: Result

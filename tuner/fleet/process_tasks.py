"""Tasks of one measuring process: candidates, races, runs.

A machine of a fleet does it when it is asked (`device_tasks`), and a tuner does it for a device behind TVM's
tracker (`rpc_pool`). Checked in tests/tuner/fleet/test_fleet.py and tests/tuner/fleet/test_rpc_pool.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from tuner.errors import TunerError
from tuner.fleet.documents import Measured
from tuner.measuring.messages import ArrayInfo, Build, Done, Time, why_failed
from tuner.measuring.race import RaceResult, race
from tuner.measuring.raced_programs import RunningPrograms
from tuner.measuring.request import Limits
from tuner.measuring.worker_process import WorkerProcess

_KEYS = itertools.count()
"""What measuring processes know programs by: two tuners' own keys could be equal."""


def measure_candidate(process: WorkerProcess, build: Build, timeout_s: float, limits: Limits) -> Measured:
    """Build a program, and time it if it can be built."""
    key = next(_KEYS)
    built = process.ask(msgspec.structs.replace(build, key=key), timeout_s)
    timed = None
    if isinstance(built, Done):
        timed = process.ask(Time(key=key, seed=build.seed, timing=limits.timing), limits.run_timeout_s)
    return Measured(built=built, timed=timed, measured_at=time.time())


def race_programs(
    process: WorkerProcess, builds: Sequence[tuple[Build, float]], limits: Limits, seed: int
) -> RaceResult:
    """Build programs, each within its time, and run them in turn until it is known which is the fastest.

    Raises:
        TunerError: one cannot be built or run; says why.
    """
    keyed = [(msgspec.structs.replace(build, key=next(_KEYS)), timeout_s) for build, timeout_s in builds]
    for build, timeout_s in keyed:
        reply = process.ask(build, timeout_s)
        if not isinstance(reply, Done):
            raise TunerError(
                f"a program could not be built for a race: {why_failed(reply).message}; see the operators "
                "that it names"
            )
    running = RunningPrograms(process, [build.key for build, _ in keyed], limits, seed)
    return race(running, num_programs=len(keyed))


def arrays_of(infos: Iterable[ArrayInfo], data: Iterable[bytes]) -> tuple[np.ndarray, ...]:
    """Return arrays whose bytes travelled beside a document that says what they are."""
    return tuple(
        np.frombuffer(each, dtype=info.dtype).reshape(info.shape)
        for each, info in zip(data, infos, strict=True)
    )


def bytes_of(arrays: Iterable[np.ndarray]) -> tuple[bytes, ...]:
    """Return the bytes of arrays, as `arrays_of` reads them."""
    return tuple(np.ascontiguousarray(array).tobytes() for array in arrays)

"""The process that builds and times programs, so that one that crashes or hangs fails alone.

It is started as `python -m tuner.measuring.worker.server DESCRIPTOR` with one end of a socket pair, and
serves one request at a time until the other end closes. Inputs are made here (`worker.inputs`); checks draw
smaller or positive numbers where the usual ones give results that are not finite. Python errors become
replies; crashes, hangs and kills are detected by the parent (`tuner.measuring.worker_process`). Checked in
tests/tuner/measuring/test_worker.py.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

if __name__ == "__main__":
    # tvm_ffi imports torch wherever it is installed, which takes longer than all else here, and as much
    # memory again. Backends that call torch import it themselves.
    sys.modules["torch"] = None  # type: ignore[assignment]
    importlib.import_module("tvm")
    del sys.modules["torch"]

from records import Status
from tuner.backends.blas import call_blas
from tuner.backends.protocol import Backend
from tuner.backends.registry import backends_for
from tuner.backends.tvm.native import TvmNative
from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.graph.relax_types import IRModule
from tuner.graph.structure import Structure
from tuner.lowering.lower import (
    Executable,
    build_gpu_reference,
    build_planned,
    build_reference,
    build_unscheduled,
    lower_module,
)
from tuner.machine_faults import is_of_machine
from tuner.measuring.messages import (
    WRONG_NUMBERS,
    Acquire,
    ArrayInfo,
    Build,
    Compare,
    Compared,
    Done,
    Failed,
    Race,
    Raced,
    Ran,
    Reply,
    Request,
    Run,
    Start,
    Time,
    Timed,
    not_by_program,
    receive_arrays,
    receive_request,
    send,
    send_arrays,
)
from tuner.measuring.module_json import module_of
from tuner.measuring.probe_program import addition
from tuner.measuring.worker.comparison import compare_results
from tuner.measuring.worker.inputs import (
    INTERVALS,
    DrawnInputs,
    Interval,
    input_specs,
    own_intervals,
    value_types,
)
from tuner.measuring.worker.kept_programs import KeptPrograms
from tuner.measuring.worker.runtimes import DeviceRuntime, LoadedProgram, LocalRuntime, RpcRuntime
from tuner.measuring.worker.sampling import Sample, num_executions, take_samples
from tuner.numerical_error import tolerance_of
from tuner.parent_watch import end_with_parent
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

_MESSAGE_CHARACTERS = 400

_LEAST_US = 1e-3
"""What a program takes that is shorter than the clock can tell."""

_LONG_US = 100_000.0
"""Latency from which a program that runs in turn with others needs no warm-up: whatever the program before it
left in the caches is loaded again in a small part of that time."""

_UNMIXED_LONG_US = 2_000.0
"""The same where nothing ran since the program's last execution, so that the caches are as it left them. An
execution from here costs a few microseconds more than one that TVM times."""

_REFILL_US = 4_000.0
"""Time that a program gets, in turn with others, until the caches hold what it reads. One of 0.4 ms with 8
MiB of weights, beside three of its kind, takes 1.4 times as long after one execution as after eight."""

_MAX_UNTIMED = 8
"""Executions in that time: what is shorter reads little."""

_MAX_COMPILED = 32
"""Programs that are kept compiled: those of a model's stages. Weights are no part of them."""


@dataclass(frozen=True, slots=True)
class _Built:
    """A program to be timed.

    Attributes:
        executable: what was compiled.
        loaded: the same, loaded; None where its device is held for a request only.
        inputs: shapes and data types.
        intervals: by position, of inputs that have one of their own.
        planned_bytes: of memory.
    """

    executable: Executable
    loaded: LoadedProgram | None
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    intervals: Mapping[int, Interval]
    planned_bytes: int


@dataclass(frozen=True, slots=True)
class Racer:
    """A loaded program, how often it is executed in one sample, and how often untimed before that."""

    run: Callable[[int], Sample]
    number: int
    num_untimed: int

    @classmethod
    def of(cls, run: Callable[[int], Sample], *, sample_s: float) -> Racer:
        """Execute the program once, and say how often it is executed from then on."""
        first = run(1)
        num_untimed = min(_MAX_UNTIMED, int(_REFILL_US / max(first.latency_us, _LEAST_US)))
        return cls(run, num_executions(first, sample_s), num_untimed)

    def sample_us(self) -> float:
        """Return the mean latency of one sample."""
        if self.num_untimed:
            self.run(self.num_untimed)
        return self.run(self.number).latency_us


class Worker:
    """Holds what was built until it is timed."""

    def __init__(self, start: Start) -> None:
        self.target: Target = start.target
        given = backends_for(start.backends, start.target)
        # Probes of the device are kernels of TVM's, whoever may run the model's partitions.
        probes = () if any(backend.name == TvmNative.name for backend in given) else (TvmNative(),)
        self.backends: tuple[Backend, ...] = (*given, *probes)
        self.built: dict[int, _Built] = {}
        self.racing: dict[int, Racer] = {}
        self.remote = None if start.remote is None else RpcRuntime(start.remote, start.target)
        self.place: DeviceRuntime = self.remote or LocalRuntime(start.target)
        self.inputs = DrawnInputs(self.place.tensor)
        # What results are compared with is computed on this machine's processor: on a GPU it would run by
        # the very schedules that are checked.
        self.is_reference_apart = self.remote is not None or start.target.kind != "cpu"
        self.reference_target = resolve_target("cpu") if self.is_reference_apart else start.target
        self.reference_place = LocalRuntime(self.reference_target) if self.is_reference_apart else self.place
        self.reference_inputs = (
            DrawnInputs(self.reference_place.tensor) if self.is_reference_apart else self.inputs
        )
        self.compiled: KeptPrograms[tuple[Executable, int]] = KeptPrograms(_MAX_COMPILED)

    def acquire(self, request: Acquire) -> Reply:
        """Wait for the device, and hold it until `release`."""
        assert self.remote is not None, "nobody else holds a device that is here"
        self.remote.acquire(request.session_s)
        return Done()

    def release(self) -> None:
        """Forget what lies on a device behind a tracker, and give it back."""
        if self.remote is not None:
            self.inputs = DrawnInputs(self.place.tensor)
            self.racing.clear()
            self.remote.release()

    def build(self, request: Build) -> Reply:
        """Lower, build, and check the results against TVM's default lowering where asked."""
        module = module_of(request.module_json)
        executable, planned_bytes = self._compiled(request.module_json, as_graph=request.as_graph)
        specs, intervals = input_specs(module), own_intervals(module)
        # Loading makes machine code: here, since programs are built in parallel, but timed one at a time.
        loaded = self.place.load(executable) if self.remote is None else None
        self.built[request.key] = _Built(executable, loaded, specs, intervals, planned_bytes)
        error = None
        if request.check:
            reference = self._reference(module, request.reference_json)
            # A kernel may have no number for some inputs that are drawn; a whole model must have one for all.
            results, expected = self._both_results(executable, reference, module, request.seed)
            found = compare_results(results, expected, nan_agrees=True)
            tolerance = tolerance_of(value_types(module))
            if not found.is_within(tolerance):
                del self.built[request.key]
                return Failed(Status.ERROR, f"{WRONG_NUMBERS}: {found.tensor} {found.describe(tolerance)}")
            says_something = not all(np.isnan(array).all() for array in expected)
            error = found.relative_error if says_something else None
        return Done(error)

    def time(self, request: Time) -> Reply:
        """Time a built module; it is then freed, unless it is to race."""
        built = self.built[request.key] if request.keep else self.built.pop(request.key)
        samples = take_samples(self._sampler(built, request.seed, long_us=_UNMIXED_LONG_US), request.timing)
        return Timed(samples_us=samples, peak_memory_bytes=built.planned_bytes)

    def race(self, request: Race) -> Reply:
        """Time built modules in turn; all others are freed."""
        for key in set(self.built) - set(request.keys):
            del self.built[key]
            self.racing.pop(key, None)
        for key in request.keys:
            if key not in self.racing:
                sampler = self._sampler(self.built[key], request.seed, long_us=_LONG_US)
                self.racing[key] = Racer.of(sampler, sample_s=request.sample_s)
        samples: dict[int, list[float]] = {key: [] for key in request.keys}
        for number in range(request.first_round, request.first_round + request.num_rounds):
            order = np.random.default_rng((request.seed, number)).permutation(request.keys)
            for key in map(int, order):
                samples[key].append(self.racing[key].sample_us())
        return Raced(tuple(map(tuple, samples.values())))

    def has_lost_device(self) -> bool:
        """Say whether a kernel that failed has left this process without its GPU.

        CUDA answers every later call of the process with that kernel's error: each program after it would
        fail for it, and its record say so for ever.
        """
        if not isinstance(self.place, LocalRuntime) or self.target.kind == "cpu":
            return False
        try:
            self.place.device.sync()
        except Exception:  # whatever TVM makes of CUDA's error
            return True
        return False

    def can_build(self) -> bool:
        """Say whether compilers are sound: whether the smallest program can be built for the device.

        It is not run on a GPU or behind a tracker: a program that failed there may have broken what it left.
        """
        try:
            executable, _ = build_planned(addition(), self.target)
            if self.remote is not None:
                with tempfile.TemporaryDirectory() as folder:
                    self.remote.link(executable, Path(folder) / "addition.so")
            elif self.target.kind == "cpu":
                self.place.load(executable)
        except Exception:  # whatever compilers raise
            logging.getLogger(__name__).debug("nothing can be built", exc_info=True)
            return False
        return True

    def _sampler(self, built: _Built, seed: int, *, long_us: float) -> Callable[[int], Sample]:
        """Load a built module, and return the function that samples it.

        Args:
            seed: of its inputs.
            long_us: latency from which an execution needs no warm-up before it.
        """
        program = built.loaded or self.place.load(built.executable)
        arguments = program.bound(self.inputs.get(built.inputs, seed, own=built.intervals))
        # The virtual machine keeps a result until the next one stands: the second execution, too, writes to
        # memory that nobody has touched, which can take several times as long as what it computes.
        program.once_us(arguments)
        last_us = program.once_us(arguments)

        def run(number: int) -> Sample:
            nonlocal last_us
            num_warmups = 0 if number == 1 and last_us >= long_us else 1
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            began_s = time.process_time()
            latency_us = program.mean_us(arguments, number) if num_warmups else program.once_us(arguments)
            spent_us = (time.process_time() - began_s) * 1e6
            lost = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
            if self.remote is not None:  # this process only waited
                lost = 0
            if lost and self.target.kind == "cpu" and self.target.num_threads == 1:
                latency_us = min(latency_us, spent_us / (number + num_warmups))
            last_us = max(latency_us, _LEAST_US)
            return Sample(last_us, is_disturbed=lost > 0)

        return run

    def compare(self, request: Compare) -> Reply:
        """Return the largest error between two modules' results."""
        module = module_of(request.module_json)
        if not request.unscheduled:
            executable = self._compile(request.module_json)
            reference = self._reference(module, request.reference_json)
        else:
            reference = self._compile_unscheduled(request.reference_json)
            build = self._compile if self.is_reference_apart else self._compile_unscheduled
            executable = build(request.module_json)
        return Compared(compare_results(*self._both_results(executable, reference, module, request.seed)))

    def run(self, request: Run, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run a module once on given arrays."""
        calls_blas = request.calls_blas and self.remote is None
        executable, _ = self._compiled(request.module_json, calls_blas=calls_blas)
        return self._results(executable, [self.place.tensor(array) for array in arrays], request.function)

    def _reference(self, module: IRModule, reference_json: str | None) -> Executable:
        if self.target.kind == "cuda":
            given = module if reference_json is None else module_of(reference_json)
            return build_gpu_reference(given, self.reference_target)
        if reference_json is None:
            return build_reference(module, self.reference_target)
        return self._compile(reference_json, is_reference=True)

    def _compile(self, module_json: str, *, is_reference: bool = False) -> Executable:
        return self._compiled(module_json, is_reference=is_reference)[0]

    def _compiled(
        self,
        module_json: str,
        *,
        calls_blas: bool = False,
        is_reference: bool = False,
        as_graph: bool = False,
    ) -> tuple[Executable, int]:
        """Return what runs a module, and the bytes planned for it; costly programs are kept.

        A stage's function that was measured is run again in a check, on other arrays.
        """
        target = self.reference_target if is_reference else self.target
        module = module_of(module_json)
        as_graph = as_graph and target.kind == "cuda" and self.remote is None

        def build() -> tuple[Executable, int]:
            lowered = lower_module(module, self.backends, target)
            with_blas = calls_blas and target.kind == "cpu"
            return build_planned(
                call_blas(lowered) if with_blas else lowered, target, hoists_storages=as_graph
            )

        return self.compiled.get((Structure(module), calls_blas, as_graph, target is self.target), build)

    def _compile_unscheduled(self, module_json: str) -> Executable:
        if self.target.kind == "cuda":
            return build_gpu_reference(module_of(module_json), self.reference_target)
        lowered = lower_module(module_of(module_json), self.backends, self.reference_target)
        return build_unscheduled(lowered, self.reference_target)

    def _both_results(
        self, executable: Executable, reference: Executable, module: IRModule, seed: int
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Return the results of a module and its reference on the same inputs, finite ones where possible."""
        specs = input_specs(module)
        for interval in INTERVALS:
            inputs = self.reference_inputs.get(specs, seed, interval, own=own_intervals(module))
            expected = self._results(reference, inputs, place=self.reference_place)
            if all(np.isfinite(array).all() for array in expected):
                break
        if self.is_reference_apart:
            inputs = self.inputs.get(specs, seed, interval, own=own_intervals(module))
        return self._results(executable, inputs), expected

    def _results(
        self,
        executable: Executable,
        arguments: Sequence[Any],
        function: str = "main",
        *,
        place: DeviceRuntime | None = None,
    ) -> tuple[np.ndarray, ...]:
        program = (place or self.place).load(executable)
        return program.results(program.bound(arguments) if function == "main" else arguments, function)


def serve(connection: Connection) -> None:
    """Answer requests until the other side closes the connection."""
    start = receive_request(connection)
    assert isinstance(start, Start), "the first message is Start"
    _limit_memory(start.memory_limit_bytes)
    _die_first()
    # Of this process, and of the compilers that it starts.
    os.environ["TMPDIR"] = tempfile.tempdir = start.folder
    try:
        worker = Worker(start)
    except Exception as error:  # a backend's own code may raise anything; the other side says it
        send(connection, _failure(error))
        return
    send(connection, Done())
    while True:
        try:
            request = receive_request(connection)
        except (EOFError, ConnectionError):
            return
        _answer(worker, request, connection)


def _answer(worker: Worker, request: Request, connection: Connection) -> None:
    arrays = receive_arrays(connection, request.arrays) if isinstance(request, Run) else ()
    failure = None
    try:
        if isinstance(request, Run):
            _send_results(connection, worker.run(request, arrays))
        else:
            send(connection, _handle(worker, request))
    except Exception as error:  # foreign code is built and run here; whatever it raises is the measurement
        logging.getLogger(__name__).debug("request failed", exc_info=True)
        failure = _failure(error, worker)
        if worker.has_lost_device():
            failure = msgspec.structs.replace(failure, has_lost_device=True)
    if not isinstance(request, Acquire):
        worker.release()
    if failure is not None:
        send(connection, failure)


def _handle(worker: Worker, request: Request) -> Reply:
    if isinstance(request, Acquire):
        return worker.acquire(request)
    if isinstance(request, Build):
        return worker.build(request)
    if isinstance(request, Time):
        return worker.time(request)
    if isinstance(request, Race):
        return worker.race(request)
    if isinstance(request, Compare):
        return worker.compare(request)
    raise TypeError(f"{type(request).__name__} is not a request that is answered twice")


def _failure(error: Exception, worker: Worker | None = None) -> Failed:
    unsupported = isinstance(error, UnsupportedOperatorError)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TVM puts a C++ trace before the sentence that says what is wrong.
    sentence = lines[0] if isinstance(error, TunerError) and lines else (lines[-1] if lines else "no message")
    text = f"{type(error).__name__}: {sentence}"[:_MESSAGE_CHARACTERS]
    if unsupported:
        return Failed(Status.UNSUPPORTED, text)
    if is_of_machine(error) or (worker is not None and not worker.can_build()):
        return not_by_program(text)
    return Failed(Status.ERROR, text)


def _send_results(connection: Connection, results: Sequence[np.ndarray]) -> None:
    send(connection, Ran(tuple(ArrayInfo(array.shape, str(array.dtype)) for array in results)))
    send_arrays(connection, results)


def _limit_memory(limit_bytes: int | None) -> None:
    """Let allocations beyond the limit fail here, before the kernel kills some other process for memory."""
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _die_first() -> None:
    """Have the kernel, where memory is short, kill this process, and not the one that keeps measurements."""
    with contextlib.suppress(OSError):  # not on Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    end_with_parent(os.getppid())
    with Connection(int(sys.argv[1])) as end:
        serve(end)

"""The process that builds and times programs, so that one that crashes or hangs fails alone.

It is started as `python -m tuner.measure_worker DESCRIPTOR` with one end of a socket pair, and serves one
request at a time until the other end closes. Inputs are made here from a seed: uniform numbers in [-1, 1] and
integers 0 or 1 (valid as indices of anything); for checks, smaller or positive numbers where these give
results that are not finite. Python errors become replies; a crash, a hang or a kill is the other side's to
notice (`tuner.worker_process`). Checked in tests/tuner/test_measure_worker.py.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import signal
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tvm
from tvm import relax

from records import Status
from tuner.backends.protocol import VARIANCES_ATTRIBUTE, Backend, IRModule, num_inputs_of, weights_of
from tuner.backends.registry import backends_for
from tuner.backends.tvm_native import TvmNative
from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.lower import (
    Executable,
    build_module,
    build_planned,
    build_reference,
    build_unscheduled,
    flat_arrays,
    lower_module,
)
from tuner.measure_messages import (
    WRONG_NUMBERS,
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
    Timing,
    receive_bytes,
    receive_request,
    send,
    send_bytes,
)
from tuner.numerical_error import Deviation, compare_outputs, tolerance_of, worst
from tuner.target import Target
from tuner.target_resolution import tvm_device
from tuner.weight_binding import bound_arguments

Interval: TypeAlias = tuple[float, float]
"""Least and largest of random floats."""

SIGNED: Interval = (-1.0, 1.0)

POSITIVE: Interval = (0.1, 1.0)

_INTERVALS: tuple[Interval, ...] = (SIGNED, POSITIVE, (0.001, 0.05))
"""Tried in turn until results are finite: roots and logarithms want positive numbers, products in a deep
network without normalised weights small ones."""

_MESSAGE_CHARACTERS = 400

_WATCH_PERIOD_S = 1.0


_LEAST_US = 1e-3
"""What a program takes that is shorter than the clock can tell."""


class Sample(NamedTuple):
    """Mean latency of some executions in a row, and whether another program took the processor meanwhile.

    If one did, and one thread does all the work, the latency is what this process had of the processor: a
    program that takes longer than the system's turns is never left alone on a busy one.
    """

    latency_us: float
    is_disturbed: bool


@dataclass(frozen=True, slots=True)
class _Built:
    executable: Executable
    inputs: tuple[tuple[tuple[int, ...], str], ...]
    intervals: Mapping[int, Interval]
    planned_bytes: int


@dataclass(frozen=True, slots=True)
class _Racer:
    """A loaded program, and how often it is executed in one sample."""

    run: Callable[[int], Sample]
    number: int

    @classmethod
    def of(cls, run: Callable[[int], Sample], *, sample_s: float) -> _Racer:
        return cls(run, _executions(run(1), sample_s))

    def sample_us(self) -> float:
        """Return the mean latency of one sample."""
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
        self.racing: dict[int, _Racer] = {}
        self.kept_inputs: tuple[object, list[Any]] | None = None
        self.device = tvm_device(start.target)

    def build(self, request: Build) -> Reply:
        """Lower, build, and check the results against TVM's default lowering where asked."""
        module = tvm.ir.load_json(request.module_json)
        lowered = lower_module(module, self.backends, self.target)
        executable, planned_bytes = build_planned(lowered, self.target)
        specs, intervals = input_specs(module), own_intervals(module)
        self.built[request.key] = _Built(executable, specs, intervals, planned_bytes)
        error = None
        if request.check:
            reference = self._reference(module, request.reference_json)
            # A kernel may have no number for some inputs that are drawn; a whole model must have one for all.
            results, expected = self._both_results(executable, reference, module, request.seed)
            found = compare_results(results, expected, nan_agrees=True)
            tolerance = tolerance_of(dtype for _, dtype in specs)
            if not found.is_within(tolerance):
                del self.built[request.key]
                return Failed(Status.ERROR, f"{WRONG_NUMBERS}: {found.tensor} {found.describe(tolerance)}")
            says_something = not all(np.isnan(array).all() for array in expected)
            error = found.relative_error if says_something else None
        return Done(error)

    def time(self, request: Time) -> Reply:
        """Time a built module; it is forgotten, so that memory does not pile up, unless it is to race."""
        built = self.built[request.key] if request.keep else self.built.pop(request.key)
        samples = take_samples(self._sampler(built, request.seed), request.timing)
        return Timed(samples_us=samples, peak_memory_bytes=built.planned_bytes)

    def race(self, request: Race) -> Reply:
        """Time built modules in turn; all others are forgotten."""
        for key in set(self.built) - set(request.keys):
            del self.built[key]
            self.racing.pop(key, None)
        for key in request.keys:
            if key not in self.racing:
                self.racing[key] = _Racer.of(
                    self._sampler(self.built[key], request.seed), sample_s=request.sample_s
                )
        samples: dict[int, list[float]] = {key: [] for key in request.keys}
        for number in range(request.first_round, request.first_round + request.num_rounds):
            order = np.random.default_rng((request.seed, number)).permutation(request.keys)
            for key in map(int, order):
                samples[key].append(self.racing[key].sample_us())
        return Raced(tuple(map(tuple, samples.values())))

    def _sampler(self, built: _Built, seed: int) -> Callable[[int], Sample]:
        """Load a built module, and return what executes it so many times and says how that went."""
        machine = relax.VirtualMachine(built.executable, self.device)
        arguments = bound_arguments(machine, self._inputs(built.inputs, seed, own=built.intervals))
        machine["main"](*arguments)

        def run(number: int) -> Sample:
            timer = machine.time_evaluator("main", self.device, number=number, repeat=1)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
            began_s = time.process_time()
            latency_us = float(timer(*arguments).results[0]) * 1e6
            spent_us = (time.process_time() - began_s) * 1e6
            lost = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
            if lost and self.target.kind == "cpu" and self.target.num_threads == 1:
                latency_us = min(latency_us, spent_us / (number + 1))  # TVM executes once before it times
            return Sample(max(latency_us, _LEAST_US), is_disturbed=lost > 0)

        return run

    def compare(self, request: Compare) -> Reply:
        """Tell how far two modules' results are apart."""
        module = tvm.ir.load_json(request.module_json)
        reference = tvm.ir.load_json(request.reference_json)
        build = self._compile_unscheduled if request.unscheduled else self._compile
        return Compared(
            compare_results(*self._both_results(build(module), build(reference), module, request.seed))
        )

    def run(self, request: Run, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Run a module once on given arrays."""
        executable = self._compile(tvm.ir.load_json(request.module_json))
        return self._results(executable, self._on_device(arrays), request.function)

    def _reference(self, module: IRModule, reference_json: str | None) -> Executable:
        if reference_json is None:
            return build_reference(module, self.target)
        return self._compile(tvm.ir.load_json(reference_json))

    def _compile(self, module: IRModule) -> Executable:
        return build_module(lower_module(module, self.backends, self.target), self.target)

    def _compile_unscheduled(self, module: IRModule) -> Executable:
        return build_unscheduled(lower_module(module, self.backends, self.target), self.target)

    def _both_results(
        self, executable: Executable, reference: Executable, module: IRModule, seed: int
    ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
        """Return what a module and its reference make of the same inputs, finite numbers where some do."""
        specs = input_specs(module)
        for interval in _INTERVALS:
            inputs = self._inputs(specs, seed, interval, own=own_intervals(module))
            expected = self._results(reference, inputs)
            if all(np.isfinite(array).all() for array in expected):
                break
        return self._results(executable, inputs), expected

    def _results(
        self, executable: Executable, arguments: Sequence[Any], function: str = "main"
    ) -> tuple[np.ndarray, ...]:
        machine = relax.VirtualMachine(executable, self.device)
        if function == "main":
            arguments = bound_arguments(machine, arguments)
        return flat_arrays(machine[function](*arguments))

    def _inputs(
        self,
        specs: tuple[tuple[tuple[int, ...], str], ...],
        seed: int,
        interval: Interval = SIGNED,
        *,
        own: Mapping[int, Interval] = MappingProxyType({}),
    ) -> list[Any]:
        """Return random inputs on the device; the last ones are kept, for variants of one large program."""
        key = (specs, seed, interval, tuple(sorted(own.items())))
        if self.kept_inputs is None or self.kept_inputs[0] != key:
            self.kept_inputs = None  # freed before the next ones are made
            self.kept_inputs = (
                key,
                self._on_device(random_inputs(specs, seed, interval, own=own)),
            )
        return self.kept_inputs[1]

    def _on_device(self, arrays: Sequence[np.ndarray]) -> list[Any]:
        return [tvm.runtime.tensor(array, self.device) for array in arrays]


def input_specs(module: IRModule) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Return shape and data type of each parameter of `main`."""
    return tuple(
        (tuple(int(extent) for extent in parameter.ty.shape), str(parameter.ty.dtype))
        for parameter in module["main"].params
    )


def own_intervals(module: IRModule) -> dict[int, Interval]:
    """Return intervals for parameters of `main`, by position, that must not be drawn from the general one.

    What batch normalisation takes for a variance is positive: below 0 its results are no numbers, which a
    later clip hides. Weights of a model are as small as their number of inputs asks: larger ones make a deep
    network chaotic, so that rounding alone decides its results.
    """
    main = module["main"]
    position = {parameter: index for index, parameter in enumerate(main.params)}
    found = {position[weight]: interval for weight, interval in _weight_intervals(main).items()}
    for block in main.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if isinstance(call, relax.Call):
                own = _weights_read(call, module) | dict.fromkeys(_variances_read(call, module), POSITIVE)
                found.update({position[variable]: own[variable] for variable in own if variable in position})
    return found


def _weight_intervals(function: Any) -> dict[Any, Interval]:
    """Return intervals of a model's or partition's weights, by parameter."""
    weights = [function.params[position] for position in weights_of(function)]
    num_inputs = num_inputs_of(function)
    if num_inputs is not None:
        weights = list(function.params[num_inputs:])
    intervals = {}
    for weight in weights:
        shape = [int(extent) for extent in weight.ty.shape]
        if len(shape) > 1:
            # Convolutions have their outputs first; matrices may lie either way, so the larger side counts.
            num_inputs = max(shape) if len(shape) == 2 else math.prod(shape[1:])
            bound = math.sqrt(3 / num_inputs)
            intervals[weight] = (-bound, bound)
    return intervals


def _weights_read(call: Any, module: IRModule) -> dict[Any, Interval]:
    """Return intervals of the arguments that a call of a partition takes for weights."""
    callee = module[call.op] if isinstance(call.op, tvm.ir.GlobalVar) else None
    if not isinstance(callee, relax.Function):
        return {}
    argument = dict(zip(callee.params, call.args, strict=True))
    return {argument[weight]: interval for weight, interval in _weight_intervals(callee).items()}


def _variances_read(call: Any, module: IRModule) -> list[Any]:
    """Return the arguments that a call, of an operator or of a partition, takes for variances."""
    if not isinstance(call.op, tvm.ir.GlobalVar):
        return [_variance_of(call)]
    callee = module[call.op]
    if not isinstance(callee, relax.Function):
        return []
    inner = _variances_of(callee)
    return [call.args[index] for index, each in enumerate(callee.params) if each in inner]


def _variances_of(function: Any) -> set[Any]:
    if function.attrs is not None and VARIANCES_ATTRIBUTE in function.attrs.keys():  # noqa: SIM118 - TVM's maps
        return {function.params[int(position)] for position in function.attrs[VARIANCES_ATTRIBUTE]}
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    return {_variance_of(each.value) for each in bindings if isinstance(each.value, relax.Call)} - {None}


def _variance_of(call: Any) -> Any:
    return call.args[4] if getattr(call.op, "name", "") == "relax.nn.batch_norm" else None


def random_inputs(
    specs: Sequence[tuple[tuple[int, ...], str]],
    seed: int,
    interval: Interval = SIGNED,
    *,
    own: Mapping[int, Interval] = MappingProxyType({}),
) -> tuple[np.ndarray, ...]:
    """Return random arrays: floats in the interval, integers and booleans 0 or 1; same seed, same arrays.

    Args:
        specs: shapes and data types.
        seed: of the random numbers.
        interval: least and largest float.
        own: intervals by position, where an array has one of its own.
    """
    rng = np.random.default_rng(seed)
    return tuple(
        _random_array(rng, shape, dtype, own.get(index, interval))
        for index, (shape, dtype) in enumerate(specs)
    )


def compare_results(
    results: Sequence[np.ndarray], expected: Sequence[np.ndarray], *, nan_agrees: bool = False
) -> Deviation:
    """Return the result that is furthest from the reference's, named by its position.

    Args:
        results: what a program returned.
        expected: what the reference returned.
        nan_agrees: whether results without a number in equal places are equal.
    """
    found = worst(compare_outputs(_numbered(results), _numbered(expected), nan_agrees=nan_agrees))
    return found or Deviation(tensor="nothing", relative_error=0.0)


def take_samples(run: Callable[[int], Sample], timing: Timing) -> tuple[float, ...]:
    """Return samples in microseconds, until their spread is small or the budget ends.

    Samples during which the program lost the processor are left out where enough others are left.

    Args:
        run: executes the program so many times and says how that went.
        timing: when to stop.
    """
    first = run(1)
    number = _executions(first, timing.sample_s)
    if number > 1:
        run(number)
    samples = [first] if number == 1 else []
    spent_s = sum(sample.latency_us for sample in samples) * 1e-6
    while len(samples) < timing.max_samples and not _is_enough(samples, spent_s, timing):
        sample = run(number)
        samples.append(sample)
        spent_s += sample.latency_us * number * 1e-6
    quiet = _quiet(samples)
    return quiet if len(quiet) >= timing.min_samples else tuple(sample.latency_us for sample in samples)


def _executions(first: Sample, sample_s: float) -> int:
    """Return how often a program is executed in a sample of so many seconds, by its first execution."""
    return max(1, min(1000, int(sample_s * 1e6 / max(first.latency_us, 0.1))))


def serve(connection: socket.socket) -> None:
    """Answer requests until the other side closes the connection."""
    start = receive_request(connection)
    assert isinstance(start, Start), "the first message is Start"
    _limit_memory(start.memory_limit_bytes)
    try:
        worker = Worker(start)
    except Exception as error:  # a backend's own code may raise anything; the other side says it
        send(connection, _failure(error))
        return
    send(connection, Done())
    while True:
        try:
            request = receive_request(connection)
        except EOFError:
            return
        _answer(worker, request, connection)


def _answer(worker: Worker, request: Request, connection: socket.socket) -> None:
    arrays = [_receive_array(connection, info) for info in request.arrays] if isinstance(request, Run) else []
    try:
        if isinstance(request, Run):
            _send_results(connection, worker.run(request, arrays))
        else:
            send(connection, _handle(worker, request))
    except Exception as error:  # foreign code is built and run here; whatever it raises is the measurement
        logging.getLogger(__name__).debug("request failed", exc_info=True)
        send(connection, _failure(error))


def _handle(worker: Worker, request: Request) -> Reply:
    if isinstance(request, Build):
        return worker.build(request)
    if isinstance(request, Time):
        return worker.time(request)
    if isinstance(request, Race):
        return worker.race(request)
    if isinstance(request, Compare):
        return worker.compare(request)
    raise TypeError(f"{type(request).__name__} is not a request that is answered twice")


def _failure(error: Exception) -> Failed:
    unsupported = isinstance(error, UnsupportedOperatorError)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TVM puts a C++ trace before the sentence that says what is wrong.
    sentence = lines[0] if isinstance(error, TunerError) and lines else (lines[-1] if lines else "no message")
    text = f"{type(error).__name__}: {sentence}"[:_MESSAGE_CHARACTERS]
    return Failed(Status.UNSUPPORTED if unsupported else Status.ERROR, text)


def _send_results(connection: socket.socket, results: Sequence[np.ndarray]) -> None:
    send(connection, Ran(tuple(ArrayInfo(array.shape, str(array.dtype)) for array in results)))
    for array in results:
        send_bytes(connection, np.ascontiguousarray(array).tobytes())


def _receive_array(connection: socket.socket, info: ArrayInfo) -> np.ndarray:
    return np.frombuffer(receive_bytes(connection), dtype=info.dtype).reshape(info.shape)


def _random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, interval: Interval
) -> np.ndarray:
    if dtype.startswith(("int", "uint", "bool")):
        return rng.integers(0, 2, size=shape).astype(dtype)
    low, high = (np.float32(bound) for bound in interval)
    return (rng.random(shape, dtype=np.float32) * (high - low) + low).astype(dtype)


def _numbered(results: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"output {position}": array for position, array in enumerate(results)}


def _is_enough(samples: Sequence[Sample], spent_s: float, timing: Timing) -> bool:
    """Say whether more samples would tell little, or cost too much."""
    quiet = _quiet(samples)
    if len(quiet) >= timing.min_samples:
        return spent_s >= timing.budget_s or _spread(quiet) <= timing.spread
    patience = 3 if len(samples) >= timing.min_samples else timing.min_samples
    return spent_s >= timing.budget_s * patience


def _quiet(samples: Sequence[Sample]) -> tuple[float, ...]:
    return tuple(sample.latency_us for sample in samples if not sample.is_disturbed)


def _spread(samples: Sequence[float]) -> float:
    first, median, third = statistics.quantiles(samples, n=4, method="inclusive")
    return (third - first) / median


def _limit_memory(limit_bytes: int | None) -> None:
    """Let allocations beyond the limit fail here, before the kernel kills some other process for memory."""
    if limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))


def _die_with_parent(parent: int) -> None:
    """End this process once its parent is gone, even amid a program that hangs."""
    while os.getppid() == parent:
        time.sleep(_WATCH_PERIOD_S)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_die_with_parent, args=(os.getppid(),), daemon=True).start()
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)

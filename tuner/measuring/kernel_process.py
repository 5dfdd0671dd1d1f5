"""Build and time finished kernels in one process that stays: for trials that take tens of milliseconds.

Kernels of one call are timed in turn, round by round, so that what others do on the machine meets all of them
alike. With one thread a sample is the processor time of that thread, which does not count while others have
the core; with several it is time on the wall. A kernel that crashes or takes too long ends the process; those
of its call are then timed one by one, each crash ending another process, so that one kernel alone fails.
A kernel that runs alone finds its weights in the cache, where in a network other weights have taken their
place; so it may read others each time (`WeightPool`): 2 MB of a product of one row then take 86 us, as in a
network, and not 26. Checked in tests/tuner/measuring/test_kernel_process.py.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tvm
from tvm.support.popen_pool import PopenWorker

from records.measurement import NOT_BY_PROGRAM
from records.workload import Tensor
from tuner.graph.relax_types import PrimFunc
from tuner.machine_faults import is_of_machine
from tuner.targets.resolution import tvm_target
from tuner.targets.target import Target

_TIMEOUT_S = 60.0
"""Of one call, the start of the process included, which takes a few seconds."""

_LEAST_SAMPLE_S = 0.008
_LONG_S = 0.05
"""A kernel that takes so long is run once for a sample, and not to warm up."""

_PACKED = "packed"
"""How the names of arguments begin that hold packed weights."""

_MOST_STRETCHES = 4096
"""Tensors of small weights that are kept: they take 10 us each to make."""

_ALIGNMENT = 64
"""Bytes that TVM's code asks an argument to begin at."""

Samples = tuple[float, ...]
"""Microseconds of one run, one for each round."""


class KernelProcess:
    """Times kernels; leaves no process behind when its block ends."""

    def __init__(self, target: Target) -> None:
        """Start nothing yet.

        Args:
            target: this machine's processor.
        """
        self.target = target
        self._worker = PopenWorker(initializer=_limit_threads, initargs=(target.num_threads,))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.kill()

    def time(self, kernels: Sequence[PrimFunc], *, rounds: int, weight_bytes: int = 0) -> list[Samples | str]:
        """Return the samples of each kernel, or why it failed.

        Args:
            kernels: finished ones, of buffers of static shapes.
            rounds: samples of each, in turn.
            weight_bytes: packed weights that kernels read before they read the same ones again.
        """
        modules = [tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}) for kernel in kernels]
        text = dict(tvm_target(self.target).export())
        timeout_s = _TIMEOUT_S * (1 + len(kernels) / 4)
        counts_own_time = self.target.num_threads == 1
        self._worker.send(
            _time_in_turn, (modules, text, rounds, counts_own_time, weight_bytes), timeout=timeout_s
        )
        process = self._worker._proc  # TVM forgets it where it has ended
        try:
            found: list[Samples | str] = self._worker.recv()
        except Exception as error:  # whatever TVM raises in the process, or its crash, or its timeout
            if len(kernels) > 1:
                alone = partial(self.time, rounds=rounds, weight_bytes=weight_bytes)
                return [alone([kernel])[0] for kernel in kernels]
            return [_why(error, is_killed=process.poll() == -signal.SIGKILL)]
        return found


def _why(error: Exception, *, is_killed: bool = False) -> str:
    """Return why a kernel failed, and whether it was the kernel."""
    reason = f"{type(error).__name__}: {str(error)[-300:]}"
    if isinstance(error, ChildProcessError):
        is_foreign = is_killed
    else:
        is_foreign = not isinstance(error, TimeoutError) and is_of_machine(error)
    return f"{NOT_BY_PROGRAM}{reason}" if is_foreign else reason


def _limit_threads(num_threads: int) -> None:
    """Set the threads of this process, before TVM's runtime starts any."""
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(num_threads)


def _time_in_turn(
    modules: Sequence[Any], target: dict[str, Any], rounds: int, counts_own_time: bool, weight_bytes: int
) -> list[Samples | str]:
    """Build kernels and time them in turn; runs in the process of its own."""
    runs: list[Callable[[int], float] | str] = []
    packed_bytes = (sum(map(_bytes_of, _packed(module["main"]))) for module in modules)
    least_bytes = max(packed_bytes, default=0)
    pool = WeightPool(weight_bytes, least_bytes)
    for module in modules:
        try:
            runs.append(_timer(module, tvm.target.Target(target), pool, counts_own_time))
        except Exception as error:  # TVM raises whatever its passes raise
            runs.append(_why(error))
    counts: list[int] = []
    for run in runs:
        first_s = 0.0 if isinstance(run, str) else run(1)
        if not isinstance(run, str) and first_s < _LONG_S:
            first_s = run(1)
        counts.append(max(1, round(_LEAST_SAMPLE_S / max(first_s, 1e-7))))
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for place, run in enumerate(runs):
            if not isinstance(run, str):
                samples[place].append(1e6 * run(counts[place]))
    return [run if isinstance(run, str) else tuple(each) for run, each in zip(runs, samples, strict=True)]


class WeightPool:
    """Memory that holds packed weights of kernels, which read one stretch of it after another's."""

    def __init__(self, weight_bytes: int, least_bytes: int) -> None:
        """Take memory.

        Args:
            weight_bytes: that are read before a stretch is read again; if fewer than a kernel's weights, it
                reads the same ones each time.
            least_bytes: of memory.
        """
        self._weight_bytes = weight_bytes
        self._memory = _filled(max(weight_bytes, least_bytes))
        self._position = 0

    def reader(self, arguments: Sequence[Any]) -> Callable[[int], list[tuple[Any, ...]]]:
        """Return what gives the packed arguments of a kernel for each of its next runs.

        Args:
            arguments: parameters of the kernel that hold packed weights.
        """
        *starts, stretch = itertools.accumulate(map(_bytes_of, arguments), initial=0)
        if not stretch:
            return lambda num_runs: [()] * num_runs
        count = max(1, min(_MOST_STRETCHES, self._weight_bytes // stretch))
        stretches = [
            tuple(
                self._tensor(place * stretch + start, argument)
                for argument, start in zip(arguments, starts, strict=True)
            )
            for place in range(count)
        ]

        def read(num_runs: int) -> list[tuple[Any, ...]]:
            first = -(-self._position // stretch) % count
            self._position = (first + num_runs) % count * stretch
            return [stretches[(first + run) % count] for run in range(num_runs)]

        return read

    def _tensor(self, start: int, argument: Any) -> Any:
        """Return a parameter's tensor where it begins in memory."""
        tensor = _tensor_of(argument)
        memory = self._memory[start : start + tensor.num_bytes]
        return tvm.runtime.from_dlpack(memory.view(tensor.dtype).reshape(tensor.shape))


def _tensor_of(argument: Any) -> Tensor:
    """Return what a parameter of a kernel is."""
    return Tensor(tuple(map(int, argument.shape)), str(argument.dtype))


def _bytes_of(argument: Any) -> int:
    """Return the bytes of a parameter's tensor, with what the next one is aligned by."""
    return -(-_tensor_of(argument).num_bytes // _ALIGNMENT) * _ALIGNMENT


@functools.lru_cache(maxsize=1)
def _filled(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return aligned memory that holds floating-point numbers from 0 to 1; the same for the next caller."""
    numbers = np.random.default_rng(0).random(num_bytes // 4 + _ALIGNMENT, dtype=np.float32)
    skipped = -numbers.ctypes.data % _ALIGNMENT
    return numbers.view(np.uint8)[skipped : skipped + num_bytes]


def _packed(kernel: PrimFunc) -> list[Any]:
    """Return the parameters of a kernel that hold packed weights."""
    return [each for each in kernel.params if _is_packed(each)]


def _is_packed(argument: Any) -> bool:
    return str(argument.name).startswith(_PACKED)


def _timer(module: Any, target: Any, pool: WeightPool, counts_own_time: bool) -> Callable[[int], float]:
    """Return what runs a kernel so many times, and says how many seconds one of them took."""
    built = tvm.build(module, target=target)
    kernel, function = built["main"], module["main"]
    read = pool.reader(_packed(function))
    tensors = [None if _is_packed(each) else _random(each) for each in function.params]
    clock = time.thread_time_ns if counts_own_time else time.perf_counter_ns

    def arguments(packed: tuple[Any, ...]) -> list[Any]:
        given = iter(packed)
        return [next(given) if each is None else each for each in tensors]

    def run(count: int) -> float:
        runs = [arguments(packed) for packed in read(count)]
        started = clock()
        for each in runs:
            kernel(*each)
        return max(1, clock() - started) / 1e9 / count

    return run


def _random(argument: Any) -> Any:
    """Return a tensor for a parameter, filled at random."""
    tensor = _tensor_of(argument)
    found = tvm.runtime.empty(tensor.shape, tensor.dtype, tvm.cpu())
    tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")(found)
    return found

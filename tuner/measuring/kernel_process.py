"""Build and time finished kernels in one process that stays: for trials that take tens of milliseconds.

Kernels of one call are timed in turn, round by round, so that what others do on the machine meets all of them
alike. With one thread a sample is the processor time of that thread, which does not count while others have
the core; with several it is time on the wall. A kernel that crashes or takes too long ends the process; those
of its call are then timed one by one, each crash ending another process, so that one kernel alone fails.
Checked in tests/tuner/measuring/test_kernel_process.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import tvm
from tvm.s_tir import meta_schedule
from tvm.support.popen_pool import PopenWorker

from tuner.graph.relax_types import PrimFunc
from tuner.targets.resolution import tvm_target
from tuner.targets.target import Target

_TIMEOUT_S = 60.0
"""Of one call, the start of the process included, which takes a few seconds."""

_LEAST_SAMPLE_S = 0.008
_LONG_S = 0.05
"""A kernel that takes so long is run once for a sample, and not to warm up."""

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

    def time(self, kernels: Sequence[PrimFunc], *, rounds: int) -> list[Samples | str]:
        """Return the samples of each kernel, or why it failed.

        Args:
            kernels: finished ones, of buffers of static shapes.
            rounds: samples of each, in turn.
        """
        modules = [tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}) for kernel in kernels]
        text = dict(tvm_target(self.target).export())
        timeout_s = _TIMEOUT_S * (1 + len(kernels) / 4)
        self._worker.send(
            _time_in_turn, (modules, text, rounds, self.target.num_threads == 1), timeout=timeout_s
        )
        try:
            found: list[Samples | str] = self._worker.recv()
        except Exception as error:  # whatever TVM raises in the process, or its crash, or its timeout
            if len(kernels) > 1:
                return [self.time([kernel], rounds=rounds)[0] for kernel in kernels]
            return [f"{type(error).__name__}: {str(error)[-300:]}"]
        return found


def _limit_threads(num_threads: int) -> None:
    """Set the threads of this process, before TVM's runtime starts any."""
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(num_threads)


def _time_in_turn(
    modules: Sequence[Any], target: dict[str, Any], rounds: int, counts_own_time: bool
) -> list[Samples | str]:
    """Build kernels and time them in turn; runs in the process of its own."""
    runs: list[Callable[[int], float] | str] = []
    for module in modules:
        try:
            runs.append(_timer(module, tvm.target.Target(target), counts_own_time))
        except Exception as error:  # TVM raises whatever its passes raise
            runs.append(f"{type(error).__name__}: {str(error)[-300:]}")
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


def _timer(module: Any, target: Any, counts_own_time: bool) -> Callable[[int], float]:
    """Return what runs a kernel so many times, and says how many seconds one of them took."""
    built = tvm.build(module, target=target)
    device = tvm.cpu()
    fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    tensors = []
    for each in meta_schedule.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False):
        tensors.append(tvm.runtime.empty(tuple(map(int, each.shape)), str(each.dtype), device))
        fill(tensors[-1])
    kernel = built["main"]
    clock = time.thread_time_ns if counts_own_time else time.perf_counter_ns

    def run(count: int) -> float:
        started = clock()
        for _ in range(count):
            kernel(*tensors)
        return max(1, clock() - started) / 1e9 / count

    return run

"""Build and time trials in one process that stays: a builder and a runner for thousands of short trials.

TVM's own builder and runner link and load a library for every trial; here it is compiled in memory and timed
at once. A trial that crashes or takes too long ends the process, counts as a
failure, and the next trial starts another. The process has as many threads as the kernels are tuned for.
Checked in tests/tuner/backends/metaschedule/test_trial_worker.py.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm.support.popen_pool import PopenWorker

from tuner.backends.metaschedule.backend import build_trial

_TIMEOUT_S = 60.0
"""Of one trial, the start of the process included, which takes a few seconds."""

_NUM_SAMPLES = 3
_LEAST_SAMPLE_MS = 20
"""Three samples of 20 ms in place of TVM's one of 100 ms: their median leaves out one disturbed sample."""


def builder_and_runner(num_threads: int) -> tuple[Any, Any]:
    """Return a builder that also measures what it built, and the runner that hands out what was measured.

    Args:
        num_threads: that a kernel may use.
    """
    measured: dict[str, tuple[list[float] | None, str]] = {}
    return _Builder(num_threads, measured), _Runner(measured)


def build_and_time(module: Any, target: Any) -> list[float]:
    """Return the samples of a scheduled kernel in seconds; runs in the process of its own."""
    built = build_trial(module, target, None)
    device = tvm.device(str(target.kind.name) if str(target.kind.name) == "cuda" else "cpu")
    fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    tensors = []
    for each in meta_schedule.arg_info.ArgInfo.from_entry_func(module):
        tensors.append(tvm.runtime.empty(tuple(map(int, each.shape)), str(each.dtype), device))
        fill(tensors[-1])
    timed = built.time_evaluator(
        built.entry_name, device, number=1, repeat=_NUM_SAMPLES, min_repeat_ms=_LEAST_SAMPLE_MS
    )
    return [float(each) for each in timed(*tensors).results]


def _limit_threads(num_threads: int) -> None:
    """Set the threads of this process, before TVM's runtime starts any."""
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(num_threads)


@derived_object
class _Builder(meta_schedule.builder.PyBuilder):
    def __init__(self, num_threads: int, measured: dict[str, tuple[list[float] | None, str]]) -> None:
        super().__init__()
        self.measured = measured
        self.numbers = itertools.count()
        self.folder = tempfile.TemporaryDirectory(prefix="tessel-trials-", ignore_cleanup_errors=True)
        self.worker = PopenWorker(initializer=_limit_threads, initargs=(num_threads,))

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        """Build and measure; called by TVM."""
        return [self._build(each) for each in build_inputs]

    def _build(self, trial: Any) -> Any:
        self.worker.send(build_and_time, (trial.mod, trial.target), timeout=_TIMEOUT_S)
        try:
            found: tuple[list[float] | None, str] = self.worker.recv(), ""
        except Exception as error:  # whatever TVM raises in the process, or its crash, or its timeout
            found = None, f"{type(error).__name__}: {str(error)[-300:]}"
        # TVM may remove the folder of each artifact, so that each gets one.
        own = Path(self.folder.name, str(next(self.numbers)))
        own.mkdir()
        path = str(own / "in-memory")
        self.measured[path] = found
        return meta_schedule.builder.BuilderResult(path, None)


@derived_object
class _Runner(meta_schedule.runner.PyRunner):
    def __init__(self, measured: dict[str, tuple[list[float] | None, str]]) -> None:
        super().__init__()
        self.measured = measured

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        """Return what was measured; called by TVM."""
        found = [self.measured.pop(str(each.artifact_path)) for each in runner_inputs]
        return [
            meta_schedule.runner.local_runner.LocalRunnerFuture(samples, error or None)
            for samples, error in found
        ]

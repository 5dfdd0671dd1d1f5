"""Builds and measures trials of MetaSchedule in the process that tunes, for many short runs on one machine.

TVM's own builder and runner start processes and link a library for every trial, so that a schedule that
crashes ends no session; a run of 32 trials takes 50 to 140 s with them. Here a trial is compiled in memory
and timed at once, by the same passes and the same evaluator: such a run takes 15 to 30 s. A crash ends it.

On a machine that others load, kernels of one thread can be timed by the processor time of that thread, which
does not count while others have the core.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import tvm
import tvm_ffi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule

from tuner.backends.metaschedule.backend import build_trial

_NUM_SAMPLES = 3
_LEAST_SAMPLE_MS = 20
"""Three samples of 20 ms in place of TVM's one of 100 ms: their median leaves out one disturbed sample."""


Clock = Literal["wall", "thread"]
"""Time on the wall, or processor time of the one thread that runs a kernel."""


def builder_and_runner(clock: Clock = "wall", kept: Path | None = None) -> tuple[Any, Any]:
    """Return a builder, and the runner that measures what it built.

    Args:
        clock: what times a trial.
        kept: file that keeps the samples of every scheduled kernel, so that equal ones are measured once.
    """
    built: dict[str, Any] = {}
    samples = KeptSamples(kept)
    return _Builder(built, samples), _Runner(built, clock, samples)


class KeptSamples:
    """Samples in seconds by scheduled kernel, in a file of one line each; several processes may add to it."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.seconds: dict[str, list[float]] = {}
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            try:
                key, seconds = json.loads(line)
            except ValueError:
                continue  # what an interruption cut off
            self.seconds[key] = seconds

    def add(self, key: str, seconds: list[float]) -> None:
        """Keep the samples of a kernel."""
        self.seconds[key] = seconds
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps([key, seconds]) + "\n")


@derived_object
class _Builder(meta_schedule.builder.PyBuilder):
    def __init__(self, built: dict[str, Any], samples: KeptSamples) -> None:
        super().__init__()
        self.built = built
        self.samples = samples
        self.numbers = itertools.count()
        self.folder = tempfile.TemporaryDirectory(prefix="tessel-trials-", ignore_cleanup_errors=True)

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        return [self._build(each) for each in build_inputs]

    def _build(self, trial: Any) -> Any:
        key = str(tvm_ffi.structural_hash(trial.mod))
        try:
            module = None if key in self.samples.seconds else build_trial(trial.mod, trial.target, None)
        except Exception as error:  # TVM raises whatever its passes raise
            return meta_schedule.builder.BuilderResult(None, str(error))
        # TVM may remove the folder of each artifact, so that each gets one.
        own = Path(self.folder.name, str(next(self.numbers)))
        own.mkdir()
        path = str(own / "in-memory")
        self.built[path] = key, module
        return meta_schedule.builder.BuilderResult(path, None)


@derived_object
class _Runner(meta_schedule.runner.PyRunner):
    def __init__(self, built: dict[str, Any], clock: Clock, samples: KeptSamples) -> None:
        super().__init__()
        self.built = built
        self.clock = clock
        self.samples = samples

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        return [self._run(each) for each in runner_inputs]

    def _run(self, trial: Any) -> Any:
        key, module = self.built.pop(str(trial.artifact_path))
        if key not in self.samples.seconds:
            evaluate = _evaluator(module, trial.args_info, _NUM_SAMPLES, self.clock)
            self.samples.add(key, evaluate())
        return meta_schedule.runner.local_runner.LocalRunnerFuture(self.samples.seconds[key], None)


def measure_in_turn(
    modules: Sequence[Any], tuned_for: Any, *, rounds: int = 9, clock: Clock = "wall"
) -> list[float]:
    """Return the median latency in microseconds of each scheduled kernel, all measured again in turn.

    What disturbs a machine for a second disturbs one round of all of them, not one of them.

    Args:
        modules: schedules of one kernel.
        tuned_for: TVM's target.
        rounds: times each is measured.
        clock: what times them.
    """
    evaluators = []
    for module in modules:
        entry = meta_schedule.arg_info.ArgInfo.from_entry_func(module)
        evaluators.append(_evaluator(build_trial(module, tuned_for, None), entry, 1, clock))
    seconds = [[evaluate()[0] for evaluate in evaluators] for _ in range(rounds)]
    return [statistics.median(column) * 1e6 for column in zip(*seconds, strict=True)]


def _evaluator(
    module: Any, arguments: Sequence[Any], num_samples: int, clock: Clock
) -> Callable[[], list[float]]:
    device = tvm.cpu()
    fill = tvm.get_global_func("tvm.contrib.random.random_fill_for_measure")
    tensors = []
    for each in arguments:
        tensors.append(tvm.runtime.empty(tuple(map(int, each.shape)), str(each.dtype), device))
        fill(tensors[-1])
    if clock == "thread":
        return lambda: [_thread_seconds(module[module.entry_name], tensors) for _ in range(num_samples)]
    timed = module.time_evaluator(
        module.entry_name, device, number=1, repeat=num_samples, min_repeat_ms=_LEAST_SAMPLE_MS
    )
    return lambda: [float(each) for each in timed(*tensors).results]


def _thread_seconds(function: Any, tensors: Sequence[Any]) -> float:
    """Return the processor time of one call, from as many as take 20 ms."""
    function(*tensors)
    calls = 1
    while True:
        started = time.thread_time_ns()
        for _ in range(calls):
            function(*tensors)
        spent_ms = (time.thread_time_ns() - started) / 1e6
        if spent_ms >= _LEAST_SAMPLE_MS / 2:
            return spent_ms / 1e3 / calls
        calls = max(2 * calls, math.ceil(calls * _LEAST_SAMPLE_MS / max(spent_ms, 1e-3)))

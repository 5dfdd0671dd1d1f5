"""A program against what else runs its model: torch eager, torch.compile and onnxruntime, in turn.

All run in this process on the same inputs and with as many threads. In each round every contender runs for
the same share of time, in an order of the round's own, once threads of who ran last are at rest; short calls
first run as often untimed, since caches hold other data. A ratio is the median over rounds of the ratio
within a round, so that other load cancels out, with a 95 % interval from order statistics, which assumes no
distribution. Calls are timed as a user makes them. Checked in tests/tessel/compiling/test_racing.py.
"""

from __future__ import annotations

import importlib.util
import io
import math
import statistics
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.runtime.manifest import TensorSpec

Run = Callable[[], object]

PROGRAM, EAGER, COMPILED, ONNXRUNTIME = "tessel", "torch eager", "torch.compile", "onnxruntime"

_LEAST_ROUNDS = 6
"""Fewer have no 95 % interval."""

_SHARE_S = 0.01
_SHARE_OF_THREADS_S = 0.05
"""Seconds that a contender runs in each round, at least once. Where calls have several threads, the first
after a rest wait for those to wake, up to three times as long as a call takes later."""

_TICK_S = 0.012
"""Seconds in which a thread that runs is seen to: Linux may count time of others at ticks of up to 10 ms."""

_LONG_US = 50_000
"""A call of so long does not feel what ran before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """What one contender took.

    Attributes:
        name: who ran the model.
        latency_us: of one call, the median over rounds.
        ratio: its latency over the program's: above 1 the program is faster.
        low: lower end of the ratio's 95 % interval.
        high: its upper end.
    """

    name: str
    latency_us: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The outcome of a race.

    Attributes:
        contenders: the program first.
        left_out: why a contender did not run, by name.
        rounds: how often each ran.
        num_threads: of each.
    """

    contenders: tuple[Contender, ...]
    left_out: Mapping[str, str]
    rounds: int
    num_threads: int

    def __str__(self) -> str:
        lines = [f"{self.rounds} rounds in turn, {self.num_threads} threads"]
        lines += [
            f"{each.name:14} {each.latency_us:12.1f} us  {each.ratio:5.2f} x  "
            f"({each.low:.2f} to {each.high:.2f})"
            for each in self.contenders
        ]
        return "\n".join([*lines, *(f"{name:14} left out: {why}" for name, why in self.left_out.items())])


class TimedRun:
    """A contender that is called for its share of a round.

    Args:
        clock: gives seconds.
    """

    def __init__(self, run: Run, clock: Callable[[], float], num_threads: int = 1) -> None:
        run()
        run()
        self._run, self._clock = run, clock
        once_us = self._mean_us(1)
        share_s = _SHARE_S if num_threads == 1 else _SHARE_OF_THREADS_S
        self._repeats = max(1, min(1000, int(share_s * 1e6 / max(once_us, 1.0))))
        self._is_short = once_us < _LONG_US

    def warm_up(self) -> None:
        """Wait for threads of those who ran before, and call a short one for a share that is not timed."""
        _rest()
        for _ in range(self._repeats if self._is_short else 0):
            self._run()

    def sample_us(self) -> float:
        """Return the mean of the calls of a share."""
        return self._mean_us(self._repeats)

    def _mean_us(self, number: int) -> float:
        began_s = self._clock()
        for _ in range(number):
            self._run()
        return (self._clock() - began_s) / number * 1e6


def race(
    contenders: Mapping[str, Run],
    *,
    rounds: int,
    num_threads: int = 1,
    clock: Callable[[], float] | None = None,
) -> tuple[Contender, ...]:
    """Return what each took; ratios are to the first.

    Args:
        contenders: what is called, by name.
        rounds: how often each runs.
        num_threads: of their calls.
        clock: gives seconds; the wall's if None.

    Raises:
        ValueError: there are too few rounds for an interval.
    """
    if rounds < _LEAST_ROUNDS:
        raise ValueError(f"rounds is {rounds}; an interval needs {_LEAST_ROUNDS}")
    clock = clock or time.perf_counter
    timed = {name: TimedRun(run, clock, num_threads) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    rng = np.random.default_rng(0)
    for _ in range(rounds):
        for name in rng.permutation(list(contenders)):
            timed[name].warm_up()
            samples[name].append(timed[name].sample_us())
    first = next(iter(samples.values()))
    return tuple(_compared(name, taken, first) for name, taken in samples.items())


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median of independent values with probability 0.95 at least.

    Source: the sign test's (David and Nagaraja, Order Statistics, section 7.1).
    """
    ordered, number = sorted(values), len(values)
    below, left_out = 0.0, 0
    while left_out < number // 2:
        below += math.comb(number, left_out) / 2**number
        if below > 0.025:
            break
        left_out += 1
    return ordered[max(0, left_out - 1)], ordered[min(number - 1, number - left_out)]


def draw_inputs(specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Return inputs for a program: normal numbers, and zeros where whole ones are wanted."""
    rng = np.random.default_rng(0)
    return [
        rng.standard_normal(spec.shape).astype(spec.dtype)
        if spec.dtype.startswith("float")
        else np.zeros(spec.shape, spec.dtype)
        for spec in specs
    ]


@contextmanager
def torch_contenders(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    num_threads: int,
    against: Collection[str],
) -> Iterator[tuple[dict[str, Run], dict[str, str]]]:
    """Give what runs a torch module, with so many threads meanwhile, and why others do not."""
    import torch  # noqa: PLC0415 - an optional extra

    runs: dict[str, Run] = {}
    left_out: dict[str, str] = {}
    threads, was_training = torch.get_num_threads(), module.training
    torch.set_num_threads(num_threads)
    module.eval()
    try:
        with torch.inference_mode():
            if EAGER in against:
                _try(EAGER, lambda: lambda: module(*args, **kwargs), runs, left_out)
            if COMPILED in against:
                compiled: Any = torch.compile(module)
                _try(COMPILED, lambda: lambda: compiled(*args, **kwargs), runs, left_out)
            if ONNXRUNTIME in against:
                leaves = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
                arrays = [leaf.detach().numpy() for leaf in leaves]
                _try(
                    ONNXRUNTIME,
                    lambda: onnxruntime_run(exported(module, args, kwargs), arrays, num_threads),
                    runs,
                    left_out,
                )
            yield runs, left_out
    finally:
        torch.set_num_threads(threads)
        module.train(was_training)


def onnxruntime_run(model: bytes | str, arrays: Sequence[np.ndarray], num_threads: int) -> Run:
    """Return what runs an ONNX model by onnxruntime."""
    import onnxruntime  # noqa: PLC0415 - an optional extra

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = num_threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {each.name: array for each, array in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feeds)


def exported(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """Return a torch module as an ONNX model, by the exporter that is installed."""
    import torch  # noqa: PLC0415 - an optional extra

    model = io.BytesIO()
    has_new = importlib.util.find_spec("onnxscript") is not None
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        export: Any = torch.onnx.export  # which writes to memory, too, though its types do not say so
        export(module, tuple(args), model, kwargs=dict(kwargs), dynamo=has_new)
    return model.getvalue()


def _try(name: str, make: Callable[[], Run], runs: dict[str, Run], left_out: dict[str, str]) -> None:
    try:
        run = make()
        run()
    except Exception as error:  # foreign code compiles and runs
        left_out[name] = _sentence(error)
    else:
        runs[name] = run


def _sentence(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if not isinstance(tree, tuple | list):
        yield tree
        return
    for item in tree:
        yield from _leaves(item)


def _rest() -> None:
    """Wait until nothing runs in this process, a fifth of a second at most.

    Threads of onnxruntime wait in a loop for the next call, 37 ms of a processor that others would have.
    """
    for _ in range(20):
        before_s = time.process_time()
        time.sleep(_TICK_S)
        if time.process_time() - before_s < 0.0005:
            return


def _compared(name: str, taken: Sequence[float], first: Sequence[float]) -> Contender:
    ratios = [mine / theirs for mine, theirs in zip(taken, first, strict=True)]
    low, high = median_interval(ratios)
    return Contender(
        name=name,
        latency_us=statistics.median(taken),
        ratio=statistics.median(ratios),
        low=low,
        high=high,
    )

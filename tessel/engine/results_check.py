"""Check the results of real ranks: each loss and gradient against those of a reference model.

The caller provides the reference: losses by micro-batch and mean gradients by weight, with a name that
describes their origin. The gradient of a weight held by several stages is the sum of theirs. That a stage on
several ranks returns the same results on each is checked as well. Checked by injected faults in
tests/tessel/engine/ranks/test_faults.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from tessel.comparison import shown_name
from tessel.engine.job import RankResult
from tuner.numerical_error import (
    Deviation,
    compare_gradients,
    compare_tensor,
    find_non_finite,
    loss_tolerance_of,
    tolerance_of,
    worst,
)
from tuner.plan import TiedParameter

Reference = tuple[dict[int, float], Mapping[str, np.ndarray]]
"""Loss by micro-batch and mean gradient by weight of the whole model."""

RankGradients = Mapping[tuple[str, int], Sequence[tuple[int, np.ndarray]]]
"""By weight and stage: each rank that holds the stage, and the gradient there."""

UNPIPELINED = "the unpipelined model"
"""What a reference is called unless it has another name."""

_SHOWN = 3
"""Wrong tensors that a message names; it counts the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedResults:
    """What results are compared with, and what is known of the weights.

    Attributes:
        reference: returns losses and mean gradients of the whole model for so many micro-batches. Losses are
            compared if it returns any.
        name: what makes them, in words.
        tied: groups of weights that are one and the same; equal names in several stages are one anyway.
        parameters: weights of each stage, where they are known, to say whose gradient is missing.
        types: returns the data types that the stages compute in, beside those of gradients and losses. Asked
            where a result is not the reference's: weights of float32 may be multiplied in a half.
        exact: returns mean gradients in double precision for so many micro-batches, or None. Asked where a
            gradient is not the reference's: a sum of terms that cancel is rounding errors in both.
        outputs: gives the whole model's outputs of each of so many micro-batches, by name, one after another,
            for inference; None where there is nothing to compare outputs with.
    """

    reference: Callable[[int], Reference]
    name: str = UNPIPELINED
    tied: Sequence[Sequence[TiedParameter]] = ()
    parameters: Sequence[Sequence[str]] = ()
    types: Callable[[], Collection[str]] | None = None
    exact: Callable[[int], Mapping[str, np.ndarray] | None] | None = None
    outputs: Callable[[int], Iterable[Mapping[str, np.ndarray]]] | None = None


class TensorCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One gradient, loss or output of a run beside the reference's.

    Attributes:
        schedule: which schedule made it.
        kind: what it is.
        tensor: the weight's or the output's name; `loss` for a loss.
        stages: stages that hold the weight, or that make the loss or the output.
        micro_batch: of a loss or an output; None of a gradient, which is the mean over all of them.
        relative_error: see `tuner.numerical_error.Deviation`.
        fault: likewise.
        tolerance: largest relative error that passes.
    """

    schedule: str
    kind: Literal["gradient", "loss", "output"]
    tensor: str
    stages: tuple[int, ...]
    micro_batch: int | None = None
    relative_error: float | None = None
    fault: str = ""
    tolerance: float

    @property
    def is_right(self) -> bool:
        """Whether it is the reference's within the tolerance."""
        return self._deviation.is_within(self.tolerance)

    @property
    def place(self) -> str:
        """Which tensor of which stage it is, in words."""
        whose = shown_name(self.schedule)
        if self.kind == "loss":
            return f"the loss of micro-batch {self.micro_batch} (stage {self.stages[-1]}, {whose})"
        stages = " + ".join(map(str, self.stages)) or "unknown"
        plural = "s" if len(self.stages) > 1 else ""
        if self.kind == "output":
            return (
                f"the output {self.tensor} of micro-batch {self.micro_batch} "
                f"(stage{plural} {stages}, {whose})"
            )
        return f"the gradient of {self.tensor} (stage{plural} {stages}, {whose})"

    def describe(self) -> str:
        """Return a sentence without its stop: what is wrong with it."""
        return f"{self.place} {self._deviation.describe(self.tolerance)}"

    @property
    def _deviation(self) -> Deviation:
        return Deviation(tensor=self.tensor, relative_error=self.relative_error, fault=self.fault)


class ResultsCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What comparing a run's results showed.

    Attributes:
        reference_name: what they were compared with; empty where nothing was compared.
        num_gradients: gradients compared, over all schedules; without a reference, those that were searched
            for NaN and infinity.
        num_losses: losses compared, likewise.
        num_outputs: outputs compared, likewise; of inference alone.
        worst_gradient: the gradient furthest from the reference's; None where none was compared.
        worst_loss: likewise.
        worst_output: likewise.
        failures: all that are wrong, the worst first.
    """

    reference_name: str = ""
    num_gradients: int = 0
    num_losses: int = 0
    num_outputs: int = 0
    worst_gradient: TensorCheck | None = None
    worst_loss: TensorCheck | None = None
    worst_output: TensorCheck | None = None
    failures: tuple[TensorCheck, ...] = ()

    def describe_failures(self) -> str:
        """Return one line that names the worst tensors; empty where all are right."""
        if not self.failures:
            return ""
        shown = "; ".join(each.describe() for each in self.failures[:_SHOWN])
        rest = len(self.failures) - _SHOWN
        more = f"; and {rest} more tensor{'s' if rest > 1 else ''}" if rest > 0 else ""
        wrong = f"not those of {self.reference_name}" if self.reference_name else "not all finite"
        return f"the results are {wrong}: {shown}{more}"


def check_results(
    found: Mapping[str, tuple[Sequence[RankResult], RankGradients]],
    expected: ExpectedResults | None,
    *,
    micro_batches: int,
    last_stage: int,
    is_trained: bool,
) -> ResultsCheck:
    """Compare what ranks computed with the reference.

    Losses that the reference lacks altogether, and all results where there is none, are to be finite.

    Args:
        found: by schedule, what the ranks reported and the gradients that they wrote.
        expected: what they are compared with, if there is anything.
        micro_batches: how many there were.
        last_stage: the stage that makes losses.
        is_trained: whether gradients are compared.
    """
    odd_losses = [
        check
        for name, (results, _) in found.items()
        for check in _non_finite_losses(name, results, last_stage)
    ]
    if expected is None:
        return _finite_alone(found, odd_losses, is_trained=is_trained)
    losses, gradients = expected.reference(micro_batches)
    types = {str(each.dtype) for each in gradients.values()}
    types |= {each for results, _ in found.values() for result in results for each in result.gradient_types}
    weights = (gradients, expected.tied, expected.parameters)
    by_schedule = {name: by_rank for name, (_, by_rank) in found.items()} if is_trained else {}

    def compare(exact: Mapping[str, np.ndarray] | None) -> tuple[list[TensorCheck], list[TensorCheck]]:
        of_gradients = _checks_of_gradients(by_schedule, *weights, types, exact=exact)
        of_losses = [
            check
            for name, (results, _) in found.items()
            for check in (_check_losses(name, results, losses, last_stage, types) if losses else ())
        ]
        return of_gradients, of_losses

    of_gradients, of_losses = compare(None)
    if expected.types is not None and not _all_right(*of_gradients, *of_losses):
        types |= set(expected.types())
        of_gradients, of_losses = compare(None)
    if expected.exact is not None and not _all_right(*of_gradients):
        of_gradients, of_losses = compare(expected.exact(micro_batches))
    checks = [*of_gradients, *of_losses]
    wrong = [check for check in (*checks, *(() if losses else odd_losses)) if not check.is_right]
    failures = sorted(wrong, key=severity, reverse=True)
    return ResultsCheck(
        reference_name=expected.name if checks else "",
        num_gradients=len(of_gradients),
        num_losses=len(of_losses),
        worst_gradient=max(of_gradients, key=severity, default=None),
        worst_loss=max(of_losses, key=severity, default=None),
        failures=tuple(failures),
    )


def _finite_alone(
    found: Mapping[str, tuple[Sequence[RankResult], RankGradients]],
    odd_losses: Sequence[TensorCheck],
    *,
    is_trained: bool,
) -> ResultsCheck:
    """Return what is known of results without a reference: which are not finite, losses first."""
    by_schedule = {name: by_rank for name, (_, by_rank) in found.items()} if is_trained else {}
    odd = [check for name, by_rank in by_schedule.items() for check in _non_finite_gradients(name, by_rank)]
    return ResultsCheck(
        num_gradients=sum(map(len, by_schedule.values())),
        num_losses=sum(len(_losses_of(name, results)) for name, (results, _) in found.items()),
        worst_gradient=next(iter(odd), None),
        worst_loss=next(iter(odd_losses), None),
        failures=(*odd_losses, *odd),
    )


def _non_finite_losses(
    schedule: str, results: Sequence[RankResult], last_stage: int
) -> Iterable[TensorCheck]:
    for micro_batch, losses in sorted(_losses_of(schedule, results).items()):
        if (deviation := find_non_finite("loss", np.array(losses))) is not None:
            yield TensorCheck(
                schedule=schedule,
                kind="loss",
                tensor="loss",
                stages=(last_stage,),
                micro_batch=micro_batch,
                fault=deviation.fault,
                tolerance=loss_tolerance_of(()),
            )


def _non_finite_gradients(schedule: str, by_rank: RankGradients) -> Iterable[TensorCheck]:
    for (weight, stage), copies in by_rank.items():
        odd = (find_non_finite(weight, gradient) for _, gradient in copies)
        if (deviation := worst(each for each in odd if each is not None)) is not None:
            yield TensorCheck(
                schedule=schedule,
                kind="gradient",
                tensor=weight,
                stages=(stage,),
                fault=deviation.fault,
                tolerance=tolerance_of(()),
            )


def _all_right(*checks: TensorCheck) -> bool:
    return all(check.is_right for check in checks)


def severity(check: TensorCheck) -> float:
    """Return what orders checks: what no number can say before what one can, which counts in tolerances."""
    return float("inf") if check.relative_error is None else check.relative_error / check.tolerance


def _checks_of_gradients(
    found: Mapping[str, RankGradients],
    expected: Mapping[str, np.ndarray],
    tied: Sequence[Sequence[TiedParameter]],
    parameters: Sequence[Sequence[str]],
    types: Iterable[str],
    *,
    exact: Mapping[str, np.ndarray] | None,
) -> list[TensorCheck]:
    """Compare every schedule's gradients; `exact` is that of `compare_gradients`."""
    return [
        check
        for name, by_rank in found.items()
        for check in _check_gradients(name, by_rank, expected, tied, parameters, types, exact)
    ]


def _check_gradients(
    schedule: str,
    by_rank: RankGradients,
    expected: Mapping[str, np.ndarray],
    tied: Sequence[Sequence[TiedParameter]],
    parameters: Sequence[Sequence[str]],
    types: Iterable[str],
    exact: Mapping[str, np.ndarray] | None,
) -> Iterable[TensorCheck]:
    known_as = {(member.name, member.stage): group[0].name for group in tied for member in group}
    parts: dict[str, dict[int, np.ndarray]] = {}
    for (weight, stage), copies in by_rank.items():
        parts.setdefault(known_as.get((weight, stage), weight), {})[stage] = copies[0][1]
    holders = {name: tuple(sorted(by_stage)) for name, by_stage in parts.items()}
    for stage, names in enumerate(parameters):
        for name in names:
            leader = known_as.get((name, stage), name)
            holders[leader] = tuple(sorted({*holders.get(leader, ()), stage}))
    tolerance = tolerance_of((*types, *(str(each.dtype) for each in _all(by_rank))))
    with np.errstate(invalid="ignore", over="ignore"):  # What is not finite is found below, and named.
        totals = {name: _sum(by_stage) for name, by_stage in parts.items()}
    deviations = compare_gradients(totals, expected, exact=exact, tolerance=tolerance)
    for deviation in (*deviations, *_odd_copies(by_rank, known_as, tolerance)):
        name = deviation.tensor
        odd = tuple(stage for stage, part in parts.get(name, {}).items() if not np.isfinite(part).all())
        yield TensorCheck(
            schedule=schedule,
            kind="gradient",
            tensor=name,
            stages=odd or holders.get(name, ()),
            relative_error=deviation.relative_error,
            fault=deviation.fault,
            tolerance=tolerance,
        )


def _odd_copies(
    by_rank: RankGradients, known_as: Mapping[tuple[str, int], str], tolerance: float
) -> Iterable[Deviation]:
    """Yield each weight whose gradient is not the same on all ranks of its stage."""
    for place, ((first, mine), *others) in by_rank.items():
        for rank, other in others:
            found = compare_tensor(known_as.get(place, place[0]), other, mine)
            if not found.is_within(tolerance) and np.isfinite(mine).all():
                fault = f"differs between ranks {first} and {rank} of its stage: on the second it "
                yield Deviation(tensor=found.tensor, fault=fault + found.describe(tolerance))


def _check_losses(
    schedule: str,
    results: Sequence[RankResult],
    expected: Mapping[int, float],
    last_stage: int,
    types: Iterable[str],
) -> Iterable[TensorCheck]:
    tolerance = loss_tolerance_of(types)
    found = _losses_of(schedule, results)
    for micro_batch in sorted({*expected, *found}):
        deviation = _loss_deviation(found.get(micro_batch, ()), expected.get(micro_batch))
        yield TensorCheck(
            schedule=schedule,
            kind="loss",
            tensor="loss",
            stages=(last_stage,),
            micro_batch=micro_batch,
            relative_error=deviation.relative_error,
            fault=deviation.fault,
            tolerance=tolerance,
        )


def _losses_of(schedule: str, results: Sequence[RankResult]) -> dict[int, list[float]]:
    """Return every rank's value of each micro-batch's loss."""
    found: dict[int, list[float]] = {}
    for result in results:
        for micro_batch, loss in result.losses[schedule].items():
            found.setdefault(micro_batch, []).append(loss)
    return found


def _loss_deviation(found: Sequence[float], expected: float | None) -> Deviation:
    """Compare every rank's value of one loss with the reference's."""
    if expected is None:
        return Deviation(tensor="loss", fault="was made, but the reference has none")
    deviations = (compare_tensor("loss", np.array([loss]), np.array([expected]), least=0.0) for loss in found)
    return worst(deviations) or Deviation(tensor="loss", fault="is missing")


def _all(by_rank: RankGradients) -> Iterable[np.ndarray]:
    return (gradient for copies in by_rank.values() for _, gradient in copies)


def _sum(by_stage: Mapping[int, np.ndarray]) -> np.ndarray:
    first, *others = by_stage.values()
    for other in others:
        first = first + other
    return first

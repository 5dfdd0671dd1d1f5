"""Whether a whole program's results are the model's, and which part is to blame where they are not.

Both run on the same random inputs; nothing is known of other inputs. Checked in
tests/tuner/test_wrong_parts.py.
"""

from __future__ import annotations

import logging

from records.workload import describe
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.numerical_error import COMPARISON, Deviation, tolerance_of
from tuner.partitioned_function import PartitionedFunction, binding
from tuner.session import Session, TuningProgress, checked_error
from tuner.wrong_parts import WrongPart, find_wrong_part, record_wrong_part

logger = logging.getLogger(__name__)


class WrongNumbersError(Exception):
    """A mix whose results are not the model's, and the result that is furthest off."""

    def __init__(self, deviation: Deviation) -> None:
        super().__init__(deviation)
        self.deviation = deviation


def check_whole(session: Session, model: Model, mix: PartitionedFunction) -> float | None:
    """Return the mix's error against the unpartitioned model; None where nothing runs.

    The unpartitioned model has this project's own schedules, which may be what is wrong: a difference counts
    if there is one to plain loops too.

    Raises:
        WrongNumbersError: the mix differs by more than reordered sums explain.
        TunerError: the model itself gives no numbers to compare with, whoever runs it.
    """
    if session.pricing.mode == "model":
        return None
    session.on_progress(TuningProgress(text="checking the mix against the unpartitioned model"))
    tolerance = _tolerance(mix)
    scheduled = _compared(session, model, mix, unscheduled=False)
    if scheduled.is_within(tolerance):
        return scheduled.relative_error
    plain = _compared(session, model, mix, unscheduled=True)
    if not plain.is_within(tolerance):
        _check_model(session, model, tolerance)
        raise WrongNumbersError(plain)
    logger.warning(
        "the unpartitioned %s with this project's schedules differs from plain loops (%s %s); the "
        "partitioned one does not, so it is kept; please report the model",
        model.name,
        scheduled.tensor,
        scheduled.describe(tolerance),
    )
    return plain.relative_error


def drop_wrong_part(
    session: Session, model: Model, mix: PartitionedFunction, deviation: Deviation
) -> WrongPart:
    """Find the part that makes a mix wrong, record and name it."""
    session.on_progress(TuningProgress(text="finding the part that gives wrong numbers"))
    tolerance = _tolerance(mix)
    wrong = find_wrong_part(
        mix,
        lambda module: session.measurer.compare(module, model.module, unscheduled=True),
        tolerance=tolerance,
        deviation=deviation,
    )
    record_wrong_part(session.measurer, mix.priced.graph, wrong)
    logger.warning(
        "%s gives wrong numbers for %s in %s: %s of the whole %s; this is recorded, and the choice made "
        "again without it",
        wrong.candidate.backend,
        ", ".join(wrong.operators),
        model.name,
        wrong.deviation.tensor,
        wrong.deviation.describe(tolerance),
    )
    return wrong


def _tolerance(mix: PartitionedFunction) -> float:
    return tolerance_of(tensor.dtype for tensor in mix.priced.workload.values)


def _compared(session: Session, model: Model, mix: PartitionedFunction, *, unscheduled: bool) -> Deviation:
    """Return the mix's result that is furthest off, from the records where it passed before."""
    workload = mix.priced.workload
    checked = describe(
        "model", workload.inputs, workload.operators, workload.results, [("check", "outputs"), COMPARISON]
    )
    return checked_error(
        session,
        checked,
        # Where weights are known as such, they are drawn as small as their layer asks.
        settings=f"partition={mix.fingerprint}{binding(mix.priced)}"
        + ("" if model.training else ";scaled-weights")
        + (";unscheduled" if unscheduled else ""),
        tolerance=_tolerance(mix),
        check=lambda: session.measurer.compare(mix.module, model.module, unscheduled=unscheduled),
    )


def _check_model(session: Session, model: Model, tolerance: float) -> None:
    """See that the unpartitioned model equals itself: where it makes NaN, no part is to blame."""
    found = session.measurer.compare(model.module, model.module, unscheduled=True)
    if not found.is_within(tolerance):
        raise TunerError(
            f"{model.name} gives no numbers to compare with on random inputs: {found.tensor} "
            f"{found.describe(tolerance)}; check the model, or the range of values that it takes"
        )

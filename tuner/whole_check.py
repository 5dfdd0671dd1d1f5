"""Whether a whole program's results are the model's, and which part is to blame where they are not.

Both run on the same random inputs; nothing is known of other inputs. Checked in
tests/tuner/test_wrong_parts.py.
"""

from __future__ import annotations

import logging
import math

from records.workload import describe
from tuner.backends.protocol import IRModule
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.partitioned_function import PartitionedFunction, binding
from tuner.session import Session, TuningProgress, checked_error
from tuner.wrong_parts import WrongPart, find_wrong_part, record_wrong_part

logger = logging.getLogger(__name__)

MAX_RELATIVE_ERROR = 1e-3
"""Largest error of float32 results that reordered sums explain; beyond it a partition is refused."""


class WrongNumbersError(Exception):
    """A mix whose results are not the model's, and by how much they differ."""

    def __init__(self, error: float) -> None:
        super().__init__(error)
        self.error = error


def check_whole(session: Session, model: Model, mix: PartitionedFunction) -> float | None:
    """Return the mix's error against the unpartitioned model; None where nothing runs.

    The unpartitioned model has this project's own schedules, which may be what is wrong: a difference counts
    if there is one to plain loops too.

    Raises:
        WrongNumbersError: the mix differs by more than reordered sums explain.
    """
    if session.pricing.mode == "model":
        return None
    session.on_progress(TuningProgress(text="checking the mix against the unpartitioned model"))
    error = _error_of(session, model, mix, unscheduled=False)
    if error <= MAX_RELATIVE_ERROR:
        return error
    plain = _error_of(session, model, mix, unscheduled=True)
    if plain > MAX_RELATIVE_ERROR:
        raise WrongNumbersError(plain)
    logger.warning(
        "the unpartitioned %s with this project's schedules differs from plain loops by %.1e; the "
        "partitioned one does not, so it is kept; please report the model",
        model.name,
        error,
    )
    return plain


def _error_of(session: Session, model: Model, mix: PartitionedFunction, *, unscheduled: bool) -> float:
    """Return a mix's error, from the records where it was compared before; infinite where shapes differ."""
    workload = mix.priced.workload
    checked = describe("model", workload.inputs, workload.operators, workload.results, [("check", "outputs")])
    measured: list[float] = []

    def check() -> float:
        measured.append(session.measurer.compare(mix.module, model.module, unscheduled=unscheduled))
        return measured[-1]

    try:
        return checked_error(
            session,
            checked,
            # Where weights are known as such, they are drawn as small as their layer asks.
            settings=f"partition={mix.fingerprint}{binding(mix.priced)}"
            + ("" if model.training else ";scaled-weights")
            + (";unscheduled" if unscheduled else ""),
            check=check,
        )
    except TunerError:
        if measured and not math.isfinite(measured[-1]):
            return math.inf
        raise


def drop_wrong_part(session: Session, model: Model, mix: PartitionedFunction, error: float) -> WrongPart:
    """Find the part that makes a mix wrong, record and name it."""
    session.on_progress(TuningProgress(text="finding the part that gives wrong numbers"))

    def error_of(module: IRModule) -> float:
        found = session.measurer.compare(module, model.module, unscheduled=True)
        return found if math.isfinite(found) else math.inf

    wrong = find_wrong_part(mix, error_of, tolerance=MAX_RELATIVE_ERROR, error=error)
    record_wrong_part(session.measurer, mix.priced.graph, wrong)
    logger.warning(
        "%s gives wrong numbers for %s in %s: the results differ from the unpartitioned model's by %.1e of "
        "the largest, more than the %.0e that reordered sums explain; this is recorded, and the choice made "
        "again without it",
        wrong.candidate.backend,
        ", ".join(wrong.operators),
        model.name,
        wrong.error,
        MAX_RELATIVE_ERROR,
    )
    return wrong

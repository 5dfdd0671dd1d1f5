"""Check the results of an end-to-end program against the model's, and find the faulty part if they differ.

An imported model is compared with the program that it comes from, under its own framework and on its own
weights; a model that was written here with the unpartitioned one, on random inputs. Nothing is known of other
inputs. Checked in tests/tuner/tuning/test_wrong_parts.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from records import Workload
from records.workload import describe
from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.graph.relax_types import IRModule
from tuner.numerical_error import COMPARISON, Deviation, tolerance_of
from tuner.tuning.import_check import compare_with_reference, reference_settings
from tuner.tuning.partitioned_function import PartitionedFunction, binding
from tuner.tuning.session import Session, TuningProgress, checked_error
from tuner.tuning.wrong_parts import WrongPart, find_wrong_part, record_wrong_part

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
    tolerance = _tolerance(mix)
    if model.reference is not None:
        session.on_progress(TuningProgress(text="checking the mix against the model's own program"))
        found = _compared_with_reference(session, model, mix)
        if not found.is_within(tolerance):
            raise WrongNumbersError(found)
        return found.relative_error
    session.on_progress(TuningProgress(text="checking the mix against the unpartitioned model"))
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
        _comparison(session, model),
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


def _comparison(session: Session, model: Model) -> Callable[[IRModule], Deviation]:
    """Return what compares a module with the model's own program, or else with plain loops."""
    if model.reference is None:
        return lambda module: session.measurer.compare(module, model.module, unscheduled=True)
    inputs, outputs = model.reference.draw(model.inputs, session.seed)
    expected = outputs[:1] if model.training else outputs
    return lambda module: compare_with_reference(model, session, module, inputs, expected)


def _compared_with_reference(session: Session, model: Model, mix: PartitionedFunction) -> Deviation:
    """Return the mix's result that is furthest off, from the records where it passed before."""
    partition = f"partition={mix.fingerprint}{binding(mix.priced)}"
    return checked_error(
        session,
        _checked(mix),
        settings=f"{reference_settings(model, session)};{partition}",
        tolerance=_tolerance(mix),
        check=lambda: _comparison(session, model)(mix.module),
    )


def _checked(mix: PartitionedFunction) -> Workload:
    workload, facts = mix.priced.workload, [("check", "outputs"), COMPARISON]
    return describe("model", workload.inputs, workload.operators, workload.results, facts)


def _compared(session: Session, model: Model, mix: PartitionedFunction, *, unscheduled: bool) -> Deviation:
    """Return the mix's result that is furthest off, from the records where it passed before."""
    return checked_error(
        session,
        _checked(mix),
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

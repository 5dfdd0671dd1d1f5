"""Compare an imported model with the program that it comes from, once, before anything is measured.

Every later check compares one of our own programs with another, and an import that is wrong is wrong in both.
So the imported program is run as a whole, without any partition, beside the user's own under its own
framework. The outcome is a record that names code, weights, mode and seed: a second run compares nothing.
Checked in tests/tuner/test_import_check.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from records import Measurement, Status, Workload
from records.workload import describe
from tuner.describe import describe_function
from tuner.difference import Difference, largest_difference
from tuner.errors import TunerError
from tuner.frontend.loss import with_logits
from tuner.frontend.model import IRModule, Model, Reference
from tuner.session import Session, TuningProgress

logger = logging.getLogger(__name__)

MAX_IMPORT_ERROR = 1e-3
"""Largest error, relative to the largest output, that other orders of sums and other kernels explain."""

MAX_HALF_IMPORT_ERROR = 2e-2
"""The same where numbers have 11 bits or fewer."""


def check_import(model: Model, session: Session) -> float | None:
    """Return the largest error of an imported model against its own program; see `tuner.difference`.

    Outputs are compared, and for training the loss, once for each model, seed and environment.

    Returns:
        None for a model that was written here, which has nothing to be compared with.

    Raises:
        TunerError: the import is wrong; names the first operator that is, or else the output.
    """
    reference = model.reference
    if reference is None:
        return None
    return recorded_check(
        model,
        session,
        reference,
        what="import",
        settings="",
        limit=import_limit(model),
        check=lambda: _difference(model, reference, session),
        refuse=lambda difference: _refusal(model, reference, session, difference),
    )


def recorded_check(
    model: Model,
    session: Session,
    reference: Reference,
    *,
    what: str,
    settings: str,
    limit: float,
    check: Callable[[], Difference],
    refuse: Callable[[Difference], str],
) -> float:
    """Return the error of a comparison with a reference, from the records where it was made before.

    A comparison that fails is recorded as the failure that it is, and made again the next time.

    Args:
        model: what is compared.
        session: where, and with which seed.
        reference: with what.
        what: names the comparison.
        settings: what else the outcome depends on.
        limit: largest error that passes.
        check: compares.
        refuse: says what is wrong, in one sentence.

    Raises:
        TunerError: the error is beyond the limit, or there is none.
    """
    workload = _workload(model, what)
    settings = ";".join(
        [
            f"mode={reference.mode}",
            f"seed={session.seed}",
            f"program={reference.fingerprint(model)}",
            *([settings] if settings else []),
        ]
    )
    found = session.measurer.find(workload, reference.label, settings=settings)
    if found is not None and found.measurement.relative_error is not None:
        return found.measurement.relative_error
    start = time.perf_counter()
    difference = check()
    message = "" if difference.error <= limit else refuse(difference)
    session.store.append(
        workload,
        Measurement(
            workload_fingerprint=workload.fingerprint,
            backend=reference.label,
            settings=settings,
            target=session.target.text,
            environment=session.measurer.environment(reference.label),
            status=Status.ERROR if message else Status.OK,
            samples_us=() if message else ((time.perf_counter() - start) * 1e6,),
            message=message,
            relative_error=None if message else difference.error,
            measured_at=time.time(),
            seed=session.seed,
        ),
    )
    session.measurer.new_measurements += 1
    if message:
        raise TunerError(message)
    return difference.error


def import_limit(model: Model) -> float:
    """Return the largest error that a model's types explain."""
    dtypes = {str(variable.ty.dtype.dtype) for variable in model.module["main"].params}
    return MAX_HALF_IMPORT_ERROR if dtypes & {"float16", "bfloat16"} else MAX_IMPORT_ERROR


def _workload(model: Model, what: str) -> Workload:
    workload = describe_function(model.module["main"], "model", module=model.module)
    return describe("model", workload.inputs, workload.operators, workload.results, [("check", what)])


def _difference(model: Model, reference: Reference, session: Session) -> Difference:
    session.on_progress(TuningProgress(text="comparing the import with the model's own program"))
    inputs, expected = reference.draw(model.inputs, session.seed)
    return outputs_difference(model, session, with_logits(model), inputs, expected)


def outputs_difference(
    model: Model,
    session: Session,
    module: IRModule,
    inputs: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
) -> Difference:
    """Run a module that takes what the model takes, and compare what it gives.

    Args:
        model: whose weights are used.
        session: what runs it.
        module: what is run.
        inputs: of the model, by name.
        expected: its outputs; for training the loss comes first.
    """
    weights = [np.asarray(model.parameters[name]) for name in model.parameter_names]
    found = session.measurer.run(module, [*inputs.values(), *weights])
    names = _output_names(max(len(expected), len(found)), has_loss=model.training)
    return largest_difference(
        dict(zip(names, expected, strict=False)), dict(zip(names, found, strict=False)), checks_types=True
    )


def _output_names(number: int, *, has_loss: bool) -> list[str]:
    names = ["the loss"] if has_loss else []
    others = number - len(names)
    return names + (["the output"] if others == 1 else [f"output {index}" for index in range(others)])


def _refusal(model: Model, reference: Reference, session: Session, difference: Difference) -> str:
    """Say what is wrong with an import, and where it begins."""
    session.on_progress(TuningProgress(text="looking for the operator that is imported wrongly"))
    inputs, _ = reference.draw(model.inputs, session.seed)
    try:
        place = reference.locate(model, inputs, session.measurer.run, import_limit(model))
    except Exception:  # foreign code is run; what is wrong stands without its place
        logger.debug("the operator was not found", exc_info=True)
        place = ""
    first = f"; {place} is the first that differs" if place else ""
    return (
        f"{model.name} is imported wrongly: {difference} against the model's own program{first}; write the "
        "model without that operator"
    )

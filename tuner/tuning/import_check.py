"""Compare an imported model with its source program, once, before anything is measured.

Every later check compares one of our own programs with another, and an import that is wrong is wrong in both.
So the imported program is run as a whole, without any partition, beside the user's own under its own
framework; that of an ONNX file beside the file itself, by a runtime of others, where one is installed and the
model is not too large. A torch module is called twice, so that state which its program lacks is found. The
outcome is a record that names code, weights, mode and seed: a second run compares nothing. Checked in
tests/tuner/tuning/test_import_check.py and test_onnx_import_check.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from records import Workload
from records.workload import describe
from tuner.errors import NotComparableError, UnsupportedOperatorError, WrongImportError
from tuner.frontend.loading import with_torch_calls
from tuner.frontend.loss import with_logits
from tuner.frontend.model import IRModule, Model, Reference, Source
from tuner.lowering.workload_of import workload_of
from tuner.numerical_error import COMPARISON, Deviation, compare_outputs, tolerance_of, worst
from tuner.tuning.session import Session, TuningProgress, checked_error

logger = logging.getLogger(__name__)

_CALLS = 2
"""Calls of a torch module that are compared: state shows in the second."""


def verify_import(model: Model, session: Session) -> tuple[Model, float | None]:
    """Return a model whose values are its own program's, and its largest error; see `check_import`.

    Where one operator is imported wrongly it becomes a call of torch, and the model is compared again.

    Raises:
        TunerError: the import is wrong, and no operator can be found that a call of torch would fix.
    """
    while True:
        try:
            return model, check_import(model, session)
        except WrongImportError as error:
            if not error.operator or error.operator in model.called:
                raise
            try:
                model = with_torch_calls(model, (*model.called, error.operator))
            except UnsupportedOperatorError:
                raise error from None
            note = f"{error.place} differs from torch when it is converted: it stays a call of torch"
            logger.warning("%s", note)
            model = replace(model, notes=(*model.notes, note))


def check_import(model: Model, session: Session) -> float | None:
    """Return the largest error of an imported model against its own program; see `tuner.numerical_error`.

    Outputs are compared, and for training the loss, once for each model, seed and environment. Of a file that
    a runtime of others runs, outputs alone are, before a loss was put on top.

    Returns:
        None for a model that was written here, which has nothing to be compared with, and for a file that no
        runtime runs, which a warning tells.

    Raises:
        WrongImportError: the import is wrong; names the first operator that is, or else the output.
    """
    if model.reference is None and model.before_loss is not None:
        model = model.before_loss
    program = model.reference or model.source
    if program is None:
        return None
    workload = _workload(model)
    try:
        if model.reference is None and model.source is not None:
            _require_affordable(model.source, workload)
        return _check(model, program, workload, session)
    except NotComparableError as error:
        logger.warning("the import of %s was not compared with the file itself: %s", model.name, error)
        return None


def _require_affordable(source: Source, workload: Workload) -> None:
    if workload.flops > source.max_flops:
        raise NotComparableError(
            f"it does {workload.flops:.1e} floating-point operations, more than the {source.max_flops:.0e} "
            f"for which running it by {source.label} is worth its time"
        )


def _check(model: Model, reference: Reference | Source, workload: Workload, session: Session) -> float | None:
    tolerance = tolerance_of(tensor.dtype for tensor in workload.values)
    session.on_progress(TuningProgress(text="comparing the import with the model's own program"))
    found = checked_error(
        session,
        workload,
        settings=_settings(reference, model, session),
        tolerance=tolerance,
        check=lambda: _compare(model, reference, session, tolerance),
    )
    if not found.is_within(tolerance):
        raise _refusal(model, reference, session, found, tolerance)
    return found.relative_error


def reference_settings(model: Model, session: Session) -> str:
    """Return what a comparison with a model's own program depends on, for its record; empty without one."""
    reference = model.reference
    if reference is None:
        return ""
    return _settings(reference, model, session)


def _settings(reference: Reference | Source, model: Model, session: Session) -> str:
    program = reference.fingerprint(model)
    calls = f";calls={_CALLS}" if model.reference is not None else ""
    return f"reference={reference.label};mode={reference.mode};seed={session.seed}{calls};program={program}"


def compare_with_reference(
    model: Model,
    session: Session,
    module: IRModule,
    inputs: Mapping[str, np.ndarray],
    expected: Sequence[np.ndarray],
) -> Deviation:
    """Run a module that takes what the model takes, and return the result that is furthest off.

    Args:
        model: whose weights are used.
        inputs: of the model, by name.
        expected: its outputs; for training the loss comes first.
    """
    weights = [np.asarray(model.parameters[name]) for name in model.parameter_names]
    found = session.measurer.run(module, [*inputs.values(), *weights])
    names = _output_names(max(len(expected), len(found)), has_loss=model.training)
    deviations = compare_outputs(
        dict(zip(names, found, strict=False)), dict(zip(names, expected, strict=False)), same_types=True
    )
    return worst(deviations) or Deviation(tensor="nothing", relative_error=0.0)


def _workload(model: Model) -> Workload:
    workload = workload_of(model.module["main"], "model", module=model.module)
    facts = [("check", "import"), COMPARISON]
    return describe("model", workload.inputs, workload.operators, workload.results, facts)


def _compare(model: Model, reference: Reference | Source, session: Session, tolerance: float) -> Deviation:
    """Compare on inputs that are drawn, and on those that the user gave."""
    module = with_logits(model)
    cases = _cases(model, reference, session)
    compared = [
        compare_with_reference(model, session, module, inputs, expected) for inputs, expected in cases
    ]
    found = worst(compared) or Deviation(tensor="nothing", relative_error=0.0)
    if model.source is None or model.reference is not None or found.is_within(tolerance):
        return found
    apart = _between_roundings(model, model.source, [inputs for inputs, _ in cases], session)
    return apart if apart is not None and apart.is_within(tolerance) else found


def _between_roundings(
    model: Model, source: Source, cases: Sequence[Mapping[str, np.ndarray]], session: Session
) -> Deviation | None:
    """Compare operators one by one: a value beside a half that is rounded otherwise changes all behind it."""
    session.on_progress(TuningProgress(text="comparing the import between roundings to whole numbers"))
    try:
        found = [source.between_roundings(model, inputs, session.measurer.run) for inputs in cases]
    except Exception:  # foreign code is run; what was found before stands
        logger.debug("the import was not compared between roundings", exc_info=True)
        return None
    return worst(each for each in found if each is not None)


def _cases(
    model: Model, reference: Reference | Source, session: Session
) -> list[tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]]:
    """Return inputs, drawn and the user's own, with what the reference gives for them.

    Of a model with state, a second call on the last of them is one more.
    """
    own = reference.own(model.inputs, session.seed)
    cases = [reference.draw(model.inputs, session.seed), *([own] if own is not None else [])]
    if model.reference is None:
        return cases
    second = _second_call(model, model.reference, *cases[-1])
    return [*cases, second] if model.state else cases


def _second_call(
    model: Model, reference: Reference, inputs: Mapping[str, np.ndarray], first: Sequence[np.ndarray]
) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
    """Return the inputs of a second call, which finds what the first one wrote, and what it gives.

    Raises:
        UnsupportedOperatorError: it gives something else than a first call on the same inputs and state.
    """
    written = first[len(first) - len(model.state) :]
    again = {**inputs, **dict(zip(model.state, written, strict=True))}
    second = reference.outputs(inputs, calls=_CALLS)
    names = _output_names(len(second), has_loss=model.training)
    expected = dict(zip(names, reference.outputs(again), strict=True))
    found = worst(compare_outputs(dict(zip(names, second, strict=True)), expected))
    tolerance = tolerance_of(str(each.dtype) for each in second)
    if found is not None and not found.is_within(tolerance):
        weights = reference.written_weights
        state = f"the weight {weights[0]}" if weights else "a number or a tensor that is no buffer"
        raise UnsupportedOperatorError(
            f"{model.name} gives other results when it is called again on the same inputs ({found.tensor} "
            f"{found.describe(tolerance)}): its forward changes {state}, which its program holds as it was; "
            "hold it in a buffer, or take it as an argument and return its new value"
        )
    return again, second


def _output_names(number: int, *, has_loss: bool) -> list[str]:
    names = ["the loss"] if has_loss else []
    others = number - len(names)
    return names + (["the output"] if others == 1 else [f"output {index}" for index in range(others)])


def _refusal(
    model: Model, reference: Reference | Source, session: Session, found: Deviation, tolerance: float
) -> WrongImportError:
    """Say what is wrong with an import, and where it begins."""
    session.on_progress(TuningProgress(text="looking for the operator that is imported wrongly"))
    operator, place = "", ""
    try:
        for inputs, _ in _cases(model, reference, session):
            if not place:
                operator, place = _first_wrong(model, reference, session, inputs, tolerance)
    except Exception:  # foreign code is run; what is wrong stands without its place
        logger.debug("the operator was not found", exc_info=True)
    first = f"; {place} is the first that differs" if place else ""
    remedy = (
        "write that line in other operators"
        if place
        else "no operator differs as much alone: use a wider type"
    )
    return WrongImportError(
        f"{model.name} is imported wrongly: {found.tensor} {found.describe(tolerance)}, against the "
        f"model's own program{first}; {remedy}",
        operator=operator,
        place=place.partition(", which ")[0],
    )


def _first_wrong(
    model: Model,
    reference: Reference | Source,
    session: Session,
    inputs: Mapping[str, np.ndarray],
    tolerance: float,
) -> tuple[str, str]:
    """Return the name and the place of the first wrong operator; a node of a file has a place alone."""
    run = session.measurer.run
    if model.reference is None and model.source is not None:
        return "", model.source.locate(model, inputs, run, tolerance)
    found = None
    if model.reference is not None:
        found = model.reference.find_wrong(model, inputs, run, tolerance)
    return found or ("", "")

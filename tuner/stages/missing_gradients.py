"""Make operators that have no gradient here calls of torch, which autograd differentiates.

That is slower, and never wrong.
Only a model that was imported from torch knows the operators of its own program. Checked in
tests/tuner/stages/test_missing_gradients.py.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from tuner.errors import MissingGradientError, UnsupportedOperatorError
from tuner.frontend.loading import with_torch_calls
from tuner.frontend.model import Model
from tuner.stages.differentiate import missing_gradients
from tuner.stages.program import read_program

logger = logging.getLogger(__name__)


def with_all_gradients(model: Model) -> Model:
    """Return a model whose operators all have a gradient where it trains; a note says which are called.

    Its `called` names them, so that a plan's ranks call them as well.

    Raises:
        MissingGradientError: an operator has none, and cannot be a call of torch.
    """
    while model.training:
        missing = missing_gradients(read_program(model))
        if not missing:
            return model
        model = _with_calls(model, missing)
    return model


def _with_calls(model: Model, missing: tuple[MissingGradientError, ...]) -> Model:
    if model.reference is None:
        raise missing[0]
    nodes = [model.reference.node_of(model, error.variable) for error in missing]
    for node, error in zip(nodes, missing, strict=True):
        if not node or node in model.called:
            raise error
    called = tuple(dict.fromkeys((*model.called, *nodes)))
    notes = model.notes
    try:
        model = with_torch_calls(model, called)
    except UnsupportedOperatorError as error:
        raise missing[0] from error
    operators = ", ".join(dict.fromkeys(error.operator for error in missing))
    note = f"{operators} has no gradient here: it stays a call of torch, forward and backward"
    logger.info("%s", note)
    return replace(model, notes=tuple(dict.fromkeys((*notes, *model.notes, note))))

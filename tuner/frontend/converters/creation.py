"""Tensors made of nothing that are too large to be kept as constants, and operators that pass values on.

Smaller ones are computed by torch while the program is imported. Checked against torch in
tests/tuner/frontend/converters/test_movement.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr


def _steps(call: Call) -> Expr:
    """Emit numbers at equal steps."""
    start = call["start"] if "start" in call.names else 0
    step = call["step"] if "step" in call.names else 1
    return call.emit(relax.op.arange(start, call["end"], step, call.dtype))


def _dropout(call: Call) -> Expr:
    """Pass values on, as dropout does for inference.

    Raises:
        ValueError: it acts as for training.
    """
    probability = call["p"]
    if call["train"] and probability:
        raise ValueError(
            f"it drops values at random (p={probability}) in this program; export the module after "
            "module.eval(), or give its dropout `training=False`"
        )
    return call["input"]


CREATION: Mapping[str, Converter] = {
    "arange.default": _steps,
    "arange.start": _steps,
    "arange.start_step": _steps,
    "dropout.default": _dropout,
    "feature_dropout.default": _dropout,
    "native_dropout.default": lambda call: [_dropout(call), None],
}
"""Converter by name of operator and overload."""

"""Losses that have a gradient of their own, which their parts would lack.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, dtype_of, rank_of

_REDUCTIONS = ("none", "mean", "sum")
"""What torch's numbers for reductions mean."""


def _cross_entropy(call: Call) -> Expr:
    """Emit a cross-entropy with classes; with probabilities, or smoothed, it is taken apart instead.

    Raises:
        ValueError: labels are smoothed, or probabilities.
    """
    logits, target = call["self"], call["target"]
    if call["label_smoothing"] or "float" in dtype_of(target):
        raise ValueError("labels are smoothed, or probabilities instead of classes")
    axis = 0 if rank_of(logits) == 1 else 1
    return _likelihood(call, call.emit(relax.op.nn.log_softmax(logits, axis=axis)), target)


def _nll(call: Call) -> Expr:
    return _likelihood(call, call["self"], call["target"])


def _likelihood(call: Call, logarithms: Expr, target: Expr) -> Expr:
    return call.emit(
        relax.op.nn.nll_loss(
            logarithms,
            target,
            call["weight"] if call.has("weight") else None,
            reduction=_REDUCTIONS[call["reduction"]],
            ignore_index=call["ignore_index"],
        )
    )


def _nll_forward(call: Call) -> list[Expr | None]:
    """Emit the loss; the total weight, which only a backward reads, is left out."""
    return [_nll(call), None]


LOSSES: Mapping[str, Converter] = {
    "cross_entropy_loss.default": _cross_entropy,
    "nll_loss_nd.default": _nll,
    "nll_loss_forward.default": _nll_forward,
    "nll_loss2d_forward.default": _nll_forward,
}
"""Converter by name of operator and overload."""

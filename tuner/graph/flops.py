"""Number of floating-point operations of an operator call, from shapes alone.

Multiply and add count as two. What moves data counts as nothing. Counts for softmax, normalisations and
special functions are a convention (a few operations an element), good enough to compare programs by; no
latency is derived from them here. Checked against counts by hand in tests/tuner/graph/test_flops.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from records.workload import Tensor
from tuner.graph.kinds import PatternKind

_PER_ELEMENT = {
    "nn.softmax": 5,  # maximum, subtract, exp, sum, divide
    "nn.log_softmax": 5,
    "nn.layer_norm": 8,  # mean, variance, subtract, rsqrt, multiply, scale, shift
    "nn.group_norm": 8,
    "nn.instance_norm": 8,
    "nn.batch_norm": 4,
    "nn.rms_norm": 5,
    "nn.gelu": 8,
    "nn.gelu_tanh": 8,
    "nn.silu": 4,
    "nn.cross_entropy_with_logits": 2,
    "nn.nll_loss": 2,
}


def count_flops(
    operator: str,
    kind: PatternKind,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    attributes: dict[str, str],
) -> int:
    """Return the floating-point operations of one call; 0 where the operator is unknown and opaque.

    Args:
        operator: name without its dialect.
        kind: its op-pattern kind, which decides for operators without a rule of their own.
        inputs: tensors it reads, in order.
        outputs: tensors it makes.
        attributes: its attributes as text.
    """
    rule = _RULES.get(operator)
    if rule is not None:
        return rule(inputs, outputs, attributes)
    largest_input = max((tensor.num_elements for tensor in inputs), default=0)
    if operator in _PER_ELEMENT:
        return _PER_ELEMENT[operator] * largest_input
    if kind in (PatternKind.ELEMENTWISE, PatternKind.BROADCAST):
        return outputs[0].num_elements
    return largest_input if kind is PatternKind.REDUCTION else 0


def _matmul(inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: dict[str, str]) -> int:
    return 2 * outputs[0].num_elements * inputs[0].shape[-1]


def _convolution(inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: dict[str, str]) -> int:
    """Each output element takes one product per weight of its output channel."""
    weight = inputs[1]
    channels = weight.shape[attributes.get("kernel_layout", "OIHW").index("O")]
    return 2 * outputs[0].num_elements * weight.num_elements // max(channels, 1)


def _transposed_convolution(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: dict[str, str]
) -> int:
    """Each input element is multiplied with every weight of its input channel."""
    data, weight = inputs[0], inputs[1]
    channels = weight.shape[attributes.get("kernel_layout", "IOHW").index("I")]
    return 2 * data.num_elements * weight.num_elements // max(channels, 1)


def _pooling(inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: dict[str, str]) -> int:
    window = [int(extent) for extent in attributes.get("pool_size", "1").strip("[]").split(",")]
    return outputs[0].num_elements * math.prod(window)


def _attention(inputs: Sequence[Tensor], outputs: Sequence[Tensor], attributes: dict[str, str]) -> int:
    """Two products and a softmax; query, key and value are (batch, length, heads, width)."""
    batch, length, heads, width = inputs[0].shape
    keys, value_width = inputs[2].shape[1], inputs[2].shape[3]
    return batch * heads * length * keys * (2 * width + 2 * value_width + 5)


_Rule = Callable[[Sequence[Tensor], Sequence[Tensor], dict[str, str]], int]

_RULES: dict[str, _Rule] = {
    "matmul": _matmul,
    **{f"nn.conv{rank}d": _convolution for rank in (1, 2, 3)},
    **{f"nn.conv{rank}d_transpose": _transposed_convolution for rank in (1, 2, 3)},
    **{f"nn.{which}_pool{rank}d": _pooling for which in ("max", "avg") for rank in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{rank}d": lambda inputs, *_: inputs[0].num_elements for rank in (1, 2, 3)},
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
}

"""Let `flex_attention` be the operators of its definition, in an export and where it is differentiated.

torch's own call of it has no backward on a CPU, and an export holds no more of the call than its name and
functions of Python. Checked in tests/tuner/tuning/test_import_check.py.

Source: `torch._higher_order_ops.flex_attention.math_attention` of torch 2.13; what differs is that no tensor
is made of a number, which an export of functions that are mapped over indices does not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch.nn.attention import flex_attention


@contextmanager
def flex_attention_written_out() -> Iterator[None]:
    """Have `flex_attention` run its definition, operator by operator."""
    before = {name: getattr(flex_attention, name) for name in _REPLACED}
    vars(flex_attention).update(_REPLACED)
    try:
        yield
    finally:
        vars(flex_attention).update(before)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable[..., torch.Tensor],
    block_mask: Sequence[Any],
    scale: float,
    kernel_options: Mapping[str, Any],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the attention, and of each row of scores the logarithm of base 2 of its sum, and its maximum.

    Args:
        query: shape (batch, heads, length, width).
        key: shape (batch or 1, heads or a divisor, length, width).
        value: likewise.
        score_mod: gives a score, of a score and its batch, head, query and key.
        block_mask: of which the last says whether a score counts, of the same four indices.
        scale: of the scores.
        kernel_options: of kernels that are not used here.
    """
    groups = query.size(1) // key.size(1)
    key, value = (
        each.repeat_interleave(groups, dim=1).expand(query.size(0), -1, -1, -1) for each in (key, value)
    )
    working = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = query.to(working) @ key.to(working).transpose(-2, -1) * scale
    indices = [torch.arange(extent, device=scores.device) for extent in scores.shape]
    with TransformGetItemToIndex():
        scores = flex_attention._vmap_for_bhqkv(score_mod, prefix=(0,))(scores, *indices).to(working)
        counts = flex_attention._vmap_for_bhqkv(block_mask[-1], prefix=())(*indices)
    scores = scores.masked_fill(counts.logical_not(), -math.inf)
    weights = torch._safe_softmax(scores, dim=-1)
    sums, largest = scores.logsumexp(dim=-1), scores.amax(dim=-1)
    return (weights.to(query.dtype) @ value.to(query.dtype), sums / math.log(2), largest / math.log(2))


_REPLACED: Mapping[str, Any] = {
    "flex_attention_hop": _attention,
    "_validate_device": lambda query, key, value: None,
    # It takes the modes off that an export traces with.
    "setup_compilation_env": lambda: nullcontext("eager"),
    "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True,
}
"""What stands for names of torch's module meanwhile; the last lets it make the call without a compiler."""

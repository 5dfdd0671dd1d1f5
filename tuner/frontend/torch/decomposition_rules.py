"""Take operators apart by own rules, where torch's have other gradients than the whole operator.

A rule of torch gives the values. Differentiated, it may give NaN where the part that is not chosen has no
derivative (the exponential of a large number, the logarithm of 0), pass a gradient at a bound, or pass one
where autograd has none. Each rule here gives what torch's autograd gives of the operator, there as well;
checked in tests/tuner/stages/gradients/test_borders.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND
from torch._prims_common.wrappers import elementwise_type_promotion_wrapper

_KINDS: Any = ELEMENTWISE_TYPE_PROMOTION_KIND

_LEAST_SLOPE_DIVISOR = 1e-12
"""Least divisor of a binary cross-entropy's slope (ATen/native/Loss.cpp, EPSILON)."""


def _fill_by_mask(x: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Fill where some index says so.

    By torch's rule the value's gradient counts an index as often as it is repeated, and by its autograd once.
    """
    if x.dim() == 0:
        return value.expand_as(x).clone() if index.numel() else x.clone()
    extent = x.shape[dim]
    positions = torch.where(index < 0, index + extent, index).reshape(-1, 1)
    is_filled = (positions == torch.arange(extent, device=x.device)).any(0)
    after = x.dim() - 1 - dim % x.dim()
    return torch.where(is_filled.reshape(-1, *[1] * after), value, x)


def _diagonal_scatter(
    x: torch.Tensor, src: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """Choose between a diagonal, spread over its rows, and the rest; torch's rule writes in place."""
    if not src.numel():
        return x.clone()
    moved = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(extent, device=x.device) for extent in moved.shape[-2:])
    places = (rows - max(-offset, 0)).clamp(0, src.shape[-1] - 1)
    is_diagonal = columns == rows.unsqueeze(1) + offset
    spread = src.to(x.dtype).index_select(-1, places).unsqueeze(-1)
    return torch.where(is_diagonal, spread, moved).movedim((-2, -1), (dim1, dim2))


def _norm(
    x: torch.Tensor,
    order: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Take the norm of zeros for a constant, and the zeros of a norm of a root.

    By torch's rule it is the root of a sum, whose gradient there is no number; that of autograd is 0.
    """
    extents = x.shape if not dim or not x.dim() else [x.shape[axis] for axis in dim]
    if x.is_complex() or order in _NORMS_WITHOUT_ROOT or max(extents, default=1) == 1:
        whole: torch.Tensor = decomposition_table[_VECTOR_NORM](x, order, dim, keepdim, dtype=dtype)
        return whole
    wide = x.to(dtype or torch.promote_types(x.dtype, torch.float32))
    if order < 1:
        nothing = wide == 0
        of_nothing = 0 if order > 0 else math.inf
        powers = torch.where(nothing, of_nothing, torch.where(nothing, 1, wide).abs().pow(order))
    else:
        powers = (wide.abs() if order % 2 else wide).pow(order)
    total = powers.sum(list(dim) if dim else list(range(x.dim())), keepdim)
    is_zero = total == 0
    root = torch.where(is_zero, 1, total).pow(1 / order)
    # With a negative order only the reciprocals of infinities add up to 0: the norm is infinite, too.
    return torch.where(is_zero, 0 if order > 0 else math.inf, root).to(dtype or x.dtype)


@elementwise_type_promotion_wrapper(type_promoting_args=("a",), type_promotion_kind=_KINDS.INT_TO_FLOAT)
def _sinc(a: torch.Tensor) -> torch.Tensor:
    angle = math.pi * a
    is_zero = angle == 0
    nonzero = torch.where(is_zero, 1, angle)
    return torch.where(is_zero, 1, torch.sin(nonzero) / nonzero)


@elementwise_type_promotion_wrapper(type_promoting_args=("a", "b"), type_promotion_kind=_KINDS.INT_TO_FLOAT)
def _times_logarithm(a: Any, b: Any, *, logarithm: Callable[..., torch.Tensor], pole: float) -> torch.Tensor:
    """Multiply by a logarithm, where 0 times what has none is 0; 0 has the logarithm for its slope elsewhere.

    Args:
        a: the factor, a number or a tensor.
        b: what the logarithm is of; one of both is a tensor.
        pole: up to which it has no finite value.
    """
    device = a.device if isinstance(a, torch.Tensor) else b.device
    factor, value = (
        each if isinstance(each, torch.Tensor) else torch.full((), each, device=device) for each in (a, b)
    )
    is_nothing = (factor == 0) & ((value <= pole) | (value == math.inf))
    return factor * logarithm(torch.where(is_nothing, pole + 1, value))


@elementwise_type_promotion_wrapper(type_promoting_args=("a",), type_promotion_kind=_KINDS.DEFAULT)
def _elu(a: torch.Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> torch.Tensor:
    """Take the exponential of what is not positive alone: that of large numbers is infinite."""
    falling = (alpha * scale) * torch.expm1(torch.where(a > 0, 0, a) * input_scale)
    return torch.where(a > 0, scale * a, falling)


def _selu(a: torch.Tensor) -> torch.Tensor:
    return _elu(a, _SELU_ALPHA, _SELU_SCALE)


@elementwise_type_promotion_wrapper(type_promoting_args=("a",), type_promotion_kind=_KINDS.DEFAULT)
def _celu(a: torch.Tensor, alpha: float = 1) -> torch.Tensor:
    return torch.where(a > 0, a, alpha * torch.expm1(torch.where(a > 0, 0, a) / alpha))


def _binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    """Give probabilities the slope that torch's backward has, which is finite at 0 and 1."""
    fixed = x.detach()
    wide = fixed.to(torch.promote_types(x.dtype, torch.float32))  # a half rounds the least divisor to 0
    slope = (wide - target.detach()) / ((1 - wide) * wide).clamp_min(_LEAST_SLOPE_DIVISOR)
    loss: torch.Tensor = decomposition_table[_BINARY_CROSS_ENTROPY](fixed, target, None, 0)
    loss = loss + ((x - fixed).to(slope.dtype) * slope).to(loss.dtype)
    if weight is not None:
        loss = loss * weight
    return _reduced(loss, reduction)


def _grid_sampler(
    a: torch.Tensor, grid: torch.Tensor, mode: int = 0, padding: int = 0, align_corners: bool = False
) -> torch.Tensor:
    """Sample where a place at or beyond the border has no slope, if it is brought back to the border."""
    if mode == 0 and padding:
        is_inside = torch.stack(
            [
                _is_inside(
                    grid[..., axis], a.shape[3 - axis], is_reflected=padding == 2, aligned=align_corners
                )
                for axis in range(2)
            ],
            -1,
        )
        grid = torch.where(is_inside, grid, grid.detach())
    whole: torch.Tensor = decomposition_table[_GRID_SAMPLER](a, grid, mode, padding, align_corners)
    return whole


def _is_inside(place: torch.Tensor, extent: int, *, is_reflected: bool, aligned: bool) -> torch.Tensor:
    """Say which places, between -1 and 1, lie between the first element and the last, and at neither.

    Args:
        place: of any shape.
        is_reflected: whether what is beyond a border is reflected there.
        aligned: whether -1 and 1 are the middles of the first and the last element, or their borders.
    """
    index = place * (extent - 1 if aligned else extent) / 2 + (extent - 1) / 2
    if is_reflected:
        first, span = (0, extent - 1) if aligned else (-0.5, extent)
        if not span:
            return torch.zeros_like(place, dtype=torch.bool)
        distance = (index - first).abs()
        rest = torch.fmod(distance, span)
        is_flipped = torch.floor(distance / span) % 2 == 1
        index = torch.where(is_flipped, span + first - rest, rest + first)
    return (index > 0) & (index < extent - 1)


def _multi_margin_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    p: int = 1,
    margin: float = 1,
    weight: torch.Tensor | None = None,
    reduction: int = 1,
) -> torch.Tensor:
    """Measure margins by ReLU: at a margin no gradient passes, which torch's rule, by a clamp, lets pass."""
    rows, places = x.reshape(-1, _extent(x)), target.reshape(-1, 1)
    missing = torch.relu(margin - rows.gather(1, places) + rows)
    missing = missing if p == 1 else missing * missing
    if weight is not None:
        missing = missing * weight.reshape(-1)[places]
    is_target = torch.arange(rows.shape[1], device=x.device) == places
    losses = torch.where(is_target, 0, missing).mean(1)
    return _reduced(losses.reshape(target.shape), reduction)


def _multilabel_margin_loss(
    x: torch.Tensor, target: torch.Tensor, reduction: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure margins by ReLU, as above; labels are those before the first -1."""
    extent = _extent(x)
    rows, labels = x.reshape(-1, extent), target.reshape(-1, extent)
    places = torch.arange(extent, device=x.device)
    end = torch.where(labels == -1, places, extent).amin(1, keepdim=True)
    is_label = places < end
    # By label and class: the margin that the class lacks below the label.
    lacking = torch.relu(
        1 - rows.gather(1, torch.where(is_label, labels, 0)).unsqueeze(2) + rows.unsqueeze(1)
    )
    hits = (torch.where(is_label, labels, -1).unsqueeze(2) == places).any(1)
    counts = is_label.unsqueeze(2) & ~hits.unsqueeze(1)
    losses = torch.where(counts, lacking, 0).sum((1, 2)) / extent
    return _reduced(losses.reshape(x.shape[:-1]), reduction), hits.to(x.dtype).reshape(x.shape)


def _extent(x: torch.Tensor) -> int:
    """Return the extent of the last axis; of a number, 1."""
    return x.shape[-1] if x.dim() else 1


def _reduced(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    """Return losses, or their mean or sum, by torch's number of a reduction."""
    return losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses


def _embedding_bag(*arguments: Any, **keywords: Any) -> Any:
    """Keep a bag in the form that has a gradient; an export without gradients holds the other one."""
    return torch.ops.aten._embedding_bag.default(*arguments, **keywords)


def _without_gradient(target: Any, *arguments: Any, **keywords: Any) -> torch.Tensor:
    """Take an operator apart by torch's rule, where autograd has no gradient of its tensors."""
    fixed = [each.detach() if isinstance(each, torch.Tensor) else each for each in arguments]
    whole: torch.Tensor = decomposition_table[target](*fixed, **keywords)
    return whole


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805
"""Klambauer et al. 2017, equation 14, as torch has them."""

_BINARY_CROSS_ENTROPY = torch.ops.aten.binary_cross_entropy.default

_GRID_SAMPLER = torch.ops.aten.grid_sampler_2d.default

_VECTOR_NORM = torch.ops.aten.linalg_vector_norm.default

_NORMS_WITHOUT_ROOT = (0, 1, float("inf"), float("-inf"))

_XLOGY = functools.partial(_times_logarithm, logarithm=torch.log, pole=0)

_XLOG1PY = functools.partial(_times_logarithm, logarithm=torch.log1p, pole=-1)

_STEPS = tuple(
    getattr(packet, overload)
    for packet in (torch.ops.aten.linspace, torch.ops.aten.logspace)
    for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
)
"""Numbers at equal steps between tensors, which torch reads as numbers."""

OWN_RULES: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.index_fill.int_Tensor: _fill_by_mask,
    torch.ops.aten.diagonal_scatter.default: _diagonal_scatter,
    _VECTOR_NORM: _norm,
    torch.ops.aten.sinc.default: _sinc,
    torch.ops.aten.xlogy.Tensor: _XLOGY,
    torch.ops.aten.xlogy.Scalar_Self: _XLOGY,
    torch.ops.aten.xlogy.Scalar_Other: _XLOGY,
    torch.ops.aten.special_xlog1py.default: _XLOG1PY,
    torch.ops.aten.special_xlog1py.self_scalar: _XLOG1PY,
    torch.ops.aten.special_xlog1py.other_scalar: _XLOG1PY,
    torch.ops.aten.elu.default: _elu,
    torch.ops.aten.selu.default: _selu,
    torch.ops.aten.celu.default: _celu,
    _BINARY_CROSS_ENTROPY: _binary_cross_entropy,
    _GRID_SAMPLER: _grid_sampler,
    torch.ops.aten._embedding_bag_forward_only.default: _embedding_bag,
    torch.ops.aten.multi_margin_loss.default: _multi_margin_loss,
    torch.ops.aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
    **{target: functools.partial(_without_gradient, target) for target in _STEPS},
}
"""Rule by operator."""

"""Evaluate a Relax function in torch, binding by binding; neither TVM's build nor our lowering is in it."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional
from tvm import relax

UNARY = {
    "abs": torch.abs,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "erf": torch.erf,
    "exp": torch.exp,
    "floor": torch.floor,
    "log": torch.log,
    "logical_not": torch.logical_not,
    "negative": torch.neg,
    "nn.gelu": functional.gelu,
    "nn.gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "nn.relu": torch.relu,
    "nn.silu": functional.silu,
    "ones_like": torch.ones_like,
    "round": torch.round,
    "rsqrt": torch.rsqrt,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
    "zeros_like": torch.zeros_like,
}

BINARY = {
    "add": torch.add,
    "divide": torch.divide,
    "equal": torch.eq,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "matmul": torch.matmul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "multiply": torch.multiply,
    "not_equal": torch.ne,
    "power": torch.pow,
    "subtract": torch.subtract,
}

REDUCTIONS = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}


def run_in_torch(module, arrays):
    """Return the outputs of a module's `main` as arrays."""
    function = module["main"]
    given = [torch.from_numpy(np.array(array)) for array in arrays]
    for parameter, tensor in zip(function.params, given, strict=True):
        assert tuple(map(int, parameter.ty.shape)) == tuple(tensor.shape), parameter.name
        assert str(parameter.ty.dtype) == str(tensor.dtype).removeprefix("torch."), parameter.name
    known = dict(zip(function.params, given, strict=True))
    for block in function.body.blocks:
        for binding in block.bindings:
            known[binding.var] = _evaluate(binding.value, known)
            _check_type(binding, known[binding.var])
    return [tensor.numpy() for tensor in _evaluate(function.body.body, known)]


def _check_type(binding, value):
    """Hold what torch makes to the type that TVM inferred."""
    if isinstance(value, torch.Tensor):
        assert tuple(map(int, binding.var.ty.shape)) == tuple(value.shape), binding


def _evaluate(value, known):
    match value:
        case relax.Var():
            return known[value]
        case relax.Tuple():
            return tuple(_evaluate(field, known) for field in value.fields)
        case relax.TupleGetItem():
            return _evaluate(value.tuple_value, known)[value.index]
        case relax.ShapeExpr():
            return tuple(int(extent) for extent in value.values)
        case relax.Call():
            return _apply(value, [_evaluate(argument, known) for argument in value.args])
        case _ if hasattr(getattr(value, "value", None), "numpy"):
            array = value.value.numpy()
            return torch.from_numpy(np.array(array)).to(getattr(torch, str(value.ty.dtype)))
        case _:
            return getattr(value, "value", value)


def _apply(call, arguments):
    name, attributes = call.op.name.removeprefix("relax."), call.attrs
    if name in UNARY:
        return UNARY[name](arguments[0])
    if name in BINARY:
        return BINARY[name](*arguments)
    if name in REDUCTIONS:
        axes = attributes.axis
        axes = tuple(range(arguments[0].ndim)) if axes is None else tuple(int(axis) for axis in axes)
        return REDUCTIONS[name](arguments[0], dim=axes, keepdim=bool(attributes.keepdims))
    return OTHERS[name](attributes, *arguments)


def _permute(attributes, x):
    axes = attributes.axes
    return x.permute(*(range(x.ndim)[::-1] if axes is None else [int(axis) for axis in axes]))


def _collapse(attributes, x, shape):
    lead = x.ndim - len(shape)
    axes = [
        *range(lead),
        *(lead + at for at, extent in enumerate(shape) if extent == 1 and x.shape[lead + at] > 1),
    ]
    return (x.sum(dim=axes) if axes else x).reshape(shape)


def _take(attributes, x, indices):
    axis = 0 if attributes.axis is None else int(attributes.axis)
    if attributes.mode == "clip":
        indices = indices.clamp(0, x.shape[axis] - 1)
    taken = torch.index_select(x, axis, indices.reshape(-1))
    axis %= x.ndim
    return taken.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def _take_backward(attributes, gradient, x, indices):
    axis = 0 if attributes.axis is None else int(attributes.axis)
    return torch.zeros_like(x).index_add(axis, indices, gradient)


def _split(attributes, x):
    axis, sections = int(attributes.axis), attributes.indices_or_sections
    if isinstance(sections, int) or not hasattr(sections, "__len__"):
        return torch.tensor_split(x, int(sections), dim=axis)
    return torch.tensor_split(x, [int(index) for index in sections], dim=axis)


def _strided_slice(attributes, x, axes, begin, end, strides=None):
    index = [slice(None)] * x.ndim
    steps = strides or (1,) * len(axes)
    for axis, first, stop, step in zip(axes, begin, end, steps, strict=True):
        index[int(axis)] = slice(int(first), int(stop), int(step))
    return x[tuple(index)]


def _nll_loss(attributes, values, labels):
    return functional.nll_loss(
        values, labels, reduction=str(attributes.reduction), ignore_index=int(attributes.ignore_index)
    )


def _nll_loss_backward(attributes, gradient, values, labels):
    with torch.enable_grad():
        leaf = values.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(_nll_loss(attributes, leaf, labels), leaf, gradient)
    return found


def _attention(attributes, query, key, value, bias=None):
    scale = None if attributes.scale is None else float(attributes.scale)
    mixed = functional.scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in (query, key, value)), attn_mask=bias, scale=scale
    )
    return mixed.transpose(1, 2)


def _layer_norm(attributes, x, scale, shift):
    return functional.layer_norm(x, scale.shape, scale, shift, float(attributes.epsilon))


OTHERS = {
    "astype": lambda attributes, x: x.to(getattr(torch, str(attributes.dtype))),
    "broadcast_to": lambda attributes, x, shape: x.expand(shape),
    "clip": lambda attributes, x, low, high: x.clamp(float(low), float(high)),
    "collapse_sum_to": _collapse,
    "concat": lambda attributes, fields: torch.cat(fields, dim=int(attributes.axis)),
    "expand_dims": lambda attributes, x: x[
        tuple(
            None
            if at in {int(axis) % (x.ndim + len(attributes.axis)) for axis in attributes.axis}
            else slice(None)
            for at in range(x.ndim + len(attributes.axis))
        )
    ],
    "full_like": lambda attributes, x, value: torch.full_like(x, float(value)),
    "gather_elements": lambda attributes, x, indices: torch.gather(x, int(attributes.axis), indices),
    "grad.nll_loss_backward": _nll_loss_backward,
    "grad.take_backward": _take_backward,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "nn.layer_norm": _layer_norm,
    "nn.leakyrelu": lambda attributes, x: functional.leaky_relu(x, float(attributes.alpha)),
    "nn.log_softmax": lambda attributes, x: torch.log_softmax(x, int(attributes.axis)),
    "nn.nll_loss": _nll_loss,
    "nn.pad": lambda attributes, x, value=0.0: functional.pad(
        x, [int(attributes.pad_width[2 * axis + side]) for axis in reversed(range(x.ndim)) for side in (0, 1)]
    ),
    "nn.rms_norm": lambda attributes, x, scale: functional.rms_norm(
        x, scale.shape, scale, float(attributes.epsilon)
    ),
    "nn.softmax": lambda attributes, x: torch.softmax(x, int(attributes.axis)),
    "nn.softplus": lambda attributes, x: functional.softplus(x, float(attributes.beta)),
    "one_hot": lambda attributes, indices, on, off: torch.where(
        indices[..., None] == torch.arange(int(attributes.depth)), float(on), float(off)
    ).to(torch.float64),
    "permute_dims": _permute,
    "reshape": lambda attributes, x, shape: x.reshape(shape),
    "split": _split,
    "squeeze": lambda attributes, x: (
        x.squeeze() if attributes.axis is None else x.squeeze(tuple(int(axis) for axis in attributes.axis))
    ),
    "stack": lambda attributes, fields: torch.stack(fields, dim=int(attributes.axis or 0)),
    "strided_slice": _strided_slice,
    "take": _take,
    "variance": lambda attributes, x: x.var(
        dim=[int(axis) for axis in attributes.axis], unbiased=False, keepdim=bool(attributes.keepdims)
    ),
    "where": lambda attributes, condition, x, y: torch.where(condition, x, y),
    "zeros": lambda attributes, shape: torch.zeros(shape, dtype=getattr(torch, str(attributes.dtype))),
    "ones": lambda attributes, shape: torch.ones(shape, dtype=getattr(torch, str(attributes.dtype))),
}

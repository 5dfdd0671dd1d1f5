"""Convolutions over one, two or three axes, also transposed, of a batch or of one example.

Checked against torch in tests/tuner/frontend/converters/test_layers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm import relax

from tuner.frontend.converters.call import Call, Converter, Expr, rank_of, shape_of

_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
_TRANSPOSED = {
    1: relax.op.nn.conv1d_transpose,
    2: relax.op.nn.conv2d_transpose,
    3: relax.op.nn.conv3d_transpose,
}
_LAYOUTS = {1: "W", 2: "HW", 3: "DHW"}
"""Names of the axes of a picture, by their number."""


def _convolution(call: Call) -> Expr:
    """Emit a convolution, and its bias as a sum behind it."""
    x, weight = call["input"], call["weight"]
    num_axes = rank_of(weight) - 2
    is_single = rank_of(x) == num_axes + 1
    if is_single:
        x = call.emit(relax.op.expand_dims(x, 0))
    found = _transposed(call, x, weight) if _is_transposed(call) else _plain(call, x, weight)
    if call.has("bias"):
        bias = call.emit(relax.op.reshape(call["bias"], [1, -1, *[1] * num_axes]))
        found = call.emit(relax.op.add(found, bias))
    return call.emit(relax.op.squeeze(found, [0])) if is_single else found


def _plain(call: Call, x: Expr, weight: Expr) -> Expr:
    num_axes = rank_of(weight) - 2
    strides, dilation = (_each(call[name], num_axes) for name in ("stride", "dilation"))
    padding = _padding(call["padding"], shape_of(weight)[2:], dilation)
    axes = _LAYOUTS[num_axes]
    convolution = _CONVOLUTIONS[num_axes](
        x,
        weight,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=call["groups"],
        data_layout=f"NC{axes}",
        kernel_layout=f"OI{axes}",
    )
    return call.emit(convolution)


def _transposed(call: Call, x: Expr, weight: Expr) -> Expr:
    num_axes = rank_of(weight) - 2
    padding = _each(call["padding"], num_axes)
    axes = _LAYOUTS[num_axes]
    convolution = _TRANSPOSED[num_axes](
        x,
        weight,
        strides=_each(call["stride"], num_axes),
        padding=[*padding, *padding],
        output_padding=_each(call["output_padding"], num_axes),
        dilation=_each(call["dilation"], num_axes),
        groups=call["groups"],
        data_layout=f"NC{axes}",
        kernel_layout=f"IO{axes}",
    )
    return call.emit(convolution)


def _is_transposed(call: Call) -> bool:
    if "transposed" in call.names:
        return bool(call["transposed"])
    return call.node.target.__name__.startswith("conv_transpose")


def _padding(given: str | int | Sequence[int], kernel: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """Return padding before every axis and then after each; an odd rest of `same` stands behind."""
    if given == "valid":
        return [0] * (2 * len(kernel))
    if given == "same":
        totals = [step * (extent - 1) for step, extent in zip(dilation, kernel, strict=True)]
        return [*(total // 2 for total in totals), *(total - total // 2 for total in totals)]
    assert not isinstance(given, str)
    padding = _each(given, len(kernel))
    return padding * 2


def _each(given: int | Sequence[int], count: int) -> list[int]:
    """Return one number for each axis, where torch takes one for all as well."""
    numbers = [given] if isinstance(given, int) else [int(number) for number in given]
    return numbers * count if len(numbers) == 1 else numbers


_OVERLOADS = (
    *(f"conv{n}d.{overload}" for n in (1, 2, 3) for overload in ("default", "padding")),
    "conv_transpose1d.default",
    "conv_transpose2d.input",
    "conv_transpose3d.input",
    "convolution.default",
)

CONVOLUTIONS: Mapping[str, Converter] = dict.fromkeys(_OVERLOADS, _convolution)
"""Converter by name of operator and overload."""

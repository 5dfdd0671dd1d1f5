"""The kernels that the language model reads: named by family and extents, drawn at random, or a model's.

A name such as `dense:64x256x256,relu` says what is computed, so that training sets and held-out kernels can
be written down. Each becomes the one TVM kernel that the tuner's backends fuse it into. All are of float32.
Checked in tests/tuner/language/test_kernels.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from tuner.backends.metaschedule.backend import tuning_tasks
from tuner.backends.tvm.native import fuse_as_tvm_does, fuse_function
from tuner.errors import UnknownNameError
from tuner.frontend import load_model
from tuner.graph.legalization import legalize_operators
from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule

op = relax.op

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": op.nn.relu, "gelu": op.nn.gelu}

FAMILIES = {
    "dense": ("rows", "inner", "columns"),
    "product": ("batch", "rows", "inner", "columns"),
    "convolution": ("channels", "extent", "outputs", "kernel", "stride"),
    "depthwise": ("channels", "extent", "kernel", "stride"),
}
"""Kernels by what they compute, with what their extents mean."""

_KERNEL = re.compile(r"([a-z]+):(\d+(?:x\d+)*)(?:,([a-z]+))?")

_MAX_EXTENT = 65536

_MIN_OPERATIONS, _MAX_OPERATIONS = 10**6, 2 * 10**8
"""A trial of a random kernel takes milliseconds at most, whatever its schedule."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one kernel computes.

    Attributes:
        family: one of `FAMILIES`.
        extents: as many as the family has, each at least 1.
        activation: what follows a dense layer, one of `ACTIVATIONS`; empty for none.
    """

    family: str
    extents: tuple[int, ...]
    activation: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise UnknownNameError(
                f"there is no kernel family {self.family!r}; give one of {', '.join(FAMILIES)}"
            )
        wanted = FAMILIES[self.family]
        if len(self.extents) != len(wanted) or not all(1 <= each <= _MAX_EXTENT for each in self.extents):
            raise ValueError(
                f"kernel {self.name!r} has extents {self.extents}; {self.family} has {'×'.join(wanted)}, "
                f"each from 1 to {_MAX_EXTENT}"
            )
        if self.activation and (self.family != "dense" or self.activation not in ACTIVATIONS):
            raise ValueError(
                f"kernel {self.name!r} has activation {self.activation!r}; only dense has one, of "
                f"{', '.join(ACTIVATIONS)}"
            )

    @property
    def num_operations(self) -> int:
        """Additions and multiplications of the product or convolution."""
        match self.family:
            case "dense" | "product":
                return 2 * math.prod(self.extents)
            case "depthwise":
                channels, extent, size, stride = self.extents
                return 2 * channels * _outputs(extent, stride) ** 2 * size**2
        channels, extent, outputs, size, stride = self.extents
        return 2 * channels * outputs * _outputs(extent, stride) ** 2 * size**2

    @property
    def name(self) -> str:
        """The name that `parse_kernel` reads."""
        extents = "x".join(map(str, self.extents))
        return f"{self.family}:{extents}" + (f",{self.activation}" if self.activation else "")


def parse_kernel(name: str) -> Kernel:
    """Return the kernel of a name such as `dense:64x256x256,relu`.

    Raises:
        UnknownNameError: there is no such family.
        ValueError: the rest does not fit the family.
    """
    match = _KERNEL.fullmatch(name.strip())
    if match is None:
        raise ValueError(
            f"kernel {name!r} is not written as family:extents, such as dense:64x256x256,relu or "
            "convolution:32x28x64x3x1"
        )
    return Kernel(match[1], tuple(map(int, match[2].split("x"))), match[3] or "")


def is_kernel_name(name: str) -> bool:
    """Say whether a name is one of `parse_kernel`'s, not a model's."""
    return _KERNEL.fullmatch(name.strip()) is not None


def random_kernel(family: str, rng: np.random.Generator) -> Kernel:
    """Return a kernel of a family with extents as networks have them, of 10⁶ to 2·10⁸ operations."""
    while True:
        kernel = _any_kernel(family, rng)
        if _MIN_OPERATIONS <= kernel.num_operations <= _MAX_OPERATIONS:
            return kernel


def kernel_module(kernel: Kernel) -> IRModule:
    """Return a module whose `main` is the kernel, fused as the tuner's backends fuse it."""
    match kernel.family:
        case "dense":
            return _dense(kernel)
        case "product":
            batch, rows, inner, columns = kernel.extents
            return _one_kernel([(batch, rows, inner), (batch, inner, columns)], op.matmul)
        case "depthwise":
            channels, extent, size, stride = kernel.extents
            return _convolution(channels, extent, channels, size, stride, groups=channels)
    channels, extent, outputs, size, stride = kernel.extents
    return _convolution(channels, extent, outputs, size, stride, groups=1)


def named_kernels(name: str) -> list[tuple[str, IRModule]]:
    """Return the kernels that a name stands for, each with a name of its own.

    Args:
        name: a kernel as `parse_kernel` reads it; a model such as `gpt2:tiny` for all kernels that it becomes
            where TVM's own rules fuse it; or `gpt2:tiny#3` for one of those.

    Raises:
        TunerError: there is no such family, model or kernel of it.
        ValueError: the extents do not fit the family.
    """
    if is_kernel_name(name):
        kernel = parse_kernel(name)
        return [(kernel.name, kernel_module(kernel))]
    model, mark, number = name.partition("#")
    tasks = _model_kernels(model)
    if not mark:
        return [(f"{model}#{index}", task) for index, task in enumerate(tasks)]
    if not number.isdigit() or int(number) >= len(tasks):
        raise UnknownNameError(
            f"{model} has no kernel {number!r}; they are {model}#0 to {model}#{len(tasks) - 1}"
        )
    return [(name, tasks[int(number)])]


def _model_kernels(name: str) -> list[IRModule]:
    builder = relax.BlockBuilder()
    builder.add_func(load_model(name).module["main"].with_attr("global_symbol", "main"), "main")
    return tuning_tasks(fuse_as_tvm_does(legalize_operators()(builder.get())))


def _any_kernel(family: str, rng: np.random.Generator) -> Kernel:
    """Return a kernel of any size; more than a third have extents that are no multiple of 16, some prime."""
    wide = [32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512]
    if family == "dense":
        activation = str(rng.choice(["", "relu", "gelu"]))
        rows = _pick_or_any(rng, [1, 8, 10, 16, 32, 49, 64, 77, 100, 128, 196, 256], (1, 256))
        inner = _pick(rng, [*wide, 768])
        columns = _pick(rng, [*wide, 40, 72, 100, 200, 300, 768, 1000, 1152])
        return Kernel(family, (rows, inner, columns), activation)
    if family == "product":
        batch, inner = _pick(rng, [1, 2, 4, 8, 12, 16]), _pick(rng, [16, 32, 48, 64, 96, 128])
        rows = _pick_or_any(rng, [16, 32, 50, 64, 77, 98, 100, 128], (5, 256))
        # Rows and columns of attention's products are the same sequence.
        columns = rows if rng.random() < 0.5 else _pick(rng, [*wide[:6], 50, 65, 77, 98])
        return Kernel(family, (batch, rows, inner, columns))
    extent, stride = _pick(rng, [7, 13, 14, 26, 28, 35, 56]), _pick(rng, [1, 1, 2])
    if family == "depthwise":
        count = _pick(rng, [*wide, 24, 40, 88, 144])
        return Kernel(family, (count, extent, _pick(rng, [3, 5]), stride))
    channels = [3, 8, 16, 24, 32, 36, 48, 64, 96, 128]
    kernel, outputs = _pick(rng, [1, 3, 3, 5]), _pick(rng, channels[1:])
    return Kernel(family, (_pick(rng, channels), extent, outputs, kernel, stride))


def _outputs(extent: int, stride: int) -> int:
    return -(-extent // stride)


def _pick(rng: np.random.Generator, values: Sequence[int]) -> int:
    return int(values[int(rng.integers(len(values)))])


def _pick_or_any(rng: np.random.Generator, values: Sequence[int], ends: tuple[int, int]) -> int:
    """Return one of these values, or as often any number between two, their logarithms as likely."""
    if rng.random() < 0.5:
        return _pick(rng, values)
    return round(math.exp(rng.uniform(math.log(ends[0]), math.log(ends[1]))))


def _dense(kernel: Kernel) -> IRModule:
    rows, inner, columns = kernel.extents
    activation = ACTIVATIONS.get(kernel.activation, lambda x: x)
    return _one_kernel(
        [(rows, inner), (inner, columns), (columns,)],
        lambda x, weight, bias: activation(op.add(op.matmul(x, weight), bias)),
    )


def _convolution(
    channels: int, extent: int, outputs: int, size: int, stride: int, *, groups: int
) -> IRModule:
    return _one_kernel(
        [(1, channels, extent, extent), (outputs, channels // groups, size, size)],
        lambda x, weight: op.nn.relu(
            op.nn.conv2d(x, weight, strides=stride, padding=size // 2, groups=groups)
        ),
    )


def _one_kernel(shapes: Sequence[tuple[int, ...]], body: Callable[..., Any]) -> IRModule:
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"p{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(shapes)
    ]
    with builder.function("part", parameters, attrs={PARTITION_ATTRIBUTE: "metaschedule"}):
        with builder.dataflow():
            result = builder.emit_output(body(*parameters))
        builder.emit_func_output(result)
    module = relax.transform.Normalize()(builder.get())
    (task,) = tuning_tasks(fuse_function(module["part"]))
    return task

"""Choose how feed-forward layers and attention are divided: by columns, then by rows, and by heads.

    x ── W₁ by columns ── gelu ── W₂ by rows ── sum          one all-reduce, not between W₁ and W₂
    x ── Wq, Wk, Wv by heads ── attention ── Wo by rows ── sum

A product of a whole tensor and a weight is divided by columns where what follows can be computed on the parts
up to products whose rows take them: heads are found by the reshape that separates them. What meets no such
product, or an operator without a rule (a norm over the split axis), stays whole on every shard. Nothing here
is particular to a model: each choice is tried by the rules of `tuner.shards.propagate`. Checked in
tests/tuner/shards/test_tensor_parallel.py.

Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tvm import relax

from tuner.errors import TunerError, UnsupportedOperatorError
from tuner.shards.layouts import Layout, Split, split_axis
from tuner.shards.propagate import Propagation
from tuner.stages.interface import Stage
from tuner.stages.program import Binding, Expr, Var, operator_name, variables_of

_SECTIONS = (1, 3)
"""Equal runs of a weight's columns, each of which is divided: query, key and value may be one product."""


def tensor_parallel_layouts(
    stage: Stage, layouts: Mapping[str, Layout], num_shards: int
) -> Mapping[str, Layout]:
    """Return layouts of a stage's weights, those that are given included.

    Args:
        stage: what is to be divided.
        layouts: of weights that are divided already, by name.
        num_shards: at least 2.
    """
    forward = _read(stage)
    try:
        chosen = _Chosen(dict(layouts), Propagation(stage.forward, layouts, num_shards))
    except UnsupportedOperatorError:
        return dict(layouts)
    for number, product in enumerate(forward.products):
        if product.weight in chosen.layouts:
            continue
        for columns in _columns(forward, product, num_shards):
            found = _closed(stage, forward, chosen, columns, number)
            if found is not None:
                chosen = found
                break
    return chosen.layouts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Product:
    """A product with a weight.

    Attributes:
        left: what is multiplied by it.
        rows: axis of the weight that is summed over.
        biases: names of the weights that are added to the product, along its columns.
    """

    left: Expr
    weight: str
    rows: int
    columns: int
    extent: int
    biases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forward:
    """What is read of a stage's forward function.

    Attributes:
        products: with weights that have two axes, in order.
        depths: widths of heads, as far as reshapes show any; 1 at the end.
    """

    products: tuple[_Product, ...]
    depths: tuple[int, ...]


def _read(stage: Stage) -> _Forward:
    function = stage.forward.module["main"]
    bindings = [
        Binding(binding.var, binding.value, variables_of(binding.value))
        for block in function.body.blocks
        for binding in block.bindings
    ]
    own = set(stage.parameters)
    axes: dict[Var, tuple[str, tuple[int, ...]]] = {
        parameter: (info.name, tuple(range(len(info.shape))))
        for parameter, info in zip(function.params, stage.forward.inputs, strict=True)
        if info.name in own
    }
    depths: dict[int, None] = {}
    for binding in bindings:
        operator = operator_name(binding.value)
        if operator == "permute_dims" and binding.value.args[0] in axes:
            name, before = axes[binding.value.args[0]]
            order = binding.value.attrs.axes
            moved = range(len(before))[::-1] if order is None else [int(axis) for axis in order]
            axes[binding.var] = name, tuple(before[axis] for axis in moved)
        elif operator == "reshape":
            shapes = [_shape(binding.value.args[0]), _shape(binding.value)]
            if len(shapes[1]) > len(shapes[0]) and shapes[1][-1] != shapes[0][-1]:
                depths[shapes[1][-1]] = None
    products = [_product(binding, bindings, axes) for binding in bindings]
    return _Forward(products=tuple(each for each in products if each is not None), depths=(*depths, 1))


def _product(
    binding: Binding, bindings: list[Binding], axes: Mapping[Var, tuple[str, tuple[int, ...]]]
) -> _Product | None:
    if operator_name(binding.value) != "matmul":
        return None
    left, right = binding.value.args
    if right not in axes or len(axes[right][1]) != 2:
        return None
    name, (rows, columns) = axes[right]
    extent = _shape(binding.value)[-1]
    added = [
        other
        for each in bindings
        if operator_name(each.value) == "add" and binding.var in each.reads
        for other in each.value.args
        if other in axes and _shape(other) == (extent,)
    ]
    return _Product(
        left=left,
        weight=name,
        rows=rows,
        columns=columns,
        extent=extent,
        biases=tuple(axes[other][0] for other in added),
    )


def _columns(forward: _Forward, product: _Product, num_shards: int) -> Iterator[dict[str, Layout]]:
    """Yield the ways to divide a weight by columns, with its biases: by whole heads before single columns."""
    for depth in forward.depths:
        for sections in _SECTIONS:
            try:
                split = split_axis(0, product.extent, num_shards, unit=depth, sections=sections)
            except TunerError:
                continue
            layouts: dict[str, Layout] = {product.weight: split.moved(product.columns)}
            yield layouts | dict.fromkeys(product.biases, split)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Layouts of weights by name, and how all values of the stage lie then."""

    layouts: dict[str, Layout]
    values: Propagation

    def extended(self, layouts: Mapping[str, Layout]) -> _Chosen:
        return _Chosen({**self.layouts, **layouts}, self.values.changed(layouts))


def _closed(
    stage: Stage, forward: _Forward, chosen: _Chosen, columns: Mapping[str, Layout], number: int
) -> _Chosen | None:
    """Divide by rows every later weight whose product takes a split tensor; None if that ends badly.

    It does if an operator has no rule, what the stage hands on is still split, or no product sums over what
    the columns make.
    """
    later = forward.products[number + 1 :]
    is_closed = False
    try:
        found = chosen.extended(columns)
        for product in later:
            layout = found.values.layout_of(product.left)
            axis = len(_shape(product.left)) - 1
            if product.weight in found.layouts or not isinstance(layout, Split) or layout.axis != axis:
                continue
            found = found.extended({product.weight: layout.moved(product.rows)})
            is_closed = True
    except TunerError:
        return None
    handed_on = {info.name for info in (*stage.outputs, *stage.sent)}
    results = found.values.result_layouts().items()
    if any(isinstance(layout, Split) for name, layout in results if name in handed_on):
        return None
    return found if is_closed or _joins_others(later, found) else None


def _joins_others(later: Iterable[_Product], found: _Chosen) -> bool:
    """Whether what the columns make is summed over by a product that is divided by rows already."""
    return any(
        product.weight in found.layouts and isinstance(found.values.layout_of(product.left), Split)
        for product in later
    )


def _shape(value: Any) -> tuple[int, ...]:
    shape = getattr(value.ty, "shape", None)
    return tuple(int(extent) for extent in shape) if isinstance(shape, relax.ShapeExpr) else ()

"""Batch normalisation after a convolution, folded into the convolution's weights if these are constant.

With given statistics a normalisation is `scale * x + shift`, one scale and shift a channel, so that
`normalise(convolve(x, W))` is `convolve(x, scale * W) + shift`; a bias between the two becomes part of the
shift. What makes the new weights of the old ones is a private function beside `main`, `PREPARE_NAME`; a
partition's module calls it (`tuner.lowering.outline`), and it runs once (`tuner.lowering.weight_binding`).
Checked in tests/tuner/lowering/test_batch_norm_folding.py against the function as it was.

Source: TVM's FoldBatchnormToConv2D, which wants weights as constants of the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from tuner.graph.relax_source import replace_variables
from tuner.graph.relax_types import PREPARE_NAME, VARIANCES_ATTRIBUTE, IRModule, RelaxFunction, num_inputs_of

op = relax.op

_LAYOUTS = {
    "relax.nn.conv1d": ("NCW", "OIW"),
    "relax.nn.conv2d": ("NCHW", "OIHW"),
    "relax.nn.conv3d": ("NCDHW", "OIDHW"),
}
"""Convolutions, and where their results and filters have channels."""


def fold_batch_norms(module: IRModule) -> IRModule:
    """Return the module with `main` on folded weights, and `PREPARE_NAME` that makes them of the old ones.

    It is returned as it is where nothing can be folded.

    Args:
        module: its `main` says which parameters are weights (`NUM_INPUTS_ATTRIBUTE`).
    """
    main = module["main"]
    folds = _find_folds(main)
    if not folds:
        return module
    num_inputs = num_inputs_of(main) or 0
    gone = {variable for fold in folds for variable in fold.replaced}
    read = Counter(variable for binding in _bindings(main) for variable in _read(binding.value))
    used_here = Counter(variable for fold in folds for variable in fold.replaced)
    kept = [
        weight
        for weight in main.params[num_inputs:]
        if weight not in gone or read[weight] > used_here[weight]
    ]
    rest = module.clone()
    del rest["main"]
    builder = relax.BlockBuilder(rest)
    _emit_prepare(builder, main, kept, folds)
    _emit_main(builder, main, main.params[:num_inputs], kept, folds)
    return builder.get()


@dataclass(frozen=True, slots=True)
class _Fold:
    """A convolution and the normalisation that alone reads it, or its sum with a bias."""

    convolved: Any
    convolution: Any
    normalised: Any
    normalisation: Any
    bias: _Bias | None

    @property
    def replaced(self) -> tuple[Any, ...]:
        """The weights that it takes: filters, scale, shift, mean, variance, and bias where there is one."""
        bias = () if self.bias is None else (self.bias.weight,)
        return (self.convolution.args[1], *self.normalisation.args[1:], *bias)


@dataclass(frozen=True, slots=True)
class _Bias:
    """What is added to a convolution before it is normalised.

    Attributes:
        weight: one element a channel.
        shaped: the weight as it is added, where it is reshaped before.
        added: the sum.
    """

    weight: Any
    shaped: Any
    added: Any


def _find_folds(main: RelaxFunction) -> list[_Fold]:
    num_inputs = num_inputs_of(main)
    if num_inputs is None:
        return []
    weights = set(main.params[num_inputs:])
    readers = Counter(variable for binding in _bindings(main) for variable in _read(binding.value))
    readers.update(relax.analysis.free_vars(main.body.body))
    calls = {binding.var: binding.value for binding in _bindings(main)}
    extra = {
        value.tuple_value
        for value in calls.values()
        if isinstance(value, relax.TupleGetItem) and value.index != 0
    }
    folds = []
    for variable, value in calls.items():
        if not _is(value, "relax.nn.batch_norm") or value.attrs.training or variable in extra:
            continue
        convolved, bias = value.args[0], None
        if _is(calls.get(convolved), "relax.add") and readers[convolved] == 1:
            convolved, bias = _find_bias(convolved, calls, readers)
        convolution = calls.get(convolved)
        layouts = next((each for name, each in _LAYOUTS.items() if _is(convolution, name)), None)
        if convolution is None or layouts is None or readers[convolved] != 1:
            continue
        fold = _Fold(convolved, convolution, variable, value, bias)
        attributes = convolution.attrs
        channels_match = (
            attributes.out_layout,
            attributes.kernel_layout,
            int(value.attrs.axis),
        ) == (*layouts, 1)
        if channels_match and value.attrs.scale and value.attrs.center and set(fold.replaced) <= weights:
            folds.append(fold)
    return folds


def _find_bias(added: Any, calls: Mapping[Any, Any], readers: Mapping[Any, int]) -> tuple[Any, _Bias | None]:
    """Return what a sum adds a bias to, one element a channel, and the bias; None where it is no such sum."""
    for whole, addend in (calls[added].args, reversed(calls[added].args)):
        if not (isinstance(addend, relax.Var) and _has_one_a_channel(addend, added)):
            continue
        reshape = calls.get(addend)
        if reshape is None:
            return whole, _Bias(addend, None, added)
        if _is(reshape, "relax.reshape") and readers[addend] == 1:
            return whole, _Bias(reshape.args[0], addend, added)
    return added, None


def _has_one_a_channel(addend: Any, added: Any) -> bool:
    shapes = [each.ty.shape for each in (addend, added)]
    if any(not isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    wanted = [1, shapes[1][1], *[1] * (len(shapes[1]) - 2)]
    found = [*shapes[0], shapes[1][1]]
    if not all(isinstance(extent, tirx.IntImm) for extent in found):
        return False
    return list(map(int, shapes[0])) == list(map(int, wanted))


def _emit_prepare(builder: Any, main: RelaxFunction, kept: Sequence[Any], folds: Sequence[_Fold]) -> None:
    """Emit the function from the weights to those that stay and, for each fold, its filters and shift."""
    weights = list(main.params[num_inputs_of(main) :])
    parameters = {weight: relax.Var(weight.name, weight.ty) for weight in weights}
    calls = [binding.value for binding in _bindings(main) if _is(binding.value, "relax.nn.batch_norm")]
    variances = {call.args[4] for call in calls}
    attributes = {VARIANCES_ATTRIBUTE: [index for index, weight in enumerate(weights) if weight in variances]}
    with builder.function(PREPARE_NAME, list(parameters.values()), attrs=attributes, private=True):
        with builder.dataflow():
            results = [parameters[weight] for weight in kept]
            for fold in folds:
                filters, gamma, beta, mean, variance, *bias = (parameters[weight] for weight in fold.replaced)
                epsilon = relax.const(float(fold.normalisation.attrs.epsilon), variance.ty.dtype)
                scale = builder.emit(op.divide(gamma, op.sqrt(op.add(variance, epsilon))))
                for each in bias:
                    mean = builder.emit(op.subtract(mean, op.reshape(each, (-1,))))
                shift = builder.emit(op.subtract(beta, op.multiply(mean, scale)))
                around = [1] * (filters.ty.ndim - 2)
                results.append(builder.emit(op.multiply(filters, op.reshape(scale, (-1, 1, *around)))))
                results.append(builder.emit(op.reshape(shift, (1, -1, *around))))
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)


def _emit_main(
    builder: Any, main: RelaxFunction, inputs: Sequence[Any], kept: Sequence[Any], folds: Sequence[_Fold]
) -> None:
    values: dict[Any, Any] = {
        variable: relax.Var(variable.name, variable.ty) for variable in (*inputs, *kept)
    }
    parameters = list(values.values())
    folded = {}
    biases = {fold.bias.added: fold.convolved for fold in folds if fold.bias is not None}
    unread = {fold.bias.shaped for fold in folds if fold.bias is not None}
    for fold in folds:
        filters = relax.Var(f"{fold.convolution.args[1].name}_folded", fold.convolution.args[1].ty)
        channels, _, *window = filters.ty.shape
        shift = relax.Var(
            f"{fold.convolution.args[1].name}_shift",
            relax.TensorType((1, int(channels), *[1] * len(window)), filters.ty.dtype),
        )
        parameters += [filters, shift]
        folded[fold.convolved] = filters
        folded[fold.normalised] = shift
    attributes = {
        str(name): main.attrs[name]
        for name in main.attrs.keys()  # noqa: SIM118 - TVM's maps
        if str(name) != "global_symbol"
    }
    with builder.function("main", parameters, attrs=attributes):
        with builder.dataflow():
            for binding in _bindings(main):
                value, variable = binding.value, binding.var
                if variable in unread:
                    continue
                if variable in biases:
                    values[variable] = values[biases[variable]]
                    continue
                if isinstance(value, relax.TupleGetItem):
                    whole = values[value.tuple_value]
                    is_folded = value.tuple_value in folded
                    field = relax.TupleGetItem(whole, value.index)
                    values[variable] = whole if is_folded else builder.emit(field, variable.name)
                elif variable in folded and _is(value, "relax.nn.batch_norm"):
                    shifted = op.add(values[value.args[0]], folded[variable])
                    values[variable] = builder.emit(shifted, variable.name)
                elif variable in folded:
                    arguments = [values[value.args[0]], folded[variable]]
                    convolved = relax.Call(value.op, arguments, value.attrs)
                    values[variable] = builder.emit(convolved, variable.name)
                else:
                    renamed = replace_variables(value, lambda read: values[read])
                    values[variable] = builder.emit(renamed, variable.name)
            result = builder.emit_output(replace_variables(main.body.body, lambda read: values[read]))
        builder.emit_func_output(result)


def _bindings(function: RelaxFunction) -> list[Any]:
    return [binding for block in function.body.blocks for binding in block.bindings]


def _read(value: Any) -> list[Any]:
    return list(relax.analysis.free_vars(value))


def _is(value: Any, name: str) -> bool:
    return isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) and value.op.name == name

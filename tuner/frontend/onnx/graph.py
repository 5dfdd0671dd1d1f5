"""Preprocess an ONNX graph for import: bind static shapes and fold constants.

TVM's importer turns every initialiser into a parameter, and what ONNX computes from constants into operators
that run each time. So nodes over constants are evaluated here by onnx's own reference, a shape that is known
becomes a constant, and what the importer takes badly is rewritten. In a model that trains, what is made of
weights is computed as it runs: its weights are the file's own, in the file's layout, and one that the graph
reads as it lies and transposed is one weight with one gradient. Checked in
tests/tuner/frontend/onnx/test_graph.py and tests/tuner/stages/gradients/test_onnx_weights.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tuner.errors import ModelFileError, UnknownNameError, UnsupportedOperatorError
from tuner.frontend.onnx.control_flow import is_control_flow, write_out_control_flow
from tuner.frontend.onnx.functions import functions_to_write_out, write_out_functions
from tuner.frontend.onnx.fused import DOMAIN, write_out_fused
from tuner.frontend.onnx.old_opsets import (
    align_operands,
    has_old_operators,
    normalise_by_element,
    raise_opset,
)
from tuner.frontend.onnx.quantised import write_out_quantised
from tuner.frontend.onnx.recurrent import unroll_recurrent
from tuner.frontend.onnx.reference import results_of
from tuner.frontend.onnx.rewrite import (
    OnnxModel,
    OnnxNode,
    Shapes,
    drop_widths_of_one,
    simplify_graph,
    spell_out_extents,
    spell_out_padding,
)
from tuner.frontend.shapes import Scalar, static_shapes

_MAX_SHAPE = 1024
"""Elements above which a constant is taken for a weight, which no shape follows from."""

_READ_AS_NUMBERS = {
    "Clip": (1, 2),
    "OneHot": (2,),
    "Pad": (2,),
    "Pow": (1,),
    "Resize": (1, 2),
    "Upsample": (1,),
}
"""Inputs of floating point that say how an operator works: no weights, whatever they are made of."""

_TORCHS_OWN = re.compile(r"val_\d+")
"""How torch's exporter names what a module does not."""

_LAYERS = frozenset(
    {
        "Attention",
        "BatchNormalization",
        "Conv",
        "ConvTranspose",
        "Einsum",
        "GRU",
        "Gather",
        "Gemm",
        "GroupNormalization",
        "InstanceNormalization",
        "LSTM",
        "LayerNormalization",
        "MatMul",
        "PRelu",
        "RMSNormalization",
        "RNN",
    }
)
"""Operators that read weights."""

_OF_A_FUNCTION = "of a function"
"""Noted with a constant that a function's body holds or makes, such as a mask: no weight of the file."""

RANDOM_OPERATORS = (
    "RandomNormal",
    "RandomUniform",
    "RandomNormalLike",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


def prepare_graph(
    model: OnnxModel,
    name: str,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    values: Mapping[str, Scalar] | None = None,
    training: bool = False,
) -> OnnxModel:
    """Return a copy of the model whose inputs are static, with constants folded and padding explicit.

    Args:
        model: as it was loaded; its initialisers may be listed as inputs, as old files do.
        name: of the model, for messages.
        shapes: wanted shapes by name of input; every symbolic input needs one.
        values: of inputs that are constants from here on, by name, for each of their elements.
        training: whether weights train, so that what is made of them is no constant.

    Raises:
        ModelFileError: onnx's checker does not pass the file, or its constants do not fit in memory.
        UnknownNameError: a shape or value is given for what is no input.
        UnsupportedOperatorError: onnx's tools fail on a file that is valid.
        ValueError: an input has symbolic extents and no shape is given, or what is given does not fit.
    """
    prepared = type(model)()
    prepared.CopyFrom(model)
    bind_inputs(prepared, name, shapes, values or {})
    try:
        _simplify(prepared, training=training)
    except MemoryError as error:
        raise ModelFileError(
            f"{name} computes constants that do not fit in memory ({error}); export it without them"
        ) from error
    except (
        Exception
    ) as error:  # foreign code: onnx's checks, its inference and its reference, on a strange file
        reason = f"{type(error).__name__}: {[*str(error).strip().splitlines(), ''][0][:200]}"
        if _is_valid(model):
            raise UnsupportedOperatorError(
                f"{name} is valid, but onnx's own tools do not prepare it for import ({reason}); export "
                "it for another opset"
            ) from error
        raise ModelFileError(f"{name} is no valid ONNX model ({reason}); export it again") from error
    return prepared


def bind_inputs(
    model: OnnxModel, name: str, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Scalar]
) -> None:
    """Make a model's inputs static or constant, and take initialisers out; arguments and errors as above."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    _bind_shapes(list(graph.input), name, shapes)
    _bind_values(graph, name, values)


def _simplify(model: OnnxModel, *, training: bool) -> None:
    # What a file says of tensors in between and of results may be symbolic: it is inferred anew.
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    weights = _floating_initialisers(model) - _constants_of_torch(model) if training else frozenset()
    normalise_by_element(model)
    drop_widths_of_one(model)
    shapes_by_name = _folded(model, weights)
    while align_operands(model, shapes_by_name):
        shapes_by_name = _folded(model, weights)
    if has_old_operators(model):
        raise_opset(model, _inferred(model))
        shapes_by_name = _folded(model, weights)
    while _write_out(model, shapes_by_name, weights):
        shapes_by_name = _folded(model, weights)
    if unroll_recurrent(model, shapes_by_name):
        shapes_by_name = _infer_shapes(model)
    if write_out_quantised(model, shapes_by_name):
        shapes_by_name = _folded(model, weights)
    simplify_graph(model, shapes_by_name)
    spell_out_padding(model, shapes_by_name)
    spell_out_extents(model, shapes_by_name)
    _state_numbers(model, weights)


def _write_out(model: OnnxModel, shapes: Shapes, weights: frozenset[str]) -> bool:
    """Put what functions, fused operators, branches or steps hold in their place; return whether any did."""
    if any(node.domain == DOMAIN for node in model.graph.node) and write_out_fused(model, _inferred(model)):
        return True
    if functions_to_write_out(model):
        before = {tensor.name for tensor in model.graph.initializer}
        if write_out_functions(model, _inferred(model)):
            _folded(model, weights)
            for tensor in model.graph.initializer:
                if tensor.name not in before:
                    tensor.doc_string = _OF_A_FUNCTION
            return True
    if not any(is_control_flow(node) for node in model.graph.node):
        return False

    def evaluate(node: OnnxNode, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        return _evaluate(node, values, shapes, model)

    return write_out_control_flow(model, _inferred(model), shapes, evaluate)


def _state_numbers(model: OnnxModel, weights: frozenset[str]) -> None:
    """Make a single number of floating point, such as an exponent or an ε, a constant of the program.

    As a parameter it would be drawn at random like a weight, wherever two programs are compared.

    Args:
        model: is changed.
        weights: initialisers that train, and stay what they are unless they say how an operator works.
    """
    graph = model.graph
    trained = weights - _read_as_numbers(graph.node)
    kept = trained | _read_by_layers(graph.node) | {output.name for output in graph.output}
    stated: list[Any] = []
    others: list[Any] = []
    for tensor in graph.initializer:
        is_number = math.prod(tensor.dims) == 1 and _is_floating(tensor) and tensor.name not in kept
        (stated if is_number else others).append(tensor)
    if not stated:
        return
    nodes = [
        helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor) for tensor in stated
    ]
    nodes.extend(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(others)


def _folded(model: OnnxModel, weights: frozenset[str]) -> Shapes:
    """Fold constants until nothing more follows, and return the shapes that are known then."""
    shapes = _infer_shapes(model)
    while _fold_constants(model, shapes, weights):
        shapes = _infer_shapes(model)
    return shapes


def untrained_constants(model: OnnxModel, prepared: OnnxModel) -> frozenset[str]:
    """Return names of a prepared graph's constants that do not train: statistics, numbers, functions' own.

    A number that is no initialiser of the file but stands in a node is part of what is computed, such as
    the scale of attention; larger tensors in nodes are weights, as some exporters write them.

    Args:
        model: as it was loaded.
        prepared: the graph that `prepare_graph` made of it.
    """
    given = {tensor.name for tensor in model.graph.initializer}
    numbers = {
        tensor.name
        for tensor in prepared.graph.initializer
        if tensor.name not in given and (math.prod(tensor.dims) == 1 or tensor.doc_string == _OF_A_FUNCTION)
    }
    statistics = {
        name
        for node in prepared.graph.node
        if node.op_type == "BatchNormalization"
        for name in node.input[3:]
    }
    return frozenset(numbers | statistics) | _constants_of_torch(model)


def graph_operators(model: OnnxModel) -> tuple[str, ...]:
    """Return the names of the operators that the graph uses, with their domain where it is not ONNX's own."""
    names = {
        f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for node in model.graph.node
    }
    return tuple(sorted(names))


def _bind_shapes(inputs: list[Any], name: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    declared = {value.name: declared_shape(value) for value in inputs}
    bound = static_shapes(name, declared, shapes)
    for value in inputs:
        for dimension, extent in zip(value.type.tensor_type.shape.dim, bound[value.name], strict=True):
            dimension.Clear()
            dimension.dim_value = extent


def _bind_values(graph: Any, name: str, values: Mapping[str, Scalar]) -> None:
    """Make constants of inputs, as the first nodes of the graph."""
    inputs = {value.name: value for value in graph.input}
    for given in values:
        if given not in inputs:
            raise UnknownNameError(f"{name} has no input {given!r}; there is {', '.join(inputs)}")
    constants = [
        helper.make_node("Constant", [], [given], name=given, value=_full(inputs[given], name, value))
        for given, value in values.items()
    ]
    if constants:
        kept, nodes = [value for value in graph.input if value.name not in values], list(graph.node)
        del graph.input[:], graph.node[:]
        graph.input.extend(kept)
        graph.node.extend([*constants, *nodes])


def _full(declared: Any, name: str, value: Scalar) -> Any:
    """Return the tensor of an input whose elements are all one value."""
    dtype = helper.tensor_dtype_to_np_dtype(declared.type.tensor_type.elem_type)
    shape = declared_shape(declared)
    try:
        with np.errstate(invalid="ignore"):  # of a number beyond the type, which is found right after
            found = np.full(shape, value, dtype)
        is_exact = bool(np.issubdtype(dtype, np.floating)) or bool(np.equal(found, value).all())
    except (OverflowError, TypeError, ValueError):
        is_exact = False
    if not is_exact:
        raise ValueError(
            f"the value {value} of {name}'s input {declared.name!r} is none of its type; give one of {dtype}"
        )
    return numpy_helper.from_array(found, declared.name)


def declared_shape(value: Any) -> tuple[int, ...]:
    """Return the extents that a file declares, 0 where one is symbolic."""
    return tuple(int(dimension.dim_value) for dimension in value.type.tensor_type.shape.dim)


def _infer_shapes(model: OnnxModel) -> Shapes:
    """Return the shape of every tensor by name; None where onnx's inference cannot tell."""
    inferred = _inferred(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    constants = {tensor.name: tuple(tensor.dims) for tensor in inferred.initializer}
    return {value.name: _known_shape(value) for value in values} | constants


def _inferred(model: OnnxModel) -> OnnxModel:
    """Return the graph with the shapes of its tensors, and with large constants as inputs.

    Inference reads small constants only, so large ones are handed to it as inputs: it copies what it is
    given, and can take no more than 2 GiB.
    """
    return onnx.shape_inference.infer_shapes(_light(model), data_prop=True)


def _is_valid(model: OnnxModel) -> bool:
    """Say whether onnx's checker passes a file, its large constants left aside."""
    try:
        onnx.checker.check_model(_light(model))
    except Exception:  # foreign code, on a strange file
        return False
    return True


def _light(model: OnnxModel) -> OnnxModel:
    """Return the graph with its large constants as inputs."""
    graph = model.graph
    large = [tensor for tensor in graph.initializer if math.prod(tensor.dims) > _MAX_SHAPE]
    small = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _MAX_SHAPE]
    listed = {value.name for value in graph.input}
    weights = [
        helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        for item in large
        if item.name not in listed
    ]
    return helper.make_model(
        helper.make_graph(graph.node, "light", [*graph.input, *weights], graph.output, small),
        opset_imports=list(model.opset_import),
        # Before version 4 the inference looks for initialisers among the inputs alone.
        ir_version=max(model.ir_version, 4),
        functions=list(model.functions),
    )


def _fold_constants(model: OnnxModel, shapes: Shapes, weights: frozenset[str]) -> bool:
    """Evaluate every node whose inputs, or whose input's shape, are known; return whether there was one.

    Args:
        shapes: by name of tensor.
        weights: initialisers that train; a node that makes floating-point tensors of them stays.
    """
    graph = model.graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    numbers = _read_as_numbers(graph.node) if weights else frozenset()
    trained = set(weights)
    folded: dict[str, np.ndarray] = {}
    kept = []
    for node in graph.node:
        results = _evaluate(node, values, shapes, model)
        values |= results or {}
        if results is None:
            kept.append(node)
        elif _trains(node, results, trained) and not numbers.intersection(node.output):
            kept.append(node)
            trained.update(node.output)
        else:
            folded |= results
    if not folded:
        return False
    used = {name for node in kept for name in _names_used(node)} | {output.name for output in graph.output}
    unused = [index for index, tensor in enumerate(graph.initializer) if tensor.name not in used]
    for index in reversed(unused):
        del graph.initializer[index]
    graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in folded.items() if name in used
    )
    del graph.node[:]
    graph.node.extend(kept)
    return True


def _floating_initialisers(model: OnnxModel) -> frozenset[str]:
    return frozenset(tensor.name for tensor in model.graph.initializer if _is_floating(tensor))


def _constants_of_torch(model: OnnxModel) -> frozenset[str]:
    """Return what torch's exporter lists among weights by names of its own: numbers, masks, positions.

    A weight that it transposed has such a name too, but is read by a layer.
    """
    if model.producer_name != "pytorch":
        return frozenset()
    weighed = _read_by_layers(model.graph.node)
    return frozenset(
        tensor.name
        for tensor in model.graph.initializer
        if tensor.name not in weighed and _TORCHS_OWN.fullmatch(tensor.name)
    )


def _read_by_layers(nodes: Sequence[OnnxNode]) -> frozenset[str]:
    return frozenset(name for node in nodes if node.op_type in _LAYERS for name in node.input)


def _is_floating(tensor: Any) -> bool:
    kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return bool(np.issubdtype(kind, np.floating)) or tensor.data_type == onnx.TensorProto.BFLOAT16


def _trains(node: OnnxNode, results: Mapping[str, np.ndarray], trained: set[str]) -> bool:
    """Say whether a node whose results are known passes gradients on to weights.

    Weights that are stored as whole numbers train as what these stand for.
    """
    is_floating = node.op_type != "DequantizeLinear" and any(
        "float" in str(value.dtype) for value in results.values()
    )
    return is_floating and not trained.isdisjoint(node.input)


def _read_as_numbers(nodes: Sequence[OnnxNode]) -> frozenset[str]:
    """Return the names of tensors that say how an operator works, and of all that those are made of."""
    found: set[str] = set()
    for node in reversed(nodes):
        places = _READ_AS_NUMBERS.get(node.op_type, ())
        found.update(name for place, name in enumerate(node.input) if place in places and name)
        if found.intersection(node.output):
            found.update(filter(None, node.input))
    return frozenset(found)


def _evaluate(
    node: OnnxNode,
    values: Mapping[str, np.ndarray],
    shapes: Shapes,
    model: OnnxModel,
) -> dict[str, np.ndarray] | None:
    """Return the node's outputs by name, or None where they are known only when the model runs."""
    shape = shapes.get(node.input[0]) if node.op_type == "Shape" else None
    if shape is not None:
        said = {attribute.name: attribute.i for attribute in node.attribute}
        extents = shape[said.get("start", 0) : said.get("end")]
        return {node.output[0]: np.array(extents, dtype="int64")}
    if node.op_type in RANDOM_OPERATORS or any(attribute.HasField("g") for attribute in node.attribute):
        return None
    if any(name and name not in values for name in node.input):
        return None
    return results_of(node, values, model)


def _known_shape(value: Any) -> tuple[int, ...] | None:
    dimensions = value.type.tensor_type.shape.dim
    if not value.type.tensor_type.HasField("shape") or not all(d.HasField("dim_value") for d in dimensions):
        return None
    return tuple(int(dimension.dim_value) for dimension in dimensions)


def _names_used(node: OnnxNode) -> tuple[str, ...]:
    """Return every name a node reads, also inside the graphs of its branches."""
    inner = [
        name
        for attribute in node.attribute
        if attribute.HasField("g")
        for branch in attribute.g.node
        for name in _names_used(branch)
    ]
    return (*node.input, *inner)

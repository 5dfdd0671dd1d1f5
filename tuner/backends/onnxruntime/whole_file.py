"""An ONNX file as one call of onnxruntime, its nodes as its author, or an exporter, wrote them.

Importing a file changes its operators: onnxruntime no longer recognises all that it has kernels for in what
is written back of them, such as quantised convolutions. Large weights stay outside of the graph, where
programs keep them. Checked in tests/tuner/backends/onnxruntime/test_whole_file.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from tvm import relax

from tuner.backends.onnxruntime.export import as_weight
from tuner.backends.onnxruntime.library import call_of_graph
from tuner.errors import ModelFileError, NotComparableError
from tuner.frontend.model import InputSpec, Model
from tuner.frontend.onnx.file import source_of
from tuner.frontend.onnx.graph import declared_shape
from tuner.frontend.shapes import Scalar
from tuner.frontend.values import random_inputs
from tuner.graph.relax_types import with_num_inputs
from tuner.runtime.library_calls import input_name, output_name

_LEAST_BYTES = 1024
"""A smaller weight stays in the graph: it may be a shape."""

_IN_MEMORY = ("float32", "float64", "float16", "int32", "int64", "int8", "uint8")


def unimported_file(
    path: Path, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Scalar], seed: int
) -> Model:
    """Return a model of a file whose operators are not imported: it can but be one call (`file_as_call`).

    Its `main` computes nothing: what it returns has the types of what onnxruntime gives for drawn inputs.

    Raises:
        ModelFileError: onnxruntime does not run the file either; says why.
    """
    source = source_of(path.read_bytes(), path, shapes, values)
    file = source.load()
    inputs = [
        InputSpec(name=value.name, shape=declared_shape(value), dtype=str(_dtype_of(value)))
        for value in file.graph.input
    ]
    model = Model(
        name=str(path), module=None, inputs=tuple(inputs), parameter_names=(), module_paths=(), source=source
    )
    given = dict(zip([spec.name for spec in inputs], random_inputs(model, seed), strict=True))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(
            bytes(file.SerializeToString()), options, providers=["CPUExecutionProvider"]
        )
        results = [np.asarray(each) for each in session.run(None, given)]
    except Exception as error:  # foreign code
        raise ModelFileError(
            f"onnxruntime does not run {path}: {str(error)[:200]}; check the file"
        ) from error
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        zeros = [relax.op.zeros(each.shape, str(each.dtype)) for each in results]
        builder.emit_func_output(zeros[0] if len(zeros) == 1 else relax.Tuple(zeros))
    return replace(model, module=builder.get())


def _dtype_of(value: Any) -> np.dtype[Any]:
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)


def file_as_call(model: Model, num_threads: int) -> Model | None:
    """Return a model whose `main` calls the file that it was imported from; None where there is none.

    Args:
        model: for inference; its inputs are the file's that are no constants.
    """
    if model.source is None:
        return None
    try:
        file = model.source.load()
    except NotComparableError:  # it is gone, or has changed meanwhile
        return None
    names = [spec.name for spec in model.inputs]
    if {value.name for value in file.graph.input} != set(names):
        return None  # the import has dropped one that nothing reads
    return _as_call(file, names, model, num_threads)


def export_as_call(model: Model, exported: bytes, num_threads: int) -> Model | None:
    """Return a model whose `main` calls what an exporter wrote of the same module; None if its types differ.

    Args:
        model: for inference, of a module.
        exported: an ONNX model, whose inputs should be the module's tensors in order.
    """
    file = onnx.load_model_from_string(exported)
    given = [(declared_shape(value), str(_dtype_of(value))) for value in file.graph.input]
    result = model.module["main"].ret_ty
    num_results = len(result.fields) if isinstance(result, relax.TupleType) else 1
    is_alike = given == [(spec.shape, str(spec.dtype)) for spec in model.inputs]
    if not is_alike or len(file.graph.output) != num_results:
        return None
    return _as_call(file, [value.name for value in file.graph.input], model, num_threads)


def _as_call(file: Any, inputs: Sequence[str], model: Model, num_threads: int) -> Model:
    """Return a model that calls a file; `inputs` are the file's names of the model's inputs."""
    graph = file.graph
    weights = _take_weights(graph, len(model.inputs))
    given = {value.name: value for value in graph.input}
    for position, name in enumerate(inputs):
        graph.node.insert(0, helper.make_node("Identity", [input_name(position)], [name]))
        given[name].name = input_name(position)
    for position, result in enumerate(graph.output):
        graph.node.append(helper.make_node("Identity", [result.name], [output_name(position)]))
        result.name = output_name(position)
    names = [f"weight{position}" for position in range(len(weights))]
    tensors = [(spec.name, spec.shape, spec.dtype) for spec in model.inputs]
    tensors += [(name, each.shape, str(each.dtype)) for name, each in zip(names, weights, strict=True)]
    module = call_of_graph(
        bytes(file.SerializeToString()),
        [relax.Var(f"p{at}", relax.TensorType(shape, dtype)) for at, (_, shape, dtype) in enumerate(tensors)],
        range(len(model.inputs), len(tensors)),
        model.module["main"].ret_ty,
        num_threads,
        is_alone=True,
    )
    return replace(
        model,
        module=with_num_inputs(module, len(model.inputs)),
        parameter_names=tuple(names),
        parameters=dict(zip(names, weights, strict=True)),
        tied=(),
    )


def _take_weights(graph: Any, first: int) -> list[np.ndarray]:
    """Move large constants of a graph to memory, and return them; they are inputs from `first` on.

    Some exporters write constants as nodes. What stays in the graph is a part of the text of its call.
    """
    results = {result.name for result in graph.output}
    weights: list[np.ndarray] = []
    renamed: dict[str, str] = {}

    def taken(name: str, tensor: Any) -> Any:
        """Return the initialiser that stands for a large constant; None where it stays as it is."""
        array = numpy_helper.to_array(tensor)
        if array.nbytes < _LEAST_BYTES or str(array.dtype) not in _IN_MEMORY or name in results:
            return None
        renamed[name] = input_name(first + len(weights))
        weights.append(np.array(array))
        return as_weight(renamed[name], array.shape, tensor.data_type)

    for index, tensor in enumerate(graph.initializer):
        if (weight := taken(tensor.name, tensor)) is not None:
            graph.initializer[index].CopyFrom(weight)
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        value = next((each.t for each in node.attribute if each.name == "value"), None)
        if value is not None and (weight := taken(node.output[0], value)) is not None:
            graph.initializer.append(weight)
            graph.node.remove(node)
    _rename_read(graph, renamed)
    return weights


def _rename_read(graph: Any, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for position, name in enumerate(node.input):
            node.input[position] = names.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename_read(inner, names)

"""Import an ONNX file into Relax through TVM's importer.

A file is first tried in a child process with limits (see `sandbox`). Layers are read from the names of
nodes, which exporters write as `/transformer/h.0/attn/MatMul`. Uses of operators that TVM's importer takes,
and gives other results for than ONNX, are refused by name. Checked against onnx's reference and the outputs
that onnx ships, in tests/tuner/frontend/onnx/test_file.py and test_refusals.py.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from tuner.errors import ModelFileError, UnsupportedOperatorError
from tuner.frontend.emission import PathBuilder
from tuner.frontend.imported import finish_imported
from tuner.frontend.model import IRModule, Model
from tuner.frontend.onnx.control_flow import deciding_inputs, is_control_flow
from tuner.frontend.onnx.converters.operators import ADDED, CONVERTERS
from tuner.frontend.onnx.external_data import external_bytes, load_external
from tuner.frontend.onnx.fused import DOMAIN
from tuner.frontend.onnx.graph import (
    declared_shape,
    graph_operators,
    prepare_graph,
    untrained_constants,
)
from tuner.frontend.onnx.index_bounds import bounded
from tuner.frontend.onnx.rewrite import OnnxModel, OnnxNode, opset_of, text_of
from tuner.frontend.onnx.runtime import OnnxSource
from tuner.frontend.sandbox import try_import
from tuner.frontend.shapes import Scalar

logger = logging.getLogger(__name__)

_WIDENED = ("LayerNormalization", "IsNaN", "IsInf", "Pow")
"""Operators that TVM has for no bfloat16; computed in float32, of which every bfloat16 is one."""

_MAX_NAMES = 8
_MAX_QUOTED = 200
"""Operators, and characters of each, that a message quotes."""


def load_onnx(
    path: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Scalar] | None = None,
    guarded: bool = True,
    training: bool = False,
) -> Model:
    """Return the model of a file.

    Args:
        path: of a file `.onnx`; weights that it keeps in files of their own must lie in its folder.
        shapes: static shapes by name of input, needed where the file leaves extents open.
        values: of inputs that become constants, by name, for each of their elements.
        guarded: whether it is first tried in a child process with limits.
        training: whether weights train: then they are the file's own, and what is made of them, such as a
            transposition, is computed by the model.

    Raises:
        ModelFileError: the file is missing, or is no ONNX model, or breaks a limit, or names weights that do
            not lie beside it.
        UnknownNameError: a shape or value is given for what is no input.
        UnsupportedOperatorError: the importer has no such operator, or cannot take one as it is used here.
        ValueError: an input's extents are open and no shape is given, or what is given does not fit.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror or error}; check the path") from error
    if guarded:
        more_bytes = external_bytes(_parse(content, path), path)
        importer = f"{__name__}:{'import_training' if training else 'import_onnx'}"
        try_import(
            importer, content, path, shapes=dict(shapes), values=dict(values or {}), more_bytes=more_bytes
        )
    return import_onnx(content, path, shapes=shapes, values=values, training=training)


def import_training(
    content: bytes,
    path: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Scalar] | None = None,
) -> Model:
    """Return the model of a file's bytes whose weights train; arguments and errors of `load_onnx`."""
    return import_onnx(content, path, shapes=shapes, values=values, training=True)


def import_onnx(
    content: bytes,
    path: Path,
    *,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Scalar] | None = None,
    training: bool = False,
) -> Model:
    """Return the model of a file's bytes; arguments and errors of `load_onnx`."""
    model = _parse(content, path)
    load_external(model, path)
    fixed = dict(values or {})
    source = source_of(content, path, shapes, fixed, training=training)
    graph = prepare_graph(model, path.name, shapes, values=fixed, training=training)
    imported = _import_graph(graph, path.name)
    if training:
        constants = frozenset(map(_parameter_name, untrained_constants(model, graph) | fixed.keys()))
        imported = replace(imported, untrained=constants.intersection(imported.parameter_names))
    return replace(imported, source=source)


def source_of(
    content: bytes,
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    values: Mapping[str, Scalar],
    *,
    training: bool = False,
) -> OnnxSource:
    """Return what runs a file by a runtime of others; arguments of `load_onnx`."""
    open_shapes = {name: shape for name, shape in shapes.items() if name not in values}
    return OnnxSource(
        path=path,
        digest=hashlib.sha256(content).hexdigest(),
        shapes=dict(shapes),
        values=values,
        import_exposed=functools.partial(
            import_exposed, name=path.name, shapes=open_shapes, training=training
        ),
    )


def import_exposed(
    model: OnnxModel, *, name: str, shapes: Mapping[str, tuple[int, ...]], training: bool = False
) -> tuple[Model, tuple[Any, ...]]:
    """Return the model with the first result of every node as its outputs, and those nodes, in order."""
    graph = prepare_graph(model, name, shapes, training=training)
    nodes = tuple(
        node for node in graph.graph.node if node.op_type != "Constant" and node.output and node.output[0]
    )
    del graph.graph.output[:]
    graph.graph.output.extend(onnx.ValueInfoProto(name=node.output[0]) for node in nodes)
    return _import_graph(graph, name), nodes


def _import_graph(graph: OnnxModel, name: str) -> Model:
    """Return the model of a prepared graph."""
    importer = _Importer({value.name: declared_shape(value) for value in graph.graph.input})
    module = _import(importer, graph, name)
    values = {
        _parameter_name(tensor.name): numpy_helper.to_array(tensor) for tensor in graph.graph.initializer
    }
    try:
        return finish_imported(
            name, module, len(graph.graph.input), values=values, paths=importer.bb.paths, then=bounded
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UnsupportedOperatorError(
            f"what TVM's ONNX importer made of {name} is no model ({type(error).__name__}: {error}); export "
            "it again"
        ) from error


def _parameter_name(tensor: str) -> str:
    """Return a tensor's name as TVM's importer has it, without a prefix that torch's exporter writes."""
    return tensor.removeprefix("onnx::")


class _Importer(onnx_frontend.ONNXGraphImporter):
    """TVM's importer, noting the layer of each node and the node it is at."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        # The importer takes an extent of 0 for an open one, unless it is told.
        super().__init__(dict(shapes), None, keep_params_in_input=True, sanitize=False)
        self.bb = PathBuilder()
        self.current_operator = ""

    def _check_for_unsupported_ops(self, graph: OnnxModel) -> None:
        """Leave it to `_import`, which knows of converters that TVM lacks."""

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        self.current_operator = op_name
        node = attrs["tvm_custom"]["name"]
        if op_name == "Expand":  # Its converter looks for a constant, and never up what a name stands for.
            data, shape = inputs
            inputs = [data, onnx_frontend.get_constant(shape, [self._nodes, self._params])]
        with self.bb.layer(_layer(node)):
            is_narrow = op_name in _WIDENED and _dtype(inputs[0]) == "bfloat16"
            if is_narrow:
                inputs = [None if each is None else self.bb.emit(_cast(each, "float32")) for each in inputs]
            attrs["tvm_custom"]["opset"] = opset
            convert = CONVERTERS.get(op_name)
            result = None if convert is None else convert(inputs, attrs, self._constant)
            if result is None:
                result = super()._convert_operator(op_name, inputs, attrs, opset)
            else:
                result = self.bb.normalize(result)
            if is_narrow:
                result = self._narrowed(result, _label(node))
            # The importer leaves calls inside their users; here each is bound while its layer is open.
            is_tensor = isinstance(getattr(result, "ty", None), relax.TensorType | relax.TupleType)
            return (
                self.bb.emit(result, _label(node)) if is_tensor and isinstance(result, relax.Call) else result
            )

    def _constant(self, value: Any) -> np.ndarray | None:
        """Return the value of an input that is a constant or an initialiser; None for any other."""
        if isinstance(value, relax.Var) and value.name in self._params:
            return np.asarray(self._params[value.name][1].numpy())
        return np.asarray(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None

    def _narrowed(self, result: Any, label: str) -> Any:
        """Bring a result, the first of several, back to bfloat16, unless it is one of truth values."""
        if isinstance(result, relax.Tuple):
            return relax.Tuple([self._narrowed(result[0], label), *result.fields[1:]])
        found = self.bb.emit(result, label)
        return found if _dtype(found) == "bool" else self.bb.emit(_cast(found, "bfloat16"), label)


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _cast(value: Any, dtype: str) -> Any:
    return relax.op.astype(value, dtype)


def _parse(content: bytes, path: Path) -> OnnxModel:
    """Return the model of a file's bytes, without the weights that it keeps in files of their own."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf's DecodeError, whose module is private
        raise ModelFileError(f"{path} is not an ONNX model ({error}); export it again") from error
    if not model.graph.node:
        raise ModelFileError(f"{path} holds no operators, so it is empty or no ONNX model; export it again")
    return model


def _import(importer: _Importer, graph: OnnxModel, name: str) -> IRModule:
    known = onnx_frontend._get_convert_map().keys() | ADDED
    missing = [operator for operator in graph_operators(graph) if operator not in known]
    undecided = next((node for node in graph.graph.node if is_control_flow(node)), None)
    if undecided is not None:
        deciding = deciding_inputs(graph, undecided)
        options = " ".join(f"--value {_quoted([each])}=VALUE" for each in deciding)
        fixed = f"fix what decides it ({options}), or " if deciding else ""
        raise UnsupportedOperatorError(
            f"{undecided.op_type} {_quoted([undecided.name])} of {name} takes a course that is known only "
            f"when the model runs, and only data flow can be partitioned; {fixed}export the model with fixed "
            "conditions, counts and shapes"
        )
    if missing:
        fused = [operator for operator in missing if operator.startswith(f"{DOMAIN}.")]
        remedy = (
            "give the file as it was before ONNX Runtime, or a tool of it, optimised it"
            if fused
            else "export the model without it, or decompose it"
        )
        raise UnsupportedOperatorError(
            f"TVM's ONNX importer has no operator {_quoted(fused or missing)}, which {name} uses; {remedy}"
        )
    refused = _refused_use(graph)
    if refused:
        raise UnsupportedOperatorError(
            f"{refused}, which is not imported from {name}; export the model for inference, or without it"
        )
    noise = io.StringIO()
    try:
        # The importer prints on failure and warns of every renamed tensor.
        with contextlib.redirect_stdout(noise), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importer.from_onnx(graph.graph, opset_of(graph))
    except Exception as error:  # foreign code: any fault of a converter names its operator
        logger.debug("importer printed: %s", noise.getvalue())
        raise UnsupportedOperatorError(
            f"TVM's ONNX importer cannot take operator {_quoted([str(importer.current_operator)])} as {name} "
            f"uses it ({_first_line(error)[:_MAX_QUOTED]}); export the model with another opset, or "
            "without it"
        ) from error


def _layer(node: str) -> str:
    """Return the dotted path of the module that a node's name tells of; empty where it tells of none.

    torch's exporter repeats the name of a container in its items, as in `/head/head.1/Gemm`.
    """
    *modules, _ = [part for part in node.split("/") if part] or [""]
    pairs = itertools.pairwise([*modules, ""])
    kept = [module for module, inner in pairs if not inner.startswith(f"{module}.")]
    return ".".join(kept) if node.startswith("/") else ""


def _label(node: str) -> str:
    """Return a node's own name as one that a variable may have."""
    return re.sub(r"\W+", "_", node.rsplit("/", 1)[-1])


def _quoted(operators: Sequence[str]) -> str:
    """Return names out of a file as a message may quote them: some, not too long, and printable."""
    names = [name if name.isprintable() else repr(name) for name in operators]
    more = "" if len(names) <= _MAX_NAMES else f" and {len(names) - _MAX_NAMES} more"
    return ", ".join(name[:_MAX_QUOTED] for name in names[:_MAX_NAMES]) + more


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _refused_use(model: OnnxModel) -> str:
    """Return which node is used as it cannot be imported, and why; empty where all can be."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    constants |= {
        node.output[0]: node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"
    }

    def value(node: OnnxNode, place: int) -> np.ndarray | None:
        """Return an input that is a constant; an absent one, or another, is None."""
        name = node.input[place] if place < len(node.input) else ""
        return numpy_helper.to_array(constants[name]) if name in constants else None

    for given in (*model.graph.input, *model.graph.initializer):
        kind = given.data_type if hasattr(given, "data_type") else given.type.tensor_type.elem_type
        if kind in _NARROW:
            return f"{given.name!r} is of type {_name_of(kind)}"
    results = {output.name for output in model.graph.output}
    for node in model.graph.node:
        said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        reason = ""
        if node.op_type == "BatchNormalization" and said.get("training_mode", 0):
            reason = "normalises by the batch, as in training"
        elif node.op_type == "Dropout" and _is_random(node, value(node, 1), value(node, 2)):
            reason = "draws what it drops, as in training"
        elif node.op_type == "NonMaxSuppression":
            reason = "gives as many boxes as its values say"
        elif node.op_type == "RoiAlign" and text_of(said.get("mode", "avg")) != "avg":
            reason = "takes the largest of sampled values"
        elif node.op_type in _SEQUENCES and results.intersection(node.output):
            reason = "gives the model's user a sequence, where only tensors can be given"
        elif node.op_type == "Cast" and said.get("to") in _NARROW:
            reason = f"makes numbers of {_name_of(said['to'])}"
        if reason:
            return f"{node.op_type} {node.name or node.output[0]!r} {reason}"
    return ""


_SEQUENCES = frozenset({"SequenceConstruct", "SequenceErase", "SequenceInsert", "SplitToSequence"})
"""Operators whose result is a sequence."""

_NARROW = frozenset(
    number for name, number in TensorProto.DataType.items() if name.startswith(("FLOAT8", "FLOAT4"))
)
"""Types of floating point of a byte or less, whose numbers TVM converts otherwise than ONNX."""


def _name_of(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower()


def _is_random(node: OnnxNode, ratio: np.ndarray | None, mode: np.ndarray | None) -> bool:
    """Whether a dropout of version 12 or later drops anything."""
    if len(node.input) < 3 or not node.input[2]:
        return False
    is_off = mode is not None and not mode.any()
    return not is_off and not (ratio is not None and not ratio.any())

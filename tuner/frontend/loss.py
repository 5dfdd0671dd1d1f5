"""Give a model that returns logits a loss to train on.

Checked in tests/tuner/frontend/test_loss.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from tuner.frontend.emission import PathBuilder, finish_model
from tuner.frontend.model import InputSpec, IRModule, Model

_LABELS = "labels"


def with_loss(model: Model) -> Model:
    """Return the model for training: as it is if it returns a scalar, else with a loss on top.

    Of a model that returns several tensors, scalars among them, the loss is the sum of the scalars, and the
    other tensors are left out. Otherwise it is the mean cross-entropy between the only output, logits whose
    last axis are classes, and a new last input `labels` of whole numbers below the number of classes.

    Raises:
        ValueError: the model returns several tensors without a scalar, whole numbers, or no axis of classes.
    """
    result = model.module["main"].ret_ty
    if isinstance(result, relax.TensorType) and result.shape is not None and len(result.shape) == 0:
        return replace(model, training=True)
    losses = _scalars(result) if model.source is None else ()
    if losses:
        return _with_sum(model, losses)
    if not _are_logits(result):
        raise ValueError(
            f"{model.name} returns {result}, which is neither a loss nor one tensor of logits; to train it, "
            "let it return its loss, a scalar"
        )
    *batch, num_classes = (int(extent) for extent in result.shape)
    labels = InputSpec(name=_unused_name(model), shape=tuple(batch), dtype="int64", high=num_classes)
    module, paths = _append_loss(model, labels, keeps_logits=False)
    finished = finish_model(
        model.name,
        module,
        (*model.inputs, labels),
        paths=paths,
        tied=model.tied,
        parameters=model.parameters,
        training=True,
    )
    return replace(
        finished,
        cuts=model.cuts,
        untrained=model.untrained,
        padding_rows=model.padding_rows,
        reference=model.reference,
        before_loss=model,
        notes=model.notes,
        called=model.called,
    )


def with_logits(model: Model) -> IRModule:
    """Return a module whose `main` is the model and returns its outputs, too, where a loss was put on top.

    It takes what the model takes and returns the loss, then the logits; a model as it was imported stays.
    """
    if model.before_loss is None:
        return model.module
    module, _ = _append_loss(model.before_loss, model.inputs[-1], keeps_logits=True)
    return module


def _scalars(result: Any) -> tuple[int, ...]:
    """Return which of several results are scalars of one type of floating point."""
    if not isinstance(result, relax.TupleType):
        return ()
    found = [
        (index, str(field.dtype.dtype))
        for index, field in enumerate(result.fields)
        if isinstance(field, relax.TensorType)
        and field.shape is not None
        and len(field.shape) == 0
        and "float" in str(field.dtype.dtype)
    ]
    return tuple(index for index, dtype in found if dtype == found[0][1])


def _with_sum(model: Model, losses: tuple[int, ...]) -> Model:
    """Return the model that gives the sum of some of its results, and nothing else."""
    function = model.module["main"]
    (block,) = function.body.blocks
    result = function.body.body
    builder = PathBuilder()
    for binding in block.bindings:
        builder.get_unique_name(binding.var.name)  # taken: paths are kept by name
    with builder.function("main", list(function.params)):
        with builder.dataflow():
            for binding, path in zip(block.bindings, model.module_paths, strict=True):
                if binding.var.same_as(result):  # no longer what the block returns
                    result = binding.value
                else:
                    builder.emit_normalized(binding)
                    builder.paths[binding.var.name] = path
            fields = [
                result.fields[index]
                if isinstance(result, relax.Tuple)
                else builder.emit(relax.TupleGetItem(result, index))
                for index in losses
            ]
            total = fields[0]
            with builder.layer("loss" if any(model.module_paths) else ""):
                for field in fields[1:]:
                    total = builder.emit(relax.op.add(total, field))
                output = builder.emit_output(total)
        builder.emit_func_output(output)
    module = builder.get()
    for variable, other in model.module.functions_items():
        if variable.name_hint != "main":
            module.update_func(variable, other)
    finished = finish_model(
        model.name,
        relax.transform.DeadCodeElimination(["main"])(module),
        model.inputs,
        paths=builder.paths,
        tied=model.tied,
        parameters=model.parameters,
        training=True,
    )
    what = f"the sum of its {len(losses)} scalars" if len(losses) > 1 else "its only scalar"
    note = f"the model returns {len(function.ret_ty.fields)} tensors: it is trained on {what}"
    return replace(
        finished,
        cuts=model.cuts,
        untrained=model.untrained,
        padding_rows=model.padding_rows,
        reference=model.reference,
        notes=(*model.notes, note),
        called=model.called,
    )


def _are_logits(result: Any) -> bool:
    return (
        isinstance(result, relax.TensorType)
        and result.shape is not None
        and len(result.shape) > 1
        and "float" in str(result.dtype.dtype)
    )


def _unused_name(model: Model) -> str:
    taken = {spec.name for spec in model.inputs}
    name = _LABELS
    while name in taken:
        name = f"loss_{name}"
    return name


def _append_loss(model: Model, labels: InputSpec, *, keeps_logits: bool) -> tuple[Any, dict[str, str]]:
    """Return the module whose `main` ends in the loss, and paths by name of variable."""
    function = model.module["main"]
    (block,) = function.body.blocks
    num_rows = int(np.prod(labels.shape))
    variable = relax.Var(labels.name, relax.TensorType(labels.shape, labels.dtype))
    parameters = list(function.params)
    parameters.insert(len(model.inputs), variable)
    result = function.body.body
    builder = PathBuilder()
    for binding in block.bindings:
        builder.get_unique_name(binding.var.name)  # taken: paths are kept by name
    # Where no binding tells of a layer, a loss alone would look like the model's only one.
    loss_path = "loss" if any(model.module_paths) else ""
    with builder.function("main", parameters):
        with builder.dataflow():
            for binding, path in zip(block.bindings, model.module_paths, strict=True):
                if binding.var.same_as(result):  # no longer what the block returns, so bound anew
                    with builder.layer(path):
                        result = builder.emit(binding.value, "logits")
                else:
                    builder.emit_normalized(binding)
                    builder.paths[binding.var.name] = path
            with builder.layer(loss_path):
                logits = builder.emit(relax.op.reshape(result, (num_rows, labels.high)))
                dtype = str(logits.ty.dtype.dtype)
                is_half = dtype in ("float16", "bfloat16")
                if is_half:  # as torch's kernel does: computed in float32, and rounded at the end
                    logits = builder.emit(relax.op.astype(logits, "float32"))
                classes = builder.emit(relax.op.reshape(variable, (num_rows,)))
                probabilities = builder.emit(relax.op.nn.log_softmax(logits, axis=-1))
                loss = builder.emit(relax.op.nn.nll_loss(probabilities, classes, reduction="mean"))
                if is_half:
                    loss = builder.emit(relax.op.astype(loss, dtype))
                output = builder.emit_output(relax.Tuple([loss, result]) if keeps_logits else loss)
        builder.emit_func_output(output)
    module = builder.get()
    for variable, other in model.module.functions_items():
        if variable.name_hint != "main":
            module.update_func(variable, other)
    return module, builder.paths

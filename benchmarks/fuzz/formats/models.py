"""Models of torch.export and ONNX."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import MODEL_COUNT, change_by_suffix


def pt2_format() -> Format:
    import torch

    class Attending(torch.nn.Module):
        places: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("places", torch.arange(4).expand(3, 4))
            self.scale = torch.tensor([1.5, 2.0])

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                y = self.layer(x)
            y = torch.nn.functional.scaled_dot_product_attention(y[None], x[None], x[None])
            return {"y": y * self.scale[0], "rest": [self.layer(x), x + self.places[0, 1]]}

    def saved(module: Any, *, is_open: bool) -> Files:
        shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}} if is_open else None
        program = torch.export.export(module.eval(), (torch.ones(4, 4),), dynamic_shapes=shapes)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        return {"model.pt2": buffer.getvalue()}

    return _model_file(
        "pt2",
        lambda: [saved(Attending(), is_open=True), saved(Attending(), is_open=False)],
        change_by_suffix(pt2=mutation.changed_archive),
    )


def onnx_format() -> Format:
    return _model_file("onnx", lambda: [{"model.onnx": _onnx_model()}], change_by_suffix(onnx=_changed_onnx))


def _model_file(
    name: str, samples: Callable[[], list[Files]], change: Callable[[random.Random, Files], Files]
) -> Format:
    from tuner.errors import TunerError
    from tuner.frontend import load_model

    def read(folder: Path) -> None:
        load_model(str(folder / f"model.{name}"))

    return Format(
        name=name,
        count=MODEL_COUNT,
        samples=samples,
        change=change,
        read=read,
        own_errors=(TunerError, ValueError),
        may_start=True,  # the child that tries a file
    )


def _onnx_model() -> bytes:
    """Return a convolution and a product, with what is folded, rewritten and padded before the import."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    values = {
        "kernel": rng.standard_normal((4, 3, 3, 3)).astype("float32"),
        "weight": rng.standard_normal((4, 5)).astype("float32"),
        "extents": np.array([1, -1]),
        "slope": np.array([0.1], dtype="float32"),
    }
    nodes = [
        helper.make_node(
            "Conv", ["x", "kernel"], ["a"], name="/conv/Conv", auto_pad="SAME_UPPER", strides=[2, 2]
        ),
        helper.make_node("PRelu", ["a", "slope"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Concat", ["extents"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["c", "wanted"], ["d"]),
        helper.make_node("Gemm", ["d", "weight"], ["e"], name="/head/Gemm", alpha=1.0),
        helper.make_node("Sum", ["e", "e", "e"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def _changed_onnx(rng: random.Random, content: bytes) -> bytes:
    """Return the model with changes of fields of its messages, or of its bytes."""
    import onnx

    if rng.random() < 0.3:
        return mutation.changed_bytes(rng, content)
    model = onnx.load_model_from_string(content)
    for _ in range(rng.randint(1, 3)):
        _change_field(rng, model)
    changed: bytes = model.SerializeToString()
    return changed


def _change_field(rng: random.Random, message: Any) -> None:
    """Change a field of a protobuf message, or of one inside it."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    is_message = field.type == field.TYPE_MESSAGE
    is_list = hasattr(value, "extend")
    if is_message and (rng.random() < 0.9 or not is_list):
        _change_field(rng, rng.choice(list(value)) if is_list else value)
        return
    if is_list:
        index = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                del value[index]
            case 1:
                value.extend([value[index]] * rng.choice((1, 2, 100)))
            case 2 if not is_message:
                value[index] = _other_scalar(rng, field, value[index])
            case _:
                value.extend([value[index]])
                del value[index]
    else:
        setattr(message, field.name, _other_scalar(rng, field, value))


def _other_scalar(rng: random.Random, field: Any, value: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice((*mutation.TEXTS, *_OPERATORS, "../weights.bin", "/etc/passwd"))
    if field.type == field.TYPE_BYTES:
        return mutation.changed_bytes(rng, value)
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e30, float("inf"), float("nan")))
    wide: tuple[int, ...] = (0, 1, -1, 2, 7, 11, 100, 10**6, 2**31 - 1, -(2**31))
    if field.type in (field.TYPE_INT64, field.TYPE_UINT64):
        wide += (2**31, 10**12, 2**62, -(2**62))
    if field.type == field.TYPE_ENUM:
        return rng.choice(sorted(field.enum_type.values_by_number))
    return rng.choice(wide)


_OPERATORS = (
    "ConstantOfShape",
    "Range",
    "Tile",
    "Expand",
    "Loop",
    "If",
    "Scan",
    "Shape",
    "Resize",
    "Pad",
    "Einsum",
    "StringNormalizer",
    "RandomNormal",
    "TfIdfVectorizer",
    "ai.onnx.ml",
    "QLinearConv",
    "NonZero",
)

"""Published models in eight bits, as onnxruntime's own tool writes them: QDQ files, a scale a channel.

    python -m benchmarks.compiled_programs.quantised FOLDER

Writes a file for each of `QUANTISED`: weights are the published ones where the package brings them, and
scales of activations are calibrated on drawn inputs. `benchmarks.compiled_programs` takes the files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.compiled_programs.models import NamedModel
from tessel.compiling.racing import exported
from tuner.frontend.onnx.rewrite import opset_of

QUANTISED = ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "pp_ocr_direction", "nudenet")

_SCALES_A_CHANNEL = 13
"""The first opset that has them."""


class _Drawn(CalibrationDataReader):
    """Gives inputs of normal numbers."""

    def __init__(self, file: Path) -> None:
        rng = np.random.default_rng(0)
        inputs = onnx.load(file).graph.input
        self._given: Iterator[dict[str, np.ndarray]] = iter(
            [
                {
                    each.name: rng.standard_normal(
                        [extent.dim_value for extent in each.type.tensor_type.shape.dim]
                    ).astype(np.float32)
                    for each in inputs
                }
                for _ in range(4)
            ]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next inputs by name, or None."""
        return next(self._given, None)


def write_quantised(name: str, folder: Path) -> Path:
    """Write a model as a QDQ file of static shapes, and return its path."""
    model, path = NamedModel.of(name), folder / f"{name}_int8.onnx"
    plain = folder / f"{name}_float.onnx"
    if model.is_file:
        graph = onnx.load(model.location)
        for value in graph.graph.input:
            for extent, size in zip(value.type.tensor_type.shape.dim, model.shapes[value.name], strict=True):
                extent.dim_value = size
        if opset_of(graph) < _SCALES_A_CHANNEL:
            graph = onnx.version_converter.convert_version(graph, _SCALES_A_CHANNEL)
        onnx.save(graph, plain)
    else:
        module, inputs = model.built()
        plain.write_bytes(exported(module, inputs, {}))
    quant_pre_process(plain, plain, skip_symbolic_shape=True)
    quantize_static(
        plain,
        path,
        _Drawn(plain),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    plain.unlink()
    return path


if __name__ == "__main__":
    (target,) = map(Path, sys.argv[1:])
    target.mkdir(parents=True, exist_ok=True)
    for each in QUANTISED:
        print(write_quantised(each, target), flush=True)

"""External weight files of an ONNX model, restricted to the model's folder.

ONNX names such a file by a path in the model. Here it must be a plain file in the model's folder or below,
whichever links lead there, and hold the bytes that are named; so a model from elsewhere cannot read, or make
a report quote, other files of this machine. Checked in tests/tuner/frontend/onnx/test_external_data.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import onnx
from onnx import helper

from tuner.errors import ModelFileError
from tuner.frontend.onnx.rewrite import OnnxModel


def external_bytes(model: OnnxModel, path: Path) -> int:
    """Return how many bytes the model's tensors have in other files.

    Raises:
        ModelFileError: a tensor names a file that is not beside the model, or bytes that it does not hold.
    """
    return sum(_place(tensor, path)[2] for tensor in _external_tensors(model.graph))


def load_external(model: OnnxModel, path: Path) -> None:
    """Put into the model what its tensors have in other files.

    Raises:
        ModelFileError: as for `external_bytes`, or a file cannot be read.
    """
    for tensor in _external_tensors(model.graph):
        file, offset, length = _place(tensor, path)
        try:
            with file.open("rb") as stream:
                stream.seek(offset)
                tensor.raw_data = stream.read(length)
        except OSError as error:
            raise ModelFileError(f"cannot read {file}: {error.strerror or error}; check the path") from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _external_tensors(graph: Any) -> Iterator[Any]:
    """Yield every tensor of a graph, and of the graphs in it, that lies in another file."""
    tensors = [*graph.initializer]
    for sparse in graph.sparse_initializer:
        tensors += [sparse.values, sparse.indices]
    for node in graph.node:
        for attribute in node.attribute:
            tensors += [attribute.t, *attribute.tensors]
            for inner in (attribute.g, *attribute.graphs):
                if inner.node or inner.initializer:
                    yield from _external_tensors(inner)
    for tensor in tensors:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _place(tensor: Any, model: Path) -> tuple[Path, int, int]:
    """Return the file, the offset and the length of a tensor's bytes."""
    entries: Mapping[str, str] = {entry.key: entry.value for entry in tensor.external_data}
    file = _file(entries.get("location", ""), tensor.name, model)
    size = file.stat().st_size
    needed = _num_bytes(tensor)
    try:
        offset = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(min(needed, size - offset))))
    except ValueError as error:
        raise ModelFileError(
            f"tensor {tensor.name!r} of {model} lies at no number of bytes; export it again"
        ) from error
    if offset < 0 or length != needed or offset + length > size:
        raise ModelFileError(
            f"tensor {tensor.name!r} of {model} has {needed} bytes, and {file.name} has no {length} from "
            f"{offset} on; export the model again"
        )
    return file, offset, length


def _file(location: str, tensor: str, model: Path) -> Path:
    parts = PurePosixPath(location).parts
    folder = model.resolve().parent
    is_inside = bool(parts) and ".." not in parts and not location.startswith("/") and "\x00" not in location
    file = (folder / location).resolve() if is_inside else folder
    if not is_inside or not file.is_relative_to(folder):
        raise ModelFileError(
            f"tensor {tensor!r} of {model} lies in {location!r}, outside the model's folder, where nothing "
            "is read; put the file beside the model and name it so"
        )
    if not file.is_file():
        raise ModelFileError(
            f"cannot read {file}: there is no such file; check that weights kept in files of their own lie "
            f"beside {model}"
        )
    return file


def _num_bytes(tensor: Any) -> int:
    if any(extent < 0 for extent in tensor.dims):
        return -1
    try:
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except KeyError:
        return -1
    bits = {onnx.TensorProto.INT4: 4, onnx.TensorProto.UINT4: 4}.get(tensor.data_type, 8 * dtype.itemsize)
    return -(-math.prod(tensor.dims) * bits // 8)

"""The process that runs an ONNX model by a runtime of others; see `runtime`.

It runs as a file and imports NumPy and the runtime alone. What it takes and gives are arrays in NumPy's own
format and texts in JSON. It may take so much processor time, and writes no file.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import zipfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np


def main() -> None:
    """Answer the one question that comes by the connection whose descriptor is the first argument."""
    connection = Connection(int(sys.argv[1]))
    runtime, num_threads, time_s = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    content = connection.recv_bytes()
    inputs = unpacked(connection.recv_bytes())
    names = json.loads(connection.recv_bytes())
    run = {"onnxruntime": run_by_onnxruntime, "onnx": run_by_onnx}[runtime]
    resource.setrlimit(resource.RLIMIT_CPU, (time_s, time_s + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        answer = packed(run(content, inputs, names, num_threads))
    except Exception as error:  # foreign code: the runtime, on a strange file
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        connection.send_bytes(f"{type(error).__name__}: {(lines or [''])[0][:200]}".encode())
        return
    connection.send_bytes(b"")
    connection.send_bytes(answer)


def run_by_onnxruntime(
    content: bytes, inputs: Mapping[str, np.ndarray], names: list[str], num_threads: int
) -> dict[str, np.ndarray]:
    """Return tensors by name, of the graph as it is written: nothing is fused."""
    import onnxruntime  # noqa: PLC0415 - an optional extra

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = num_threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def run_by_onnx(
    content: bytes, inputs: Mapping[str, np.ndarray], names: list[str], num_threads: int
) -> dict[str, np.ndarray]:
    """Return tensors by name, by onnx's own reference."""
    import onnx  # noqa: PLC0415 - an optional extra
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - likewise

    evaluator = ReferenceEvaluator(onnx.load_model_from_string(content))
    return dict(zip(names, evaluator.run(names, dict(inputs)), strict=True))


def packed(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays by name as bytes, without pickles."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("names.json", json.dumps(list(arrays)))
        for number, array in enumerate(arrays.values()):
            with archive.open(f"{number}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def unpacked(content: bytes) -> dict[str, np.ndarray]:
    """Return what `packed` made bytes of."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = json.loads(archive.read("names.json"))
        return {
            name: np.lib.format.read_array(io.BytesIO(archive.read(f"{number}.npy")), allow_pickle=False)
            for number, name in enumerate(names)
        }


if __name__ == "__main__":
    main()

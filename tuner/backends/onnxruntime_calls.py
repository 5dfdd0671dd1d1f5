"""What onnxruntime computes for a compiled module: one packed function, which is told what to run.

Tensors are bound by address, so that nothing is copied on the way in or out. A session is made when a graph
is first called; it packs the weights once, and keeps the tensors they came from, so that no other tensor can
take their place in memory. Only `tuner.backends.onnxruntime_library` imports this module, and only where
onnxruntime is installed. Checked in tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import tvm

from tuner.backends.onnx_export import input_name, output_name

PACKED_NAME = "tessel.onnxruntime.call"

_MAX_SESSIONS = 4096
"""Sessions kept; more than any one program has."""


class GraphCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph to call.

    Attributes:
        model: the serialised ONNX model.
        num_inputs: tensors read; those after them are written.
        weights: positions of inputs that never change, whose values are read when the graph is first called.
        num_threads: threads of one call.
    """

    model: bytes
    num_inputs: int
    weights: tuple[int, ...]
    num_threads: int


def encode_call(call: GraphCall) -> str:
    """Return the call as text, to pass to the packed function."""
    return msgspec.json.encode(call, order="sorted").decode()


@dataclass(slots=True)
class _Session:
    session: Any
    binding: Any
    kept: tuple[Any, ...]


_sessions: OrderedDict[tuple[str, tuple[int, ...]], _Session] = OrderedDict()


@lru_cache(maxsize=_MAX_SESSIONS)
def _decoded(text: str) -> GraphCall:
    return msgspec.json.decode(text, type=GraphCall)


@tvm.register_global_func(PACKED_NAME, override=True)
def run_call(text: Any, *tensors: Any) -> None:
    """Run a graph on its inputs; the last tensors receive the results."""
    key = str(text)
    call = _decoded(key)
    session = _session_of(key, call, tensors)
    binding = session.binding
    for position, tensor in enumerate(tensors[: call.num_inputs]):
        if position not in call.weights:
            array = np.from_dlpack(tensor)
            binding.bind_input(input_name(position), "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    for position, tensor in enumerate(tensors[call.num_inputs :]):
        array = np.from_dlpack(tensor)
        binding.bind_output(output_name(position), "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    session.session.run_with_iobinding(binding)


@tvm.register_global_func("tessel.forget_weights", override=True)
def forget_weights() -> None:
    """Drop every session with the weights it keeps: the programs that used them are gone."""
    _sessions.clear()


def _session_of(text: str, call: GraphCall, tensors: Sequence[Any]) -> _Session:
    key = text, tuple(np.from_dlpack(tensors[position]).ctypes.data for position in call.weights)
    found = _sessions.get(key)
    if found is None:
        found = _sessions[key] = _made(call, [tensors[position] for position in call.weights])
        while len(_sessions) > _MAX_SESSIONS:
            _sessions.popitem(last=False)
    return found


def _made(call: GraphCall, weights: Sequence[Any]) -> _Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = call.num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.from_dlpack(weight)) for weight in weights]
    if values:
        options.add_external_initializers([input_name(position) for position in call.weights], values)
    session = onnxruntime.InferenceSession(call.model, options, providers=["CPUExecutionProvider"])
    return _Session(session, session.io_binding(), (*weights, *values))

"""What onnxruntime computes for a compiled module: one packed function, which is told what to run.

Tensors are bound by address, so that nothing is copied on the way in or out. A session is made when a graph
is first called; it packs the weights once, and keeps the tensors they came from, so that no other tensor can
take their place in memory. Only `tuner.backends.onnxruntime_library` imports this module, and only where
onnxruntime is installed. Checked in tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
class _Place:
    """An input or output that is bound by address, and the address it is bound to."""

    position: int
    name: str
    dtype: Any
    shape: tuple[int, ...]
    bind_to: Any
    address: int = 0

    def bind(self, address: int) -> None:
        self.bind_to(self.name, "cpu", 0, self.dtype, self.shape, address)
        self.address = address


@dataclass(slots=True)
class _Session:
    session: Any
    binding: Any
    places: tuple[_Place, ...]
    kept: tuple[Any, ...]


_calls: dict[str, GraphCall] = {}
_sessions: OrderedDict[tuple[str, tuple[int, ...]], _Session] = OrderedDict()


@tvm.register_global_func(PACKED_NAME, override=True)
def run_call(digest: Any, text: Any, *tensors: Any) -> None:
    """Run a graph, whose text has the digest, on its inputs; the last tensors receive the results."""
    key = str(digest)
    session = _session_of(key, text, tensors)
    for place in session.places:
        address = tensors[place.position].data_ptr()
        if address != place.address:
            place.bind(address)
    session.session.run_with_iobinding(session.binding)


@tvm.register_global_func("tessel.forget_weights", override=True)
def forget_weights() -> None:
    """Drop every session with the weights it keeps: the programs that used them are gone."""
    _sessions.clear()
    _calls.clear()


def _session_of(digest: str, text: Any, tensors: Sequence[Any]) -> _Session:
    call = _calls.get(digest)
    if call is None:
        call = _calls[digest] = msgspec.json.decode(str(text), type=GraphCall)
    key = digest, tuple(tensors[position].data_ptr() for position in call.weights)
    found = _sessions.get(key)
    if found is None:
        found = _sessions[key] = _made(call, tensors)
        while len(_sessions) > _MAX_SESSIONS:
            _sessions.popitem(last=False)
    return found


def _made(call: GraphCall, tensors: Sequence[Any]) -> _Session:
    weights = [tensors[position] for position in call.weights]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = call.num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.from_dlpack(weight)) for weight in weights]
    if values:
        options.add_external_initializers([input_name(position) for position in call.weights], values)
    session = onnxruntime.InferenceSession(call.model, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    return _Session(session, binding, tuple(_places(call, tensors, binding)), (*weights, *values))


def _places(call: GraphCall, tensors: Sequence[Any], binding: Any) -> Iterator[_Place]:
    """Yield what is bound anew at each call: inputs that are no weights, and outputs."""
    for position, tensor in enumerate(tensors):
        if position in call.weights:
            continue
        is_input = position < call.num_inputs
        name = input_name(position) if is_input else output_name(position - call.num_inputs)
        bind = binding.bind_input if is_input else binding.bind_output
        array = np.from_dlpack(tensor)
        yield _Place(position, name, array.dtype, array.shape, bind)

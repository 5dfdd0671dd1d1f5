"""Packed functions for calls of onnxruntime: one loads a graph, another runs it.

Tensors are bound by address, so that nothing is copied on the way in or out. Loading packs the weights, and
is done once where they are bound (`tuner.lowering.weight_binding`). Only `tuner.backends.onnxruntime.library`
imports this module, and only where onnxruntime is installed. Checked in
tests/tuner/backends/test_contract.py.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
import onnxruntime
import tvm_ffi

from tuner.runtime.compiled_program import QuickRun
from tuner.runtime.library_calls import input_name, output_name

LOAD_NAME = "tessel.onnxruntime.load"
CALL_NAME = "tessel.onnxruntime.call"

_MAX_SESSIONS = 4096
"""Graphs without weights that are kept; more than any one program has."""


class GraphCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph to call.

    Attributes:
        model: the serialised ONNX model.
        num_inputs: tensors that the graph reads, weights among them.
        weights: positions of inputs that never change, whose values are given when the graph is loaded.
        is_alone: whether the program calls nothing else, so that its threads may wait in a loop for the next.
    """

    model: bytes
    num_inputs: int
    weights: tuple[int, ...]
    num_threads: int
    is_alone: bool = False


def encode_call(call: GraphCall) -> str:
    """Return the call as text, to pass to the packed function."""
    return msgspec.json.encode(call, order="sorted").decode()


@dataclass(slots=True)
class _Place:
    """An input or output that is bound by address, and the address it is bound to."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    bind_to: Any
    address: int = 0

    def bind(self, address: int) -> None:
        self.bind_to(self.name, "cpu", 0, self.dtype, self.shape, address)
        self.address = address


_Binding: TypeAlias = tuple[Any, tuple[_Place, ...]]
"""onnxruntime's binding, and what is bound in it."""


class _Session:
    """A loaded graph with copies of the weights that it was made with; each thread binds memory of its own.

    A program that binds weights may use the memory again in which it made them.
    """

    def __init__(self, call: GraphCall, weights: Sequence[Any]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = call.num_threads
        options.inter_op_num_threads = 1
        # Each session has threads of its own. Between a run's operators they may wait in a loop; after it
        # that would keep the others' from the processor.
        if not call.is_alone:
            options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        copies = [np.array(np.from_dlpack(weight)) for weight in weights]
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(copy) for copy in copies]
        if values:
            options.add_external_initializers([input_name(position) for position in call.weights], values)
        self.session = onnxruntime.InferenceSession(call.model, options, providers=["CPUExecutionProvider"])
        self.call = call
        self.kept = (*copies, *values)  # onnxruntime refers to both
        self._here = threading.local()

    def run(self, tensors: Sequence[Any]) -> None:
        """Run on inputs that are no weights; the last tensors receive the results."""
        bound: _Binding | None = getattr(self._here, "bound", None)
        if bound is None:
            binding = self.session.io_binding()
            bound = self._here.bound = binding, tuple(self._places(binding, tensors))
        binding, places = bound
        for place, tensor in zip(places, tensors, strict=True):
            address = tensor.data_ptr()
            if address != place.address:
                place.bind(address)
        self.session.run_with_iobinding(binding)

    def as_runner(self) -> GraphRun | None:
        """Return what runs the graph in place of a program that calls nothing else; None if one does."""
        return GraphRun(self, self._inputs()) if self.call.is_alone else None

    def _inputs(self) -> list[int]:
        """Return the positions of inputs that are no weights."""
        return [index for index in range(self.call.num_inputs) if index not in self.call.weights]

    def _places(self, binding: Any, tensors: Sequence[Any]) -> Iterator[_Place]:
        """Yield what is bound to memory: inputs that are no weights, and outputs."""
        inputs = self._inputs()
        for position, tensor in enumerate(tensors):
            is_input = position < len(inputs)
            name = input_name(inputs[position]) if is_input else output_name(position - len(inputs))
            array = np.from_dlpack(tensor)
            yield _Place(
                name=name,
                dtype=array.dtype,
                shape=array.shape,
                bind_to=binding.bind_input if is_input else binding.bind_output,
            )


class GraphRun:
    """Runs the graph that is all of a program, as onnxruntime's users do: arrays in, new arrays out.

    Binding other memory in each call takes longer than onnxruntime takes to copy small results.
    """

    takes_arrays = True

    def __init__(self, session: _Session, inputs: Sequence[int]) -> None:
        self._session = session
        # The session's own class first checks names, which are right here: 5 us of each call.
        self._run = getattr(session.session, "_sess", session.session).run
        self._inputs = tuple(map(input_name, inputs))
        self._outputs = [each.name for each in session.session.get_outputs()]
        self._gives_one = len(self._outputs) == 1

    def quick(self, specs: Sequence[tuple[tuple[int, ...], Any]]) -> QuickRun:
        """Return what runs arrays of these shapes and NumPy types, and gives None for whatever else.

        It is one function: a call may take a tenth of a millisecond, and each function takes some
        microseconds where caches are cold.
        """
        run, outputs = self._run, self._outputs
        wanted = tuple((name, *spec) for name, spec in zip(self._inputs, specs, strict=True))

        def quick(inputs: Sequence[Any]) -> list[np.ndarray] | None:
            given = {}
            for value, (name, shape, dtype) in zip(inputs, wanted, strict=True):
                if type(value) is not np.ndarray or value.shape != shape or value.dtype is not dtype:
                    return None
                given[name] = value
            return run(outputs, given, None)

        return quick

    def run(self, inputs: Sequence[np.ndarray]) -> Any:
        """Return an array, or a list of them; may be called from several threads."""
        found = self._run(self._outputs, dict(zip(self._inputs, inputs, strict=True)), None)
        return found[0] if self._gives_one else found


_sessions: OrderedDict[str, _Session] = OrderedDict()


def load(digest: Any, text: Any, *weights: Any) -> _Session:
    """Return a session of the graph whose text has the digest, with its weights packed.

    Graphs without weights are kept, because nothing else keeps them from one call to the next.
    """
    key = str(digest)
    found = _sessions.get(key)
    if found is None:
        found = _Session(msgspec.json.decode(str(text), type=GraphCall), weights)
        if not weights:
            _sessions[key] = found
            if len(_sessions) > _MAX_SESSIONS:
                _sessions.popitem(last=False)
    return found


tvm_ffi.register_global_func(LOAD_NAME, load, override=True)


@tvm_ffi.register_global_func(CALL_NAME, override=True)
def run_call(session: _Session, *tensors: Any) -> None:
    """Run a session on its inputs; the last tensors receive the results."""
    session.run(tensors)

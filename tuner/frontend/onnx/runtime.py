"""An ONNX file run by a runtime of others: what its import must equal.

ONNX Runtime runs it where that is installed, without its optimisations, and else onnx's own reference, from
the bytes of the file and not from what this project made of them. It runs in a process of its own, which has
a limit of processor time and may crash alone. Where it does not run the model (which is too large, or has an
operator or type that it lacks), the import is not compared, and the reason is told. Gradients are not
compared: no runtime here has any.

A sum in another order may lie on the other side of a half, so that `QuantizeLinear` gives the next whole
number, and the layers behind make much of it. A graph that is cut at its roundings takes what a runtime
rounded as further inputs, so that each part is compared for itself. Checked in
tests/tuner/tuning/test_onnx_import_check.py.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from records.cores import num_usable_cores
from tuner.errors import NotComparableError
from tuner.frontend.model import InputSpec, Model, Run
from tuner.frontend.onnx import runtime_process
from tuner.frontend.onnx.external_data import load_external
from tuner.frontend.onnx.graph import RANDOM_OPERATORS, bind_inputs
from tuner.frontend.onnx.reference import MISREAD_BEFORE
from tuner.frontend.onnx.rewrite import OnnxModel, opset_of
from tuner.frontend.shapes import Scalar
from tuner.graph.structure import Structure
from tuner.numerical_error import Deviation, compare_tensor, worst

MAX_FLOPS: Mapping[str, int] = {"onnxruntime": 10**12, "onnx": 10**10}
"""Floating-point operations of the largest model that is compared: about a minute of one core. ONNX Runtime
without its optimisations does some 20 GFLOPS a core; onnx's reference, in NumPy and Python, far less."""

MAX_TIME_S = 120
"""Processor seconds that a runtime may take; not all work is counted beforehand."""

_WAIT_S = 1800.0
"""Seconds waited: the machine may be busy with other work."""


@dataclass(frozen=True, kw_only=True)
class OnnxSource:
    """An ONNX file; satisfies `tuner.frontend.model.Source`.

    The file is read again when it is run, so that its weights are not held twice.

    Attributes:
        digest: of its bytes, as it was imported.
        shapes: static shapes by name of input.
        values: of inputs that were imported as constants, by name.
        import_exposed: imports the file with the result of every node among its outputs; gives the model, and
            the node that makes each output.
    """

    path: Path
    digest: str
    shapes: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Scalar]
    import_exposed: Callable[[OnnxModel], tuple[Model, tuple[Any, ...]]]

    @property
    def label(self) -> str:
        """Who runs the program: the runtimes that are installed, until one does."""
        return "-or-".join(_runtimes())

    @property
    def mode(self) -> str:
        """Files are run for inference."""
        return "inference"

    @property
    def max_flops(self) -> int:
        """Floating-point operations of the largest model that is compared."""
        return MAX_FLOPS[_runtimes()[0]]

    def fingerprint(self, model: Model) -> str:
        """Name the file, with the weights in other files, and what was imported."""
        digest = hashlib.sha256(f"{onnx.__version__} {self.digest}".encode())
        digest.update("".join(f" {name}={value}" for name, value in sorted(self.values.items())).encode())
        digest.update(Structure(model.module).fingerprint.encode())
        for name, array in sorted(model.parameters.items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()[:32]

    def draw(
        self, inputs: Sequence[InputSpec], seed: int
    ) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, ...]]:
        """Return inputs by name that are drawn, and what a runtime gives for them.

        Where normal numbers give NaN, their magnitudes are taken, of which there are roots and logarithms.

        Raises:
            NotComparableError: none runs the model, or gives numbers.
        """
        model = self.load()
        names = [output.name for output in model.graph.output]
        normal = _drawn(inputs, seed)
        for drawn in (normal, {name: np.abs(array) for name, array in normal.items()}):
            found = _run(model, inputs, drawn, names)
            arrays = tuple(found[name] for name in names)
            if not any(array.dtype.kind == "f" and np.isnan(array).any() for array in arrays):
                return drawn, arrays
        raise NotComparableError("it gives NaN for inputs that are drawn")

    def own(self, inputs: Sequence[InputSpec], seed: int) -> None:
        """Return nothing: a file holds no inputs."""
        return

    def locate(self, model: Model, inputs: Mapping[str, np.ndarray], run: Run, limit: float) -> str:
        """Name the first node that the import has wrong; empty if each is right."""
        for deviation in self._by_node(model, inputs, run):
            if not deviation.is_within(limit):
                return f"{deviation.tensor}, which {deviation.describe(limit)},"
        return ""

    def between_roundings(self, model: Model, inputs: Mapping[str, np.ndarray], run: Run) -> Deviation | None:
        """Return the largest deviation of a node, each from what the runtime rounded; see `Source`."""
        return worst(self._by_node(model, inputs, run)) if _rounded_tensors(self.load()) else None

    def _by_node(self, model: Model, inputs: Mapping[str, np.ndarray], run: Run) -> Iterator[Deviation]:
        """Compare nodes that the file has too, in order; each goes on from what the runtime rounded.

        Raises:
            NotComparableError: no runtime runs the file.
        """
        original, cut = self.load(), self.load()
        rounded = _exposed(original, model.inputs, inputs, _rounded_tensors(original))
        _cut_at_roundings(cut, rounded)
        exposed, nodes = self.import_exposed(cut)
        weights = [np.asarray(exposed.parameters[name]) for name in exposed.parameter_names]
        found = run(exposed.module, [*inputs.values(), *rounded.values(), *weights])
        known = {name for node in original.graph.node for name in node.output}
        names = [_name_in_file(node.output[0]) for node in nodes]
        wanted = [name for name in names if name in known]
        expected = _exposed(original, model.inputs, inputs, wanted)
        for node, name, array in zip(nodes, names, found, strict=True):
            if name not in expected:  # made by a rewriting
                continue
            tensor = f"node {node.name!r} ({node.op_type})"
            if name in rounded and _differ_by_ties(array, expected[name]):
                yield Deviation(tensor=tensor, relative_error=0.0)
            else:
                yield compare_tensor(tensor, array, expected[name], infinity_agrees=True)

    def load(self) -> OnnxModel:
        """Return the file's model with static inputs, its nodes as they are.

        Raises:
            NotComparableError: the file is gone, or another one.
        """
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise NotComparableError(
                f"{self.path} cannot be read again: {error.strerror or error}"
            ) from error
        if hashlib.sha256(content).hexdigest() != self.digest:
            raise NotComparableError(f"{self.path} has changed since it was imported")
        model = onnx.load_model_from_string(content)
        load_external(model, self.path)
        bind_inputs(model, self.path.name, self.shapes, self.values)
        model.ir_version = max(model.ir_version, 4)  # before it, initialisers had to be inputs as well
        return model


def _runtimes() -> tuple[str, ...]:
    """Return the runtimes that are installed, in the order in which they are tried."""
    return ("onnx",) if importlib.util.find_spec("onnxruntime") is None else ("onnxruntime", "onnx")


def _drawn(inputs: Sequence[InputSpec], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, 2])
    return {
        spec.name: rng.standard_normal(spec.shape).astype(spec.dtype)
        if np.issubdtype(np.dtype(spec.dtype), np.floating)
        else rng.integers(0, spec.high, spec.shape).astype(spec.dtype)
        for spec in inputs
    }


def _run(
    model: OnnxModel, inputs: Sequence[InputSpec], arrays: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the model's tensors by name, from the first runtime that gives them.

    Raises:
        NotComparableError: none does; says why.
    """
    given = {value.name: arrays[spec.name] for value, spec in zip(model.graph.input, inputs, strict=True)}
    try:
        content = model.SerializeToString()
    except Exception as error:  # protobuf's EncodeError, whose module is private: beyond 2 GiB
        raise NotComparableError("it is too large to be handed to a runtime") from error
    reasons = []
    for runtime in _runtimes():
        try:
            _require_sound(runtime, model)
            return _ask(runtime, content, given, names)
        except NotComparableError as error:
            reasons.append(str(error))
    raise NotComparableError("; ".join(reasons))


def _exposed(
    model: OnnxModel, inputs: Sequence[InputSpec], arrays: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return any tensors of the model, whose outputs they become; arguments and errors as of `_run`."""
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return _run(model, inputs, arrays, names) if names else {}


def _require_sound(runtime: str, model: OnnxModel) -> None:
    """Refuse models of which a runtime gives other results than ONNX says, or others in each run."""
    operators = {node.op_type for node in model.graph.node}
    if drawn := sorted(operators & set(RANDOM_OPERATORS)):
        raise NotComparableError(f"it draws random numbers ({drawn[0]})")
    opset = opset_of(model)
    misread = sorted(name for name in operators if opset < MISREAD_BEFORE.get(name, 0))
    if misread and runtime == "onnx":
        raise NotComparableError(f"onnx's reference takes {misread[0]} of opset {opset} for another one")


def _ask(
    runtime: str, content: bytes, inputs: Mapping[str, np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Run a model in a process of its own."""
    ours, theirs = socket.socketpair()
    arguments = (str(theirs.fileno()), runtime, str(num_usable_cores()), str(MAX_TIME_S))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", str(runtime_process.__file__), *arguments],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
    try:
        with Connection(ours.detach()) as connection:
            connection.send_bytes(content)
            connection.send_bytes(runtime_process.packed(inputs))
            connection.send_bytes(json.dumps(names).encode())
            if not connection.poll(_WAIT_S):
                raise NotComparableError(f"{runtime} gave no answer within {_WAIT_S:.0f} s")
            if failure := connection.recv_bytes():
                raise NotComparableError(f"{runtime} does not run it ({failure.decode()})")
            return runtime_process.unpacked(connection.recv_bytes())
    except (EOFError, OSError) as error:
        process.wait()
        raise NotComparableError(
            f"{runtime} ended with status {process.returncode}; it may take {MAX_TIME_S} s of processor time"
        ) from error
    finally:
        process.kill()
        process.wait()


_ROUNDING = frozenset({"DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "QuantizeLinear"})
"""Operators whose first result is rounded."""

_SUFFIX = "/rounded"

_FEW = 50
"""One value in so many, and one of fewer, may be a tie: a wrong zero point moves all, a wrong scale most."""


def _rounded_tensors(model: OnnxModel) -> tuple[str, ...]:
    """Return the names of tensors that nodes of the graph round."""
    return tuple(
        node.output[0]
        for node in model.graph.node
        if node.op_type in _ROUNDING and node.domain in ("", "ai.onnx")
    )


def _cut_at_roundings(model: OnnxModel, values: Mapping[str, np.ndarray]) -> None:
    """Let rounded tensors be inputs as well, and what rounds them write to another name.

    Args:
        model: is changed; has static inputs.
        values: of the tensors, by name, in the order of the new inputs; tell types and shapes.
    """
    for node in model.graph.node:
        if node.output and node.output[0] in values:
            node.output[0] += _SUFFIX
    model.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    )


def _name_in_file(tensor: str) -> str:
    """Return the name that a result of a cut graph has in the file."""
    return tensor.removesuffix(_SUFFIX)


def _differ_by_ties(found: np.ndarray, expected: np.ndarray) -> bool:
    """Say whether two rounded tensors are equal up to one step of few values."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    steps = np.abs(found.astype("int64") - expected.astype("int64"))
    few = max(steps.size // _FEW, 1 if steps.size > 1 else 0)
    return bool(steps.max(initial=0) <= 1 and np.count_nonzero(steps) <= few)

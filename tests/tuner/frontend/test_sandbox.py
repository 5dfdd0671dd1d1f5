"""The child that tries a model file: what breaks a limit, crashes or writes is refused, and nothing else."""

import ctypes
import os
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from tuner.errors import ModelFileError, UnknownNameError
from tuner.frontend import load_model, sandbox
from tuner.frontend.sandbox import try_import

pytestmark = pytest.mark.tvm


def crash(content, path, *, shapes):
    os.kill(os.getpid(), signal.SIGSEGV)


def read_nowhere(content, path, *, shapes):
    ctypes.string_at(0)


def fill_memory(content, path, *, shapes):
    return bytearray(2**40) if content == b"at once" else [bytearray(2**22) for _ in range(10**6)]


def never_end(content, path, *, shapes):
    while True:
        pass


def write_file(content, path, *, shapes):
    Path(content.decode()).write_bytes(b"written by a model")


def fail(content, path, *, shapes):
    raise KeyError("strange\nand long")


def refuse(content, path, *, shapes):
    raise UnknownNameError(f"{path.name} has no input {content.decode()} of {shapes}")


def refuse_value(content, path, *, shapes):
    raise ValueError("does not fit")


def end(content, path, *, shapes):
    os._exit(3)


def accept(content, path, *, shapes):
    return None


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch):
    """Try with one of the functions above, with limits that are soon reached."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(sandbox, "_SERVER", sandbox._Server())
    monkeypatch.setattr(sandbox, "TIME_ROOM_S", 1)

    def tried(importer, content: bytes = b"content") -> None:
        try_import(f"test_sandbox:{importer.__name__}", content, Path("folder/model.pt2"), shapes={"x": (1,)})

    yield tried
    sandbox._SERVER.stop()


@pytest.mark.parametrize("first", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_what_breaks_a_limit_or_crashes_is_refused_and_the_next_is_tried(
    first: int, attempt, tmp_path: Path
) -> None:
    """Every other one is tried always."""
    written = tmp_path / "written"
    cases = (
        (accept, b"", None, ""),
        (crash, b"", ModelFileError, "crashed with SIGSEGV"),
        (read_nowhere, b"", ModelFileError, "crashed with SIGSEGV"),
        (fill_memory, b"at once", ModelFileError, "more than 384 MiB of memory"),
        (fill_memory, b"bit by bit", ModelFileError, "more than 384 MiB of memory"),
        (never_end, b"", ModelFileError, "more than 1 s of processor time"),
        (end, b"", ModelFileError, "memory"),
        (write_file, str(written).encode(), ModelFileError, "File too large|SIGXFSZ"),
        (fail, b"", ModelFileError, r"model\.pt2 cannot be loaded \(KeyError"),
        (refuse, b"y", UnknownNameError, r"model\.pt2 has no input y of \{'x': \(1,\)\}"),
        (refuse_value, b"", ValueError, "does not fit"),
        (accept, b"x" * 10**6, None, ""),
    )
    for importer, content, error, message in cases[first::2]:
        if error is None:
            attempt(importer, content)
            continue
        with pytest.raises(error, match=message):
            attempt(importer, content)
    assert not written.exists() or not written.read_bytes()
    # A server that ended while it had nothing to do is replaced.
    server = psutil.Process(sandbox._SERVER._process.pid)
    server.kill()
    server.wait(timeout=300)
    attempt(accept)


def test_onnx_file_that_folds_into_a_huge_constant_is_refused(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    extents = onnx.numpy_helper.from_array(np.array([10**6, 10**6], dtype="int64"), "extents")
    nodes = [
        onnx.helper.make_node("ConstantOfShape", ["extents"], ["huge"]),
        onnx.helper.make_node("Add", ["x", "huge"], ["y"]),
    ]
    inputs = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [10**6, 10**6])]
    graph = onnx.helper.make_graph(nodes, "bomb", inputs, outputs, [extents])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    (tmp_path / "bomb.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelFileError, match=r"bomb\.onnx"):
        load_model(str(tmp_path / "bomb.onnx"))

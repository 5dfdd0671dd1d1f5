"""The comparison of an ONNX file's import with a runtime of others: faults are named, nothing else stops."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tvm
from run_module import plain_machine
from tvm import relax

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from tvm.relax.frontend.onnx import onnx_frontend  # noqa: E402

from records import Environment, open_store  # noqa: E402
from tuner.errors import TunerError  # noqa: E402
from tuner.frontend import load_model  # noqa: E402
from tuner.frontend.onnx import runtime  # noqa: E402
from tuner.tuning.import_check import check_import  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.onnx]


def run(module, arrays):
    machine = plain_machine(module)
    result = machine["main"](*[tvm.runtime.tensor(np.array(array)) for array in arrays])
    return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]


@pytest.fixture
def session(tmp_path: Path):
    """What the check needs of a session: records, and somebody who runs modules."""
    here = Environment(
        device_kind="cpu", device_model="d", num_cores=1, num_threads=1, driver="", versions=()
    )
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:

        def find(workload, backend, *, settings=""):
            return store.find_latest(
                workload.fingerprint, backend=backend, settings=settings, target="cpu", environment=here
            )

        measurer = SimpleNamespace(
            run=run,
            find=find,
            environment=lambda backend: here,
            new_measurements=0,
            claimed=lambda what: nullcontext(),
        )
        yield SimpleNamespace(
            store=store,
            measurer=measurer,
            target=SimpleNamespace(text="cpu"),
            seed=0,
            on_progress=lambda progress: None,
        )


@pytest.fixture(params=["onnxruntime", pytest.param("onnx", marks=pytest.mark.slow)])
def only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one runtime that is installed."""
    pytest.importorskip(request.param)
    monkeypatch.setattr(runtime, "_runtimes", lambda: (request.param,))
    return request.param


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a look-up, a sum that is rewritten, folded constants, and a weight named as by torch."""
    rng = np.random.default_rng(0)
    values = {
        "table": rng.standard_normal((7, 4)).astype("float32"),
        "onnx::weight": rng.standard_normal((4, 5)).astype("float32"),
        "extents": np.array([-1]),
        "five": np.array([5]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"], name="/embed/Gather"),
        helper.make_node("Tanh", ["a"], ["b"], name="/h.0/Tanh"),
        helper.make_node("Sum", ["b", "b", "x"], ["c"], name="/h.0/Sum"),
        helper.make_node("MatMul", ["c", "onnx::weight"], ["d"], name="/head/MatMul"),
        helper.make_node("Concat", ["extents", "five"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["d", "wanted"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, [2, 3]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "small.onnx"
    onnx.save(made, str(file))
    return file


def loaded(path: Path, *, training: bool = False):
    return load_model(str(path), shapes={"x": (2, 3, 4)}, training=training, guarded=False)


@pytest.mark.parametrize("training", [False, True])
def test_a_file_that_is_imported_rightly_passes_and_is_not_compared_again(
    path: Path, session, only: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = check_import(loaded(path, training=training), session)
    assert error is not None
    assert error < 1e-5
    monkeypatch.setattr(runtime, "_ask", None)
    assert check_import(loaded(path, training=training), session) == error


@pytest.mark.parametrize(
    ("operator", "other", "place", "training"),
    [
        ("Tanh", "Sigmoid", "node '/h.0/Tanh' (Tanh)", False),
        ("Add", "Sub", "node '/h.0/Sum' (Add)", True),
    ],
)
def test_a_wrong_converter_is_caught_and_its_first_node_named(
    operator: str, other: str, place: str, training: bool, path: Path, session, only: str, monkeypatch
) -> None:
    known = onnx_frontend._get_convert_map()
    monkeypatch.setattr(onnx_frontend, "_get_convert_map", lambda: {**known, operator: known[other]})
    with pytest.raises(TunerError) as caught:
        check_import(loaded(path, training=training), session)
    message = str(caught.value)
    assert message.startswith(f"{path} is imported wrongly: the output is off by ")
    assert f"; {place}, which is off by" in message
    assert "\n" not in message


def test_what_cannot_be_compared_is_told_and_stops_nothing(
    path: Path, session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> str:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert check_import(model, session) is None
        (record,) = caplog.records
        return record.getMessage()

    model = loaded(path)
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "MAX_FLOPS", {"onnxruntime": 100, "onnx": 100})
        assert "floating-point operations, more than the 1e+02" in told()
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "MAX_TIME_S", 0)
        assert "it may take 0 s of processor time" in told()
    content = path.read_bytes()
    path.write_bytes(content + b"\x3a\x00")
    assert "has changed since it was imported" in told()
    path.unlink()
    assert "cannot be read again: No such file or directory" in told()
    assert session.measurer.new_measurements == 0


def test_roots_and_logarithms_are_compared_on_positive_numbers(tmp_path: Path, session, only: str) -> None:
    nodes = [helper.make_node("Sqrt", ["x"], ["a"]), helper.make_node("Log", ["a"], ["y"])]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [3])] for name in "xy"]
    made = helper.make_model(
        helper.make_graph(nodes, "roots", *ends), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(made, str(tmp_path / "roots.onnx"))
    error = check_import(load_model(str(tmp_path / "roots.onnx"), guarded=False), session)
    assert error is not None
    assert error < 1e-5


LAYERS = 7
STEP = 0.03
ZERO = 120


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """Convolutions between whole numbers of eight bits: one step of one value is more than the tolerance."""
    rng = np.random.default_rng(0)
    values = {"step": np.array(STEP, "float32"), "zero": np.array(ZERO, "uint8")}
    values |= {"fine": np.array(0.004, "float32"), "none": np.array(0, "int8")}
    nodes, last = [], "x"
    for layer in range(LAYERS):
        values[f"w{layer}"] = rng.integers(-128, 127, (16, 3 if layer == 0 else 16, 3, 3), "int8")
        nodes += [
            helper.make_node("QuantizeLinear", [last, "step", "zero"], [f"q{layer}"], name=f"q{layer}"),
            helper.make_node("DequantizeLinear", [f"q{layer}", "step", "zero"], [f"d{layer}"]),
            helper.make_node("DequantizeLinear", [f"w{layer}", "fine", "none"], [f"k{layer}"]),
            helper.make_node("Conv", [f"d{layer}", f"k{layer}"], [f"c{layer}"], pads=[1] * 4),
            helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"], name=f"r{layer}"),
        ]
        last = f"r{layer}"
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 24, 24]),
        helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 16, 24, 24]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantised",
        ends[:1],
        ends[1:],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    file = tmp_path / "quantised.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9), str(file))
    return file


@pytest.mark.slow
def test_values_beside_a_half_are_ties_and_the_rest_is_compared(quantised: Path, session) -> None:
    model = load_model(str(quantised), guarded=False)
    weights = [np.asarray(model.parameters[name]) for name in model.parameter_names]
    machine = plain_machine(model.module)

    def error(seed: int) -> float:
        drawn, (expected,) = model.source.draw(model.inputs, seed)
        found = machine["main"](*map(tvm.runtime.tensor, [*drawn.values(), *weights]))
        return np.abs(found.numpy() - expected).max() / np.abs(expected).max()

    session.seed = next(seed for seed in range(50) if error(seed) > 1e-2)
    found = check_import(model, session)
    assert found is not None
    assert found < 1e-5


def test_a_wrong_zero_point_is_no_tie(quantised: Path, session, monkeypatch: pytest.MonkeyPatch) -> None:
    known = onnx_frontend._get_convert_map()

    class Shifted(known["QuantizeLinear"]):
        @classmethod
        def _impl_v19(cls, bb, inputs, attr, params):
            x, scale, zero = inputs
            zero = relax.const(np.uint8(ZERO + 1), "uint8")
            return super()._impl_v19(bb, [x, scale, zero], attr, params)

    monkeypatch.setattr(onnx_frontend, "_get_convert_map", lambda: {**known, "QuantizeLinear": Shifted})
    with pytest.raises(TunerError, match=r"; node 'q0' \(QuantizeLinear\), which is off by .* is the first"):
        check_import(load_model(str(quantised), guarded=False), session)


def test_the_first_wrong_node_is_named_behind_ties(
    quantised: Path, session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ReLUs of all layers are wrong; what is rounded before the first is not."""
    known = onnx_frontend._get_convert_map()
    monkeypatch.setattr(onnx_frontend, "_get_convert_map", lambda: {**known, "Relu": known["Neg"]})
    with pytest.raises(TunerError, match=r"; node 'r0' \(Relu\), which is off by .* is the first"):
        check_import(load_model(str(quantised), guarded=False), session)

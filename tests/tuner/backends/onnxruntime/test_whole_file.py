"""A file as one call gives what onnxruntime gives for the file, and its large weights lie outside of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

import tessel  # noqa: E402 - after the skips
from tessel.compiling import whole_runs  # noqa: E402
from tessel.compiling.partitioning import compile_within  # noqa: E402
from tessel.compiling.program import Program  # noqa: E402
from tuner.backends.onnxruntime.whole_file import export_as_call, file_as_call  # noqa: E402
from tuner.errors import UnsupportedOperatorError  # noqa: E402
from tuner.frontend import load_model  # noqa: E402
from tuner.targets.resolution import resolve_target  # noqa: E402
from tuner.tuning.compile_mix import ProgramFacts, compile_mix  # noqa: E402
from tuner.tuning.session import Report  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.onnx, pytest.mark.torch]

QUANTISED_IN_A_BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
file (float[N,24] waveform, bool flag) => (float[N,24] y, float[N,24] w_plus) {
    scale = Constant <value = float {0.05}> ()
    zero = Constant <value = int8 {3}> ()
    quantised = QuantizeLinear (waveform, scale, zero)
    back = DequantizeLinear (quantised, scale, zero)
    product = MatMul (back, w)
    y = If (flag) <
        then_branch = positive () => (float[N,24] one) { one = Add (product, w_row) },
        else_branch = negative () => (float[N,24] other) {
            again = MatMul (back, w)
            other = Sub (again, w_row)
        }
    >
    w_plus = Add (product, product)
}
"""


def file_in(folder: Path, *, writes_nodes: bool = False, seed: int = 0) -> Path:
    model = onnx.parser.parse_model(QUANTISED_IN_A_BRANCH)
    rng = np.random.default_rng(seed)
    for name, shape in (("w", (24, 24)), ("w_row", (24,))):
        array = rng.standard_normal(shape, dtype=np.float32)
        tensor = onnx.numpy_helper.from_array(array, name)
        if writes_nodes:
            model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensor))
        else:
            model.graph.initializer.append(tensor)
    onnx.save(model, folder / "file.onnx")
    return folder / "file.onnx"


@pytest.mark.parametrize("writes_nodes", [False, True])
def test_a_file_as_one_call_gives_what_onnxruntime_does_also_saved(
    writes_nodes: bool, tmp_path: Path
) -> None:
    path = file_in(tmp_path, writes_nodes=writes_nodes)
    model = load_model(str(path), shapes={"waveform": (5, 24)}, values={"flag": False})
    target = resolve_target("cpu", num_threads=1)
    called = file_as_call(model, target.num_threads)
    assert called is not None
    assert [each.shape for each in called.parameters.values()] == [(24, 24)]  # used in a branch, too
    made = compile_mix(called, called.module, (), target, facts=ProgramFacts())
    program = Program(made.program, write_library=made.write_library)
    program.save(tmp_path / "file.tessel")

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    for run in (program, tessel.load(tmp_path / "file.tessel")):
        assert run.compiled.machines.takes_arrays  # no machine around onnxruntime's session
        x = rng.standard_normal((5, 24), dtype=np.float32)
        expected = session.run(None, {"waveform": x, "flag": np.array(False)})
        for given in (x, np.asfortranarray(x), np.flip(np.flip(x).copy()), torch.from_numpy(x)):
            for found, wanted in zip(run(given), expected, strict=True):
                assert isinstance(found, type(given))
                np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        with pytest.raises(ValueError, match=r"input 'waveform' has shape \[5, 23\]"):
            run(x[:, 1:])
        with pytest.raises(TypeError, match="input 'waveform' is of float64"):
            run(x.astype(np.float64))


def test_a_mix_of_other_values_than_the_files_is_not_taken(tmp_path: Path) -> None:
    programs, notes = [], []
    for seed in (1, 0):
        path = file_in(tmp_path, seed=seed)
        model = load_model(str(path), shapes={"waveform": (5, 24)}, values={"flag": False})
        programs += whole_runs.whole_runs(model, resolve_target("cpu", num_threads=1), 0)
    mix, whole = programs
    report = Report(on_note=notes.append)
    assert whole_runs.fastest([whole], model, 0, report, mix=mix) is whole
    assert notes == ["onnxruntime runs all of it: results of the mix are others"]
    notes.clear()
    whole_runs.fastest([whole], model, 0, report, mix=whole)
    assert not any("others" in note for note in notes)


def test_fewer_threads_are_tried_until_they_take_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(file_in(tmp_path)), shapes={"waveform": (5, 24)}, values={"flag": False})
    took_s = iter([2e-4, 1e-4, 1.05e-4, 2e-4, 6e-2])
    monkeypatch.setattr(whole_runs, "_shortest_s", lambda _: next(took_s))
    target = resolve_target("cpu", num_threads=12)
    programs = list(whole_runs.whole_runs(model, target, 0))
    which = [each.manifest.parts[0].operators[0] for each in programs]
    assert which == ["the whole file", *(f"the whole file, on {number} of 12 threads" for number in (6, 3))]
    assert len(list(whole_runs.whole_runs(model, target, 0))) == 1, "a long call has threads enough to do"
    results = [each(np.ones((5, 24), np.float32)) for each in programs]
    for other in results[1:]:
        np.testing.assert_array_equal(other[0], results[0][0])


SCALED = """
<ir_version: 8, opset_import: ["" : 17]>
file (float[{rows},24] {name}) => (float[{rows},24] y{more}) {{
    y = Mul ({name}, {name})
    other = Neg (y)
}}
"""


def written(name: str, rows: int = 5, more: str = "") -> bytes:
    return onnx.parser.parse_model(SCALED.format(name=name, rows=rows, more=more)).SerializeToString()


def test_an_export_is_called_with_its_own_names_where_its_types_are_the_models(tmp_path: Path) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(written("x"))
    model = replace(load_model(str(path)), source=None)
    assert file_as_call(model, 1) is None
    assert export_as_call(model, written("x", rows=6), 1) is None
    assert export_as_call(model, written("x", more=", float[5,24] other"), 1) is None
    called = export_as_call(model, written("argument_1"), 1)
    assert called is not None
    made = compile_mix(called, called.module, (), resolve_target("cpu", num_threads=1), facts=ProgramFacts())
    x = np.random.default_rng(0).standard_normal((5, 24), dtype=np.float32)
    np.testing.assert_array_equal(Program(made.program, write_library=made.write_library)(x), x * x)


def test_a_file_that_has_changed_meanwhile_is_no_call(tmp_path: Path) -> None:
    path = file_in(tmp_path)
    model = load_model(str(path), shapes={"waveform": (5, 24)}, values={"flag": True})
    path.write_bytes(path.read_bytes() + b"\0")
    assert file_as_call(model, 1) is None


DISTANCES = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
file (float[N,3] points, float[4,3] others) => (float[N,4] apart, float[N,3] twice) {
    apart = com.microsoft.CDist <metric = "euclidean"> (points, others)
    twice = Add (points, points)
}
"""


def test_a_file_that_cannot_be_imported_is_one_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "distances.onnx"
    onnx.save(onnx.parser.parse_model(DISTANCES), path)
    options: dict[str, Any] = {"shape": {"points": (5, 3)}, "records": f"sqlite:///{tmp_path}/r.db"}
    program = compile_within(path, None, seconds=0, threads=1, **options)
    assert "CDist" in caplog.text
    points, others = np.random.default_rng(0).standard_normal((2, 5, 3), np.float32)
    apart, twice = program(points, others[:4])
    norms = np.linalg.norm(points[:, None] - others[None, :4], axis=2)
    np.testing.assert_allclose(apart, norms, rtol=1e-5)
    np.testing.assert_array_equal(twice, 2 * points)
    with pytest.raises(UnsupportedOperatorError, match="CDist"):
        compile_within(path, None, seconds=0, threads=1, backends=["tvm"], **options)

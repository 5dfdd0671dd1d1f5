"""Compiled programs against the user's own module under torch: values, kinds, trees, messages, threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

import tessel  # noqa: E402 - after the skips
from tessel.compiling.partitioning import compile_within  # noqa: E402
from tests.samples.programs.compiled_modules import draw_nested, nested, perceptron  # noqa: E402
from tuner.errors import TunerError  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.tvm]

LIBRARIES = {
    "tvm": {"backends": ["tvm"]},
    "torch": {"backends": ["torch", "tvm"], "assign": ["nn.conv2d=torch", "matmul=torch"]},
    "onnxruntime": {
        "backends": ["onnxruntime", "tvm"],
        "assign": ["nn.conv2d=onnxruntime", "matmul=onnxruntime"],
    },
    "blas": {"backends": ["blas", "tvm"], "assign": ["matmul=blas"]},
}


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime")
    return str(request.param)


@pytest.fixture(scope="module")
def program(library: str) -> tessel.Program:
    module, inputs = nested()
    return compile_within(module, inputs, seconds=0, threads=1, **LIBRARIES[library])


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    return [leaf for item in tree for leaf in leaves(item)] if isinstance(tree, list | tuple) else [tree]


def assert_equal(found: Any, expected: Any) -> None:
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        else:
            assert one == other


def test_values_and_trees_are_the_modules_on_twenty_inputs(program: tessel.Program, library: str) -> None:
    assert library == "tvm" or library in program.manifest.libraries
    module, _ = nested()
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _ in range(20):
            inputs = draw_nested(rng)
            expected = module(**inputs)
            assert_equal(program(**inputs), expected)
            assert_equal(program(inputs["image"], inputs["labels"], pair=inputs["pair"]), expected)


@pytest.mark.parametrize("library", ["tvm"], indirect=True)
class TestCalls:
    """What a call takes and refuses, whoever runs it."""

    def test_arrays_give_arrays_of_equal_values(self, program: tessel.Program) -> None:
        _, inputs = nested()
        arrays = {
            "image": inputs["image"].numpy(),
            "labels": inputs["labels"].numpy(),
            "pair": {name: value.numpy() for name, value in inputs["pair"].items()},
        }
        found, expected = program(**arrays), program(**inputs)
        assert isinstance(found["logits"], np.ndarray)
        np.testing.assert_array_equal(found["logits"], expected["logits"].numpy())
        np.testing.assert_array_equal(found["rest"][0], expected["rest"][0].numpy())

    def test_memory_is_not_copied_where_its_layout_allows(self, program: tessel.Program) -> None:
        _, inputs = nested()
        image, expected = inputs["image"], program(**inputs)["logits"]
        assert image.data_ptr() % 64 == 0
        for first in (0, 4, 8):  # floats: kernels read vectors of 64 bytes, and allocators give 16
            moved = torch.empty(image.numel() + first)[first:].view(image.shape).copy_(image)
            assert program.prepared([moved, inputs["labels"], *inputs["pair"].values()])[0] is moved
            given = {**inputs, "image": moved}
            torch.testing.assert_close(program(**given)["logits"], expected, rtol=0, atol=0)
            array = moved.numpy()
            assert program._inputs[0].tensor(array).data_ptr() == array.ctypes.data
        assert np.from_dlpack(expected).ctypes.data == expected.data_ptr()

    def test_other_layouts_and_gradients_are_taken_too(self, program: tessel.Program) -> None:
        _, inputs = nested()
        expected = program(**inputs)["logits"]
        image = inputs["image"]
        shifted = torch.empty(image.numel() + 1)[1:].view(image.shape).copy_(image)
        for other in (
            image.contiguous(memory_format=torch.channels_last),
            image.flip(0).flip(0),
            shifted,
            image.clone().requires_grad_(),
        ):
            torch.testing.assert_close(program(**{**inputs, "image": other})["logits"], expected)
        backwards = inputs["image"].numpy()[::-1]
        array = program(backwards, inputs["labels"].numpy(), _arrays(inputs["pair"]))["logits"]
        again = program(backwards.copy(), inputs["labels"].numpy(), _arrays(inputs["pair"]))["logits"]
        np.testing.assert_array_equal(array, again)

    @pytest.mark.parametrize(
        ("changed", "error", "message"),
        [
            ({"image": torch.zeros(1, 3, 8, 8)}, ValueError, r"input 'image' has shape \[1, 3, 8, 8\]"),
            ({"image": torch.zeros(2, 3, 8, 8).double()}, TypeError, "input 'image' is of float64"),
            ({"labels": torch.zeros(2)}, TypeError, "input 'labels' is of float32.*for int64"),
            ({"labels": [0, 1]}, TypeError, "input 'labels' is a list"),
            ({"pair": [1]}, TypeError, "input 'pair' is a list of 1.*a dictionary of shift, mask"),
            ({"pair": {"shift": 1}}, TypeError, "a dictionary of shift, but"),
            ({"scale": 3.0}, ValueError, "input 'scale' is 3.0, but the program was compiled for 2.0"),
            (
                {"sacle": 3.0},
                TypeError,
                "no input 'sacle'; it takes image, labels, pair, scale, mask",
            ),
            ({"image": None}, TypeError, "input 'image' is a NoneType"),
        ],
    )
    def test_a_wrong_input_is_refused_by_name(
        self, program: tessel.Program, changed: dict[str, Any], error: type[Exception], message: str
    ) -> None:
        _, inputs = nested()
        with pytest.raises(error, match=message):
            program(**{**inputs, **changed})

    def test_missing_and_repeated_inputs_are_refused_by_name(self, program: tessel.Program) -> None:
        _, inputs = nested()
        with pytest.raises(TypeError, match="input 'labels' is missing"):
            program(inputs["image"])
        with pytest.raises(TypeError, match="input 'image' is given by position and by name"):
            program(inputs["image"], **inputs)
        with pytest.raises(TypeError, match="by position, not 9"):
            program(*range(9))

    def test_the_table_says_who_runs_what(self, program: tessel.Program) -> None:
        table = program.explain()
        assert "nn.conv2d" in table
        assert "tvm" in table
        assert repr(program).startswith("<tessel program Nested(image: float32[2, 3, 8, 8], labels: int64[2]")


class Decorated(torch.nn.Module):
    """Takes a default by name alone, which its signature does not say."""

    def forward(self, x: Any, use_cache: bool | None = None) -> Any:
        return torch.tanh(x)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **{"use_cache": None, **kwargs})


def test_a_default_that_is_taken_by_name_alone_is_left_out(tmp_path: Any) -> None:
    x = torch.randn(2, 4)
    program = compile_within(Decorated(), (x,), seconds=0, threads=1, backends=["tvm"])
    torch.testing.assert_close(program(x), torch.tanh(x), rtol=1e-4, atol=1e-5)


def _arrays(tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in tensors.items()}


@pytest.mark.parametrize(
    "library",
    [pytest.param(name, marks=() if name == "tvm" else pytest.mark.slow) for name in LIBRARIES],
    indirect=True,
)
def test_two_programs_run_in_eight_threads_each(library: str, program: tessel.Program) -> None:
    other_module, other_input = perceptron()
    other = compile_within(other_module, other_input, seconds=0, threads=1, backends=["tvm"])
    module, _ = nested()
    inputs = [draw_nested(torch.Generator().manual_seed(seed)) for seed in range(8)]
    started = threading.Barrier(16)

    def run_nested(each: dict[str, Any]) -> list[Any]:
        started.wait()
        return [program(**each) for _ in range(20)]

    def run_other(factor: int) -> list[Any]:
        started.wait()
        return [other(other_input * factor) for _ in range(20)]

    with torch.no_grad(), ThreadPoolExecutor(16) as pool:
        found = [pool.submit(run_nested, each) for each in inputs]
        found_other = [pool.submit(run_other, factor) for factor in range(8)]
        for each, results in zip(inputs, found, strict=True):
            for result in results.result():
                assert_equal(result, module(**each))
        for factor, results in enumerate(found_other):
            for result in results.result():
                torch.testing.assert_close(result, other_module(other_input * factor), rtol=1e-4, atol=1e-5)


def test_what_was_searched_and_measured_is_what_runs(tmp_path: Any) -> None:
    module, example = perceptron()
    program = tessel.compile(
        module, example, backends=["tvm"], threads=1, records=str(tmp_path / "records.db")
    )
    torch.testing.assert_close(program(example), module(example).detach(), rtol=1e-4, atol=1e-5)
    assert set(program.manifest.latency_us) == {"mix", "tvm"}
    assert program.manifest.max_relative_error is not None
    assert all(part.source == "measured" for part in program.manifest.parts)
    zoo = tessel.compile("mlp:tiny", backends=["tvm"], threads=1, records=str(tmp_path / "records.db"))
    assert zoo(np.zeros((1, 32), np.float32)).shape == (1, 8)


def test_what_keeps_state_or_trains_is_refused_before_anything_is_measured(tmp_path: Any) -> None:
    class Counting(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, data: Any) -> Any:
            self.calls += 1
            return data + self.calls

    records = tmp_path / "records.db"
    with pytest.raises(TunerError, match="writes calls, and a compiled program keeps no state"):
        tessel.compile(Counting(), torch.ones(2), records=str(records))
    with pytest.raises(TunerError, match="for inference; leave train out"):
        tessel.compile("mlp:tiny", train=True, records=str(records))
    assert not records.exists()

"""Weights of ONNX files train as the file has them, whatever its graph makes of them before it uses them."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - after the skip
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tuner.frontend import load_model  # noqa: E402
from tuner.frontend.model import Model  # noqa: E402
from tuner.stages import build_stages, cut_between, draw_tensors, layers_of, run_stages  # noqa: E402
from tuner.stages.interface import gradient_name  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.onnx, pytest.mark.torch]

Tensors = Mapping[str, "torch.Tensor"]


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes):
    return helper.make_node(kind, inputs, outputs, **attributes)


def of(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


GRAPHS: dict[str, tuple[list, dict[str, np.ndarray], Callable]] = {
    "transposed": (
        [node("Transpose", ["w"], ["turned"], perm=[1, 0]), node("MatMul", ["x", "turned"], ["y"])],
        {"w": of(6, 8)},
        lambda x, w: x @ w["w"].T,
    ),
    "Gemm": (
        [node("Gemm", ["x", "w", "b"], ["y"], transB=1, alpha=0.5, beta=2.0)],
        {"w": of(6, 8), "b": of(6)},
        lambda x, w: 0.5 * x @ w["w"].T + 2 * w["b"],
    ),
    "cast and reshaped": (
        [
            node("Transpose", ["w"], ["turned"], perm=[1, 2, 0]),
            node("Reshape", ["turned", "shape"], ["flat"]),
            node("Cast", ["flat"], ["wide"], to=TensorProto.FLOAT),
            node("MatMul", ["x", "wide"], ["y"]),
        ],
        {"w": of(6, 2, 4).astype("float64"), "shape": np.array([8, 6])},
        lambda x, w: x @ w["w"].permute(1, 2, 0).reshape(8, 6).float(),
    ),
    "normalised": (
        [
            node("ReduceL2", ["v"], ["length"], axes=[1], keepdims=1),
            node("Div", ["v", "length"], ["direction"]),
            node("Mul", ["direction", "g"], ["w"]),
            node("Gemm", ["x", "w"], ["y"], transB=1),
        ],
        {"v": of(6, 8), "g": of(6, 1)},
        lambda x, w: x @ (w["g"] * w["v"] / w["v"].norm(dim=1, keepdim=True)).T,
    ),
    "divided": (
        [
            node("Split", ["w", "sizes"], ["query", "key"], axis=0),
            node("Transpose", ["query"], ["turned_query"], perm=[1, 0]),
            node("Transpose", ["key"], ["turned_key"], perm=[1, 0]),
            node("MatMul", ["x", "turned_query"], ["left"]),
            node("MatMul", ["x", "turned_key"], ["right"]),
            node("Mul", ["left", "right"], ["y"]),
        ],
        {"w": of(12, 8), "sizes": np.array([6, 6])},
        lambda x, w: (x @ w["w"][:6].T) * (x @ w["w"][6:].T),
    ),
    "clipped and padded": (
        [
            node("MatMul", ["x", "w"], ["made"]),
            node("Constant", [], ["least"], value_float=-0.5),
            node("Constant", [], ["most"], value_float=1.5),
            node("Clip", ["made", "least", "most"], ["clipped"]),
            node("Pad", ["clipped", "widths"], ["y"]),
        ],
        {"w": of(8, 4), "widths": np.array([0, 1, 0, 1])},
        lambda x, w: functional.pad((x @ w["w"]).clamp(-0.5, 1.5), (1, 1)),
    ),
}


def written(nodes: list, constants: Mapping[str, np.ndarray], path: Path) -> str:
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_weight_has_the_gradient_name_and_layout_of_the_file(name: str, tmp_path: Path, run) -> None:
    nodes, constants, in_torch = GRAPHS[name]
    model = load_model(written(nodes, constants, tmp_path / "w.onnx"), training=True)
    trained = {key: value for key, value in constants.items() if value.dtype.kind == "f"}
    assert set(model.parameter_names) - model.untrained == set(trained)
    tensors = draw_tensors(model, rng=np.random.default_rng(0))
    weights = {key: torch.tensor(value, requires_grad=True) for key, value in trained.items()}
    logits = in_torch(torch.tensor(tensors["x"]), weights)
    functional.cross_entropy(logits, torch.tensor(tensors["labels"])).backward()
    for split in (False, True):
        found = run_stages(build_stages(model, ()), tensors, split=split, run=run)
        for key, weight in weights.items():
            assert_same(found[gradient_name(key)], weight.grad)


class Tied(nn.Module):
    """A table that the graph of a file looks up as it lies, and multiplies by transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.layer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return self.head(torch.relu(self.layer(y)))


def exported(module: nn.Module, path: Path) -> str:
    """Write a module for training, as torch's older exporter does, which names weights after the module's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 5, dtype=torch.long),),
            str(path),
            dynamo=False,
            input_names=["x"],
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.PRESERVE,
        )
    return str(path)


@pytest.mark.parametrize("num_stages", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_exported_module_has_torchs_gradients_under_torchs_names(
    num_stages: int, tmp_path: Path, run
) -> None:
    torch.manual_seed(0)
    module = Tied().eval()
    model = load_model(exported(module, tmp_path / "tied.onnx"), training=True)
    expected = dict(module.named_parameters())
    assert set(model.parameter_names) - model.untrained == set(expected)
    tensors = draw_tensors(model, rng=np.random.default_rng(0))
    logits = module(torch.tensor(tensors["x"]))
    labels = torch.tensor(tensors["labels"])
    functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    layers = layers_of(model)
    cuts = cut_between(layers, [len(layers) // 2]) if num_stages == 2 else ()
    found = run_stages(build_stages(model, cuts), tensors, split=False, run=run)
    for name, weight in expected.items():
        assert_same(found[gradient_name(name)], weight.grad)


def test_numbers_in_nodes_and_running_statistics_do_not_train(tmp_path: Path) -> None:
    nodes = [
        node("Constant", [], ["half"], value_float=0.5),
        node("Mul", ["x", "half"], ["scaled"]),
        node("BatchNormalization", ["scaled", "scale", "shift", "mean", "variance"], ["normal"]),
        node("MatMul", ["normal", "w"], ["y"]),
    ]
    vectors = {name: np.ones(8, "float32") for name in ("scale", "shift", "mean", "variance")}
    model: Model = load_model(written(nodes, {**vectors, "w": of(8, 6)}, tmp_path / "w.onnx"), training=True)
    (stage,) = build_stages(model, ())
    returned = {info.name for info in stage.backward.outputs}
    assert returned == {gradient_name(name) for name in ("scale", "shift", "w")}


def assert_same(found: np.ndarray, expected: "torch.Tensor") -> None:
    assert found.shape == tuple(expected.shape)
    expected = expected.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())

"""Torch programs: what TVM computes against torch itself, and what is refused."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tuner.errors import ModelFileError, UnknownNameError, UnsupportedOperatorError
from tuner.frontend import load_model, random_inputs

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from tuner.frontend.torch.program import import_module  # noqa: E402 - after the skip

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

OWN_MODEL = str(Path(__file__).parents[4] / "examples" / "own_model.py") + ":build"


class Convolutions(nn.Module):
    """Convolution, batch normalisation with statistics that differ from 0 and 1, pooling, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.head = nn.Linear(8, 5)
        nn.init.uniform_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2.0)

    def forward(self, image):
        x = F.max_pool2d(F.relu6(self.norm(self.stem(image))), 2)
        x = F.adaptive_avg_pool2d(F.hardswish(self.depthwise(x)), 1)
        return self.head(F.dropout(x.flatten(1), 0.5, self.training))


class MaskedAttention(nn.Module):
    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask
        self.register_buffer("keep", torch.rand(6, 6) > 0.3)
        self.keep.fill_diagonal_(True)

    def forward(self, query, key, value):
        match self.mask:
            case "causal":
                return F.scaled_dot_product_attention(query, key, value, is_causal=True)
            case "boolean":
                return F.scaled_dot_product_attention(query, key, value, attn_mask=self.keep)
            case "additive":
                return F.scaled_dot_product_attention(query, key, value, attn_mask=self.keep.float())
            case "scaled":
                return F.scaled_dot_product_attention(query, key, value, scale=0.3)
        return F.scaled_dot_product_attention(query, key, value)


class Shared(nn.Module):
    """One layer called twice, one weight at two places, a table with its own indices, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("positions", torch.arange(3))

    def forward(self, ids):
        x = self.layer(self.layer(self.table(ids) + self.table(self.positions)))
        return self.head(x), x.mean(-1)


def compare(module, inputs, run_model, assert_close):
    torch.manual_seed(0)
    model = import_module(module, inputs, "own")
    with torch.no_grad():
        expected = module.eval()(*inputs)
    found = run_model(model, [tensor.numpy() for tensor in inputs], model.parameters)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other.numpy())
    return model


def test_convolutions_compute_what_torch_computes(run_model, assert_close) -> None:
    model = compare(Convolutions(), (torch.randn(2, 3, 16, 16),), run_model, assert_close)
    assert {"norm.running_mean", "norm.running_var"} <= set(model.parameter_names)
    assert {"stem", "norm", "depthwise", "head"} <= set(model.module_paths)


@pytest.mark.parametrize("mask", ["causal", "boolean", "additive", "scaled", "none"])
def test_attention_computes_what_torch_computes(mask: str, run_model, assert_close) -> None:
    inputs = tuple(torch.randn(2, 3, 6, 8) for _ in range(3))
    model = compare(MaskedAttention(mask), inputs, run_model, assert_close)
    assert "attention" not in model.module.script().replace("MaskedAttention", "")


def test_shared_layers_weights_and_results_compute_what_torch_computes(run_model, assert_close) -> None:
    model = compare(Shared(), (torch.randint(11, (2, 3)),), run_model, assert_close)
    assert model.tied == (("table.weight", "head.weight"),)
    assert model.parameter_names == ("table.weight", "layer.weight", "layer.bias")
    assert set(model.module_paths) == {"", "table", "layer", "head"}
    assert model.inputs[0].high == 11


def test_own_model_of_the_example_computes_what_torch_computes(run_model, assert_close) -> None:
    model = load_model(OWN_MODEL)
    inputs = random_inputs(model, 0)
    sys.path.insert(0, str(Path(OWN_MODEL).parents[1]))
    try:
        from examples.own_model import build  # noqa: PLC0415 - the folder is no package of the project
    finally:
        sys.path.pop(0)
    module, _ = build()
    with torch.no_grad():
        expected = module(torch.from_numpy(inputs[0]))
    (found,) = run_model(model, inputs, model.parameters)
    assert_close(found, expected.numpy())
    assert "blocks.7.projection" in model.module_paths
    assert model.tied == (("embedding.weight", "head.weight"),)


@pytest.mark.slow  # its model is imported for inference by the test before
def test_own_model_for_training_returns_a_loss() -> None:
    model = load_model(OWN_MODEL, training=True)
    assert len(model.module["main"].ret_ty.shape) == 0
    assert [spec.name for spec in model.inputs] == ["token_ids", "labels"]


def test_module_that_was_training_is_training_afterwards() -> None:
    module = Convolutions().train()
    import_module(module, (torch.randn(1, 3, 16, 16),), "own")
    assert module.training


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("exported") / "convolutions.pt2"
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        Convolutions().eval(), (torch.randn(2, 3, 16, 16),), dynamic_shapes=({0: batch},)
    )
    torch.export.save(program, str(path))
    return str(path)


def test_open_extent_of_an_exported_program_is_bound(exported: str, run_model, assert_close) -> None:
    model = load_model(exported, shapes={"image": (3, 3, 16, 16)})
    inputs = random_inputs(model, 0)
    assert inputs[0].shape == (3, 3, 16, 16)
    expected = torch.export.load(exported).module()(torch.from_numpy(inputs[0]))
    assert_close(run_model(model, inputs, model.parameters)[0], expected.detach().numpy())


@pytest.mark.parametrize(
    ("shapes", "error", "message"),
    [
        ({}, ValueError, r"leaves open \(\?,3,16,16\)"),
        ({"image": (2, 3, 16, 17)}, ValueError, "was exported for"),
        ({"image": (2, 3, 16)}, ValueError, "does not fit"),
        ({"picture": (2, 3, 16, 16)}, UnknownNameError, "no input 'picture'.*image"),
    ],
)
def test_shape_that_does_not_fit_an_exported_program_is_refused(
    shapes, error: type[Exception], message: str, exported: str
) -> None:
    with pytest.raises(error, match=message):
        load_model(exported, shapes=shapes)


def test_truncated_exported_program_is_refused_by_name(exported: str, tmp_path: Path) -> None:
    path = tmp_path / "half.pt2"
    content = Path(exported).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match=r"half\.pt2"):
        load_model(str(path))


def test_missing_exported_program_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.pt2"):
        load_model("nowhere.pt2")


PROGRAM = """
import torch

class Branch(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

class Rare(torch.nn.Module):
    def forward(self, x):
        return torch.unique(x)

class Listed(torch.nn.Module):
    def forward(self, x):
        return torch.tensor(x.tolist()) + torch.from_numpy(x.numpy() * 2)

def branch(): return Branch(), (torch.randn(3),)
def listed(): return Listed(), (torch.randn(3),)
def scripted(): return torch.jit.script(torch.nn.ReLU()), (torch.randn(3),)
def lazy(): return torch.nn.LazyLinear(3), (torch.randn(2, 3),)
def empty(): return torch.nn.Linear(3, 3, device="meta"), (torch.randn(3),)
def misfit(): return torch.nn.Linear(3, 3), (torch.randn(2, 4),)
def quantised():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3))
    return torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}), (torch.randn(2, 3),)
def rare(): return Rare(), (torch.randn(3),)
def nothing(): return 5
def fails(): raise KeyError("no such key")
def takes(x): return x
value = 7
"""


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (
            "branch",
            UnsupportedOperatorError,
            r"cannot trace .*`return x if x\.sum\(\) > 0 else -x` at .*program\.py:6: .*control flow",
        ),
        (
            "scripted",
            UnsupportedOperatorError,
            "is a TorchScript module.*give the module that it was made from",
        ),
        (
            "quantised",
            UnsupportedOperatorError,
            "0, a Linear, holds packed, quantised weights; give the module",
        ),
        (
            "lazy",
            UnsupportedOperatorError,
            "weight has no shape yet, .*; run the module once on its inputs first",
        ),
        ("empty", UnsupportedOperatorError, "weight is on the device meta, without values; load"),
        ("misfit", UnsupportedOperatorError, "mat1 and mat2 .*on its example inputs; give inputs"),
        ("listed", UnsupportedOperatorError, r"program\.py:14: .*write that line otherwise"),
        ("rare", UnsupportedOperatorError, r"unique"),
        ("nothing", ModelFileError, "returned int"),
        ("fails", ModelFileError, "KeyError.*no such key"),
        ("takes", ModelFileError, "takes"),
        ("value", UnknownNameError, "has no function 'value'"),
        ("missing", UnknownNameError, "has no function 'missing'"),
    ],
)
def test_function_that_gives_no_model_is_refused(
    function: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with pytest.raises(error, match=message):
        load_model(f"{path}:{function}")


ANSWERS = """
import torch
from dataclasses import dataclass

class Cache: pass

@dataclass
class Answer:
    logits: torch.Tensor
    cache: Cache

class Answering(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, mask=None, scale=2.0, bias=None, *, more=None, **options):
        x = x if mask is None else x * mask
        return Answer(self.layer(x) * scale + (0 if bias is None else bias), [Cache()])

def named(): return Answering(), {"bias": torch.ones(3), "x": torch.randn(2, 4)}
def one(): return Answering(), torch.randn(2, 4)
def unknown(): return Answering(), {"x": torch.randn(2, 4), "more": torch.ones(3)}
def missing(): return Answering(), {"mask": torch.ones(4)}
def text(): return Answering(), "x"
"""


@pytest.mark.parametrize(("function", "names"), [("named", ["x", "bias"]), ("one", ["x"])])
def test_inputs_may_be_named_and_results_may_be_a_librarys(
    function: str, names: list[str], tmp_path: Path, run_model, assert_close
) -> None:
    path = tmp_path / "answers.py"
    path.write_text(ANSWERS)
    model = load_model(f"{path}:{function}")
    assert [spec.name for spec in model.inputs] == names
    assert any("results of type Cache are left out" in note for note in model.notes)
    inputs, (expected,) = model.reference.draw(model.inputs, 0)
    (found,) = run_model(model, list(inputs.values()), model.parameters)
    assert_close(found, expected)
    assert [spec.name for spec in load_model(f"{path}:{function}", training=True).inputs] == [
        *names,
        "labels",
    ]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("unknown", "no position for 'more'; name those of x, mask, scale, bias"),
        ("missing", "without 'x', which the module needs; add it"),
        ("text", "of type str, but a module takes tensors"),
    ],
)
def test_inputs_that_fit_no_forward_are_refused(function: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.py"
    path.write_text(ANSWERS)
    with pytest.raises(ModelFileError, match=message):
        load_model(f"{path}:{function}")


@pytest.mark.parametrize("location", ["program.py", "program", "./program.py"])
def test_function_may_import_what_lies_beside_it(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text(PROGRAM)
    (tmp_path / "program.py").write_text("from beside_it import Rare, nothing")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    with pytest.raises(ModelFileError, match="returned int"):
        load_model(f"{location}:nothing")
    assert sys.path == path
    for name in ("beside_it", "program"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_missing_python_file_is_refused_by_name() -> None:
    with pytest.raises(ModelFileError, match=r"nowhere\.py"):
        load_model("nowhere.py:build")


def test_missing_python_module_is_no_model() -> None:
    with pytest.raises(UnknownNameError, match="no model 'nowhere:build'"):
        load_model("nowhere:build")
    with pytest.raises(UnknownNameError, match=r"no Python module 'json\.nowhere'"):
        load_model("json.nowhere:build")


def test_values_of_parameters_are_those_of_the_module() -> None:
    module = Shared()
    model = import_module(module, (torch.zeros(2, 3, dtype=torch.long),), "own")
    for name, value in model.parameters.items():
        assert np.array_equal(value, module.state_dict()[name].numpy())


SIZED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)
    def forward(self, ids, mask, *more):
        return self.head((self.table(ids) * mask[..., None] + more[0]).mean(1))

def build():
    ids = torch.tensor([[1, 2, 6]])
    return Net(), (ids, (ids > 1).float(), torch.randn(1, 1, 4))
"""


def test_a_functions_examples_take_the_shapes_that_are_given(tmp_path: Path, run_model, assert_close) -> None:
    path = tmp_path / "net.py"
    path.write_text(SIZED)
    shapes = {"ids": (2, 5), "mask": (2, 5), "more_0": (2, 1, 4)}
    model = load_model(f"{path}:build", shapes=shapes)
    assert {spec.name: spec.shape for spec in model.inputs} == shapes
    inputs, (expected,) = model.reference.own(model.inputs, 0)
    assert inputs["ids"].tolist() == [[1, 2, 6, 1, 2]] * 2
    assert_close(run_model(model, list(inputs.values()), model.parameters)[0], expected)
    with pytest.raises(UnknownNameError, match="idz"):
        load_model(f"{path}:build", shapes={"idz": (2, 5)})
    with pytest.raises(ValueError, match="ids"):
        load_model(f"{path}:build", shapes={"ids": (2, 5, 1)})


class Cached(nn.Module):
    def forward(self, past: "torch.Tensor", x: "torch.Tensor") -> "torch.Tensor":
        return torch.cat([past, x], 1).cumsum(1)


def test_an_example_may_be_given_no_extent(run_model) -> None:
    """A first token has no past."""
    examples = (torch.randn(1, 3, 4), torch.randn(1, 2, 4))
    model = import_module(Cached(), examples, "cached", shapes={"past": (1, 0, 4)})
    assert [spec.shape for spec in model.inputs] == [(1, 0, 4), (1, 2, 4)]
    x = np.arange(8, dtype="float32").reshape(1, 2, 4)
    (found,) = run_model(model, [np.zeros((1, 0, 4), "float32"), x], {})
    np.testing.assert_array_equal(found, x.cumsum(1))


class Difference(nn.Module):
    def forward(self, left: "torch.Tensor", right: "torch.Tensor") -> "torch.Tensor":
        return 2 * left - right


def test_one_tensor_as_the_example_of_two_inputs_leaves_them_two(run_model) -> None:
    """As `{"input_ids": ids, "labels": ids}`: an export takes them for one input."""
    example = torch.zeros(3)
    model = import_module(Difference(), (example, example), "difference")
    left, right = np.array([1, 2, 3], "float32"), np.array([10, 20, 30], "float32")
    (found,) = run_model(model, [left, right], {})
    np.testing.assert_array_equal(found, 2 * left - right)

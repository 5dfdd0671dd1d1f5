"""Models of one's own, tuned for CPU ranks and run there for real.

An encoder–decoder with tied embeddings, for two and for four ranks; and a model with dropout, rows of padding
and an operator without a gradient, whose losses and gradients are the module's own, in train mode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from document_schemas import check_printed

pytest.importorskip("torch")

import torch
from torch import nn

from tessel.errors import DocumentError
from tessel.loading import load_plan
from tuner.programs.compiled_stages import ProgramSpec, load_programs

pytestmark = [pytest.mark.tvm, pytest.mark.torch, pytest.mark.slow]

MODEL = f"{Path(__file__).parents[4] / 'examples' / 'encoder_decoder.py'}:build"

SOURCE = """
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 12), nn.Linear(8, 8), nn.Dropout(0.2)

    def forward(self, x):
        pooled = functional.max_pool1d(self.up(x), 3, 1, dilation=2)
        return x + self.drop(self.down(pooled))


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.drop = nn.Embedding(5, 8, padding_idx=2), nn.Dropout(0.3)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 5)

    def forward(self, ids):
        x = self.drop(self.table(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build():
    return Language(), (torch.randint(5, (2, 6)),)
"""


@pytest.mark.parametrize("devices", [2, 4])
def test_tied_gradients_are_exact_on_real_ranks(
    devices: int, tessel: Callable[..., object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path_factory.mktemp("plan")
    # Both numbers of devices share what was measured.
    stored = tmp_path_factory.getbasetemp() / "encoder_decoder.db"
    measured = ("--threads", 1, "--backends", "tvm", "--hop-us", 50, "--records", stored)
    searched = ("--devices", devices, "--micro-batches", 4, "--time-limit", "2s", "--out", out)
    tuned = tessel("tune", MODEL, *measured, *searched)
    assert tuned.status == 0, tuned.stderr
    (tied,) = json.loads((out / "plan.json").read_bytes())["tied"]
    assert {member["name"] for member in tied} == {"shared.weight"}
    assert {tied[0]["stage"], tied[-1]["stage"]} == {0, devices - 1}
    for stages in ("compiled", "torch"):
        run = ("--stages", stages, "--repeats", 1, "--overheads", "none", "--trust-model", "--json")
        done = tessel("run", out / "plan.json", *run)
        assert done.status == 0, done.stderr
        report = check_printed(["run"], done.stdout)
        assert report["max_gradient_error"] < 1e-4
        assert report["loss_error"] < 1e-5
        assert set(report) >= {"searched", "1f1b"}


def test_masks_rows_of_padding_and_calls_of_torch_are_those_of_the_module(
    tessel: Callable[..., object], tmp_path: Path
) -> None:
    (tmp_path / "dropping.py").write_text(SOURCE)
    model = f"{tmp_path / 'dropping.py'}:build"
    measured = ("--threads", 1, "--backends", "tvm,torch", "--hop-us", 50, "--records", tmp_path / "r.db")
    searched = ("--devices", 2, "--micro-batches", 4, "--time-limit", "2s", "--out", tmp_path)
    tuned = tessel("tune", model, *measured, *searched)
    assert tuned.status == 0, tuned.stderr
    plan = json.loads((tmp_path / "plan.json").read_bytes())
    assert len(plan["torch_calls"]) == 2
    assert any("its masks are inputs" in note for note in plan["notes"])
    assert any("nn.max_pool1d has no gradient here" in note for note in plan["notes"])
    run = ("--repeats", 1, "--overheads", "none", "--trust-model", "--json")
    done = tessel("run", tmp_path / "plan.json", *run)
    assert done.status == 0, done.stderr
    report = check_printed(["run"], done.stdout)
    assert 0 < report["max_gradient_error"] < 1e-5
    assert report["loss_error"] < 1e-5


NORMALISED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.other = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        y = self.norm(self.body(x)).relu()
        with torch.no_grad():
            gate = self.other(y).softmax(-1)
        return self.head(y * gate + y.detach())


def build():
    torch.manual_seed(0)
    return Net(), (torch.randn(8, 16),)
"""


def test_one_plan_for_several_shapes_runs_for_each_of_them_with_the_same_weights(
    tessel: Callable[..., object], tmp_path: Path
) -> None:
    """Of a model that normalises by the batch and blocks gradients, in train mode."""
    (tmp_path / "lengths.py").write_text(NORMALISED)
    model = f"{tmp_path / 'lengths.py'}:build"
    measured = ("--threads", 1, "--backends", "tvm,torch", "--hop-us", 50, "--records", tmp_path / "r.db")
    searched = ("--devices", 2, "--micro-batches", 2, "--time-limit", "2s", "--out", tmp_path)
    tuned = tessel("tune", model, *measured, *searched, "--shape", "x=4,16", "--shape", "x=12,16", "--json")
    assert tuned.status == 0, tuned.stderr
    (other,) = check_printed(["tune"], tuned.stdout)["other_shapes"]
    assert other["shapes"] == {"x": [4, 16]}
    assert other["max_gradient_error"] < 1e-3
    path = tmp_path / "plan.json"
    plan = load_plan(path)
    (small,) = plan.other_shapes
    assert [stage.parameters for stage in plan.stages] == [stage.parameters for stage in small.stages]
    assert plan.reference == small.reference == "train"
    for shape in ("x=12,16", "x=4,16"):
        run = ("--repeats", 1, "--overheads", "none", "--trust-model", "--json", "--shape", shape)
        done = tessel("run", path, *run)
        assert done.status == 0, done.stderr
        assert check_printed(["run"], done.stdout)["max_gradient_error"] < 1e-3
    refused = tessel("run", path, "--trust-model", "--shape", "x=5,16")
    assert refused.status == 2
    assert "x=12,16; x=4,16" in refused.stderr.replace("\n", " ")
    specs = [ProgramSpec(plan=each, trust_model=True) for each in (plan, small)]
    large = load_programs(specs[0], [1])
    shared = load_programs(specs[1], [1], shared=large)
    assert all(shared[1].weights[name] is weight for name, weight in large[1].weights.items())
    document = json.loads(path.read_bytes())
    document["other_shapes"][0]["stages"].reverse()
    path.write_text(json.dumps(document))
    with pytest.raises(DocumentError, match="with other stages"):
        load_plan(path)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(13, 8)
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh())
        self.head = nn.Linear(8, 13)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.table(ids)))


@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_the_layout_of_a_model_from_a_file_is_chosen_and_its_plan_is_exact(
    kind: str, tessel: Callable[..., object], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, example = Words(), (torch.randint(13, (2, 6)),)
    path = tmp_path / f"words.{kind}"
    if kind == "pt2":
        torch.export.save(torch.export.export(model, example), path)
    else:
        pytest.importorskip("onnx")
        torch.onnx.export(model, example, path, input_names=["ids"], dynamo=False)
    linked = ("--link", "10GB/s", "--hop-us", 5, "--threads", 1, "--backends", "tvm")
    searched = ("--devices", 2, "--micro-batches", 4, "--work", 0.5, "--records", tmp_path / "r.db")
    tuned = tessel("tune", path, "--placement", "auto", *linked, *searched, "--out", tmp_path, "--json")
    assert tuned.status == 0, tuned.stderr
    printed = check_printed(["tune"], tuned.stdout)
    assert {"plan", "1f1b", "data-parallel", "tensor-parallel"} <= {row["name"] for row in printed["planned"]}
    moved = path.rename(tmp_path / f"moved.{kind}")
    run = ("run", tmp_path / "plan.json", "--repeats", 1, "--overheads", "none", "--json")
    lost = tessel(*run)
    assert lost.status == 1
    assert "--model FILE" in lost.stderr
    done = tessel(*run, "--model", moved)
    assert done.status == 0, done.stderr
    report = check_printed(["run"], done.stdout)
    assert report["max_gradient_error"] < 1e-4
    assert report["loss_error"] < 1e-5


def test_a_plan_for_a_fixed_input_runs_with_its_value(tessel: Callable[..., object], tmp_path: Path) -> None:
    """A branch by an input of one number, whose two weights are of other extents."""
    helper = pytest.importorskip("onnx").helper
    branches = {
        f"{name}_branch": helper.make_graph(
            [
                helper.make_node(
                    "Constant", [], [name], value=helper.make_tensor(name, 1, (4, width), [1] * 4 * width)
                ),
                helper.make_node("MatMul", ["h", name], [f"{name}_result"]),
            ],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_result", 1, (2, width))],
        )
        for name, width in (("then", 3), ("else", 5))
    }
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"], name="/body/Tanh"),
        helper.make_node("If", ["cached"], ["y"], name="/head/If", **branches),
    ]
    ends = [
        helper.make_tensor_value_info("x", 1, (2, 4)),
        helper.make_tensor_value_info("cached", 9, ()),
        helper.make_tensor_value_info("y", 1, (2, "width")),
    ]
    model = helper.make_model(helper.make_graph(nodes, "branching", ends[:2], ends[2:]), ir_version=8)
    model.opset_import[0].version = 17
    path = tmp_path / "branching.onnx"
    path.write_bytes(model.SerializeToString())
    measured = ("--threads", 1, "--backends", "tvm", "--hop-us", 50, "--records", tmp_path / "r.db")
    searched = ("--devices", 2, "--micro-batches", 2, "--work", 0.5, "--infer", "--out", tmp_path)
    refused = tessel("tune", path, *measured, *searched)
    assert refused.status == 1
    assert "--value cached=VALUE" in refused.stderr.replace("\n", " ")
    tuned = tessel("tune", path, *measured, *searched, "--value", "cached=false")
    assert tuned.status == 0, tuned.stderr
    assert load_plan(tmp_path / "plan.json").values == {"cached": False}
    done = tessel("run", tmp_path / "plan.json", "--repeats", 1, "--overheads", "none", "--json")
    assert done.status == 0, done.stderr
    assert check_printed(["run"], done.stdout)["worst_output"]["relative_error"] < 1e-6

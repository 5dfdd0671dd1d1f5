"""Operators that have no gradient here are calls of torch in training, and their gradients torch's own."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after the skip
from torch.nn import functional  # noqa: E402
from tvm.relax import op  # noqa: E402

from tuner.backends.torch.operators import provide_torch_calls  # noqa: E402
from tuner.errors import MissingGradientError  # noqa: E402
from tuner.frontend.loading import for_training, with_torch_calls  # noqa: E402
from tuner.frontend.model import InputSpec  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.graph.torch_call import torch_calls_in  # noqa: E402
from tuner.stages import (  # noqa: E402
    build_stages,
    check_gradients,
    cut_between,
    layers_of,
    with_all_gradients,
)

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Deep(nn.Module):
    """A convolution and a pool of three dimensions; behind them what has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv3d(2, 4, (1, 3, 2), padding=(0, 1, 0), groups=2)
        self.up = nn.ConvTranspose3d(4, 2, 2, stride=(1, 2, 1))

    def forward(self, x):
        pooled = functional.max_pool3d(self.up(self.down(x)), (2, 3, 1), (1, 2, 1), (1, 1, 0))
        return x + pooled[:, :, 1:3, :5]


class Flat(nn.Module):
    """Windows that skip elements; padding that repeats them and sorted elements have gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Conv2d(2, 3, (2, 3)), nn.Linear(4, 5)

    def forward(self, x):
        y = functional.max_pool2d(self.layer(functional.pad(x[:, :, 0], (1, 2, 1, 0), "reflect")), 2, 1, 0, 2)
        return self.head(y.flatten(1).sort(-1).values[:, :4])


def built():
    torch.manual_seed(0)
    module = nn.Sequential(Deep(), Deep(), Flat())
    return for_training(import_module(module, (torch.randn(2, 2, 2, 5, 4),), "without"))


def test_what_has_no_gradient_is_called_with_torchs_gradient(run) -> None:
    model = built()
    with pytest.raises(MissingGradientError):
        build_stages(model, ())
    mended = with_all_gradients(model)
    assert with_all_gradients(mended) is mended
    names = [call.name for call in torch_calls_in(mended.module["main"])]
    assert {
        "torch call aten.conv3d",
        "torch call aten.conv_transpose3d.input",
        "torch call aten.max_pool3d",
        "torch call aten.max_pool2d",
    } <= set(names)
    assert names.count("torch call aten.conv3d") == 2
    assert any("has no gradient here: it stays a call of torch" in note for note in mended.notes)

    def calling(module, arrays):
        provide_torch_calls(module)
        return run(module, arrays)

    stages = build_stages(mended, cut_between(layers_of(mended), [1, 2]))
    found = check_gradients(mended, stages, seed=0, run=calling)  # against torch, joint and split
    assert found.is_within(1e-4), found
    # A plan's ranks import the model again by the names alone.
    again = with_torch_calls(built(), mended.called)
    assert [call.name for call in torch_calls_in(again.module["main"])] == names


class Bags(nn.Module):
    """Sums of rows of a table; an export without gradients holds an operator that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(7, 3, mode="sum")

    def forward(self, ids):
        return self.table(ids).tanh().sum()


def test_a_call_has_the_gradient_of_its_operator_that_has_one(run) -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[0, 3, 1], [6, 3, 3]])
    model = with_all_gradients(for_training(import_module(Bags(), (ids,), "bags")))

    def calling(module, arrays):
        provide_torch_calls(module)
        return run(module, arrays)

    found = check_gradients(model, build_stages(model, ()), seed=0, run=calling)
    assert found.is_within(1e-5), found


class Filled(nn.Module):
    """Rows filled with a weight, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.scale = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(3))
        self.register_buffer("rows", torch.tensor([2, 0, -4, 2]))

    def forward(self, x):
        found = torch.ops.aten.index_fill(x * self.scale, 0, self.rows % 4, self.value)
        return (found * torch.arange(12.0).reshape(4, 3)).sum()


def test_the_gradient_of_what_fills_counts_each_index_once(run) -> None:
    torch.manual_seed(0)
    model = with_all_gradients(for_training(import_module(Filled(), (torch.randn(4, 3),), "filled")))
    found = check_gradients(model, build_stages(model, ()), seed=0, run=run)
    assert found.is_within(1e-5), found


def test_no_gradient_is_asked_for_before_whole_numbers(make_model) -> None:
    """The sort has no gradient, and its numbers come from a weight by way of whole ones."""

    def build(emit, x, w):
        whole = emit(op.astype(emit(op.multiply(x, w)), "int32"))
        ordered = emit(op.sort(emit(op.astype(whole, "float32"))))
        return emit(op.sum(emit(op.multiply(ordered, w))))

    inputs = [InputSpec(name="x", shape=(4,), dtype="float32")]
    model = make_model(build, inputs=inputs, parameters={"w": ((4,), "float32")})
    assert with_all_gradients(model) is model


def test_no_gradient_is_asked_for_of_what_never_trains(make_model) -> None:
    model = make_model(
        lambda emit, x, w, v: op.sum(emit(op.add(emit(op.sort(v)), emit(op.multiply(x, w))))),
        inputs=[InputSpec(name="x", shape=(4,), dtype="float32")],
        parameters={"w": ((4,), "float32"), "v": ((4,), "float32")},
    )
    with pytest.raises(MissingGradientError):
        with_all_gradients(model)
    frozen = dataclasses.replace(model, untrained=frozenset({"v"}))
    assert with_all_gradients(frozen) is frozen


def test_what_was_said_of_a_model_and_of_its_new_import_stays(monkeypatch) -> None:
    def imported(model, operators):
        return dataclasses.replace(with_torch_calls(model, operators), notes=("said anew",))

    monkeypatch.setattr("tuner.stages.missing_gradients.with_torch_calls", imported)
    first, second, *others = with_all_gradients(dataclasses.replace(built(), notes=("said before",))).notes
    assert (first, second) == ("said before", "said anew")
    assert others
    assert all(note.endswith("it stays a call of torch, forward and backward") for note in others)


@pytest.mark.parametrize("node", ["", "called"])
def test_what_no_call_can_stand_for_or_has_one_already_is_an_error(node) -> None:
    class Reference:
        def node_of(self, model, variable):
            return node

    model = dataclasses.replace(built(), called=("called",), reference=Reference())
    with pytest.raises(MissingGradientError, match="has no gradient"):
        with_all_gradients(model)


def test_a_model_without_torch_names_the_operator(make_model) -> None:
    model = make_model(
        lambda emit, x, w: op.sum(emit(op.sort(emit(op.multiply(x, w))))),
        inputs=[InputSpec(name="x", shape=(4,), dtype="float32")],
        parameters={"w": ((4,), "float32")},
    )
    with pytest.raises(MissingGradientError, match="operator 'sort'"):
        with_all_gradients(model)

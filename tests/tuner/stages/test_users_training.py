"""Training as users write it, in two stages: every gradient is torch's.

One module has frozen weights beneath adapters of low rank, a table tied to the head, changes in place, a
checkpoint, and losses in a dict; what is wrong in one of them shows in a gradient.
"""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after the skip
from torch.utils.checkpoint import checkpoint  # noqa: E402

from benchmarks.architectures.training import check_training, stages_of  # noqa: E402
from tuner.backends.torch.operators import provide_torch_calls  # noqa: E402
from tuner.frontend.loading import for_training  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.stages import build_stages, check_gradients  # noqa: E402
from tuner.stages.interface import gradient_name  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Adapted(nn.Module):
    """A frozen linear layer and a product of low rank that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(8, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x):
        y = self.base(x) + self.up(self.down(x))
        y.mul_(0.5)
        y[..., 0] += 1
        return torch.relu_(y)


class Users(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layers = nn.ModuleList([Adapted(), Adapted()])
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids, labels):
        x = self.table(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        logits = self.head(x)
        return {
            "loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "penalty": 0.1 * logits.square().mean(),
            "logits": logits,
        }


def built():
    torch.manual_seed(0)
    return import_module(Users(), (torch.randint(11, (2, 6)), torch.randint(11, (2, 6))), "users")


def test_frozen_weights_get_no_gradient_and_tied_ones_get_one_each_stage() -> None:
    model, stages = stages_of(built(), 2)
    assert any("the sum of its 2 scalars" in note for note in model.notes)
    made = [info.name for stage in stages for info in stage.backward.outputs]
    weights = {name for stage in stages for name in stage.parameters}
    trained = {name for name in weights if gradient_name(name) in made}
    assert {name for name in weights if ".base." in name} == {
        f"layers.{index}.base.{kind}" for index in range(2) for kind in ("weight", "bias")
    }
    assert trained == {name for name in weights if ".base." not in name}
    assert {"layers.0.down.weight", "layers.1.up.weight", "table.weight"} <= trained


@pytest.mark.slow
def test_stages_have_the_gradients_of_torch() -> None:
    finding = check_training(built(), 2)
    assert finding.outcome == "equal", finding.reason


def with_calls(run):
    """Run modules that hold calls of torch."""

    def calling(module, arrays):
        provide_torch_calls(module)
        return run(module, arrays)

    return calling


class Padded(nn.Module):
    """A table whose row 1 is padding and is tied to the head, and one that is looked up in two ways."""

    def __init__(self, dtype=torch.float32) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 6, padding_idx=1)
        self.rare = nn.Embedding(4, 6, padding_idx=2, scale_grad_by_freq=True)
        self.both = nn.Parameter(torch.randn(4, 6))
        self.head = nn.Linear(6, 4, bias=False)
        self.head.weight = self.table.weight
        self.to(dtype)

    def forward(self, ids):
        x = self.table(ids) + self.rare(ids)
        x = x + nn.functional.embedding(ids, self.both, 0) + self.both[ids.flatten()].view(x.shape)
        return self.head(x.tanh())


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_rows_of_padding_get_no_gradient_from_look_ups(run, dtype) -> None:
    torch.manual_seed(0)
    given = torch.tensor([[0, 1, 2, 3, 1, 2]])
    model = for_training(import_module(Padded(dtype), (given,), "padded"))
    assert model.padding_rows == {"table.weight": 1}
    found = check_gradients(model, build_stages(model, ()), seed=0, run=with_calls(run))
    assert found.is_within(1e-5 if dtype is torch.float32 else 3e-2), found
    unpadded = replace(model, padding_rows={})
    spoilt = check_gradients(unpadded, build_stages(unpadded, ()), seed=0, run=with_calls(run))
    assert spoilt.tensor.startswith("the gradient of table.weight")
    assert not spoilt.is_within(0.1)


class Segments(nn.Module):
    """Scores of classes in rows of an image: softmax over a row cancels the head's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)

    def forward(self, x):
        return self.head(1e-2 * torch.relu(self.body(x)))


def test_a_bias_that_softmax_cancels_is_compared_with_its_exact_gradient(run) -> None:
    """As SegFormer's: torch's own gradient, a sum of 1280 terms that cancel, is rounding errors too."""
    torch.manual_seed(0)
    model, stages = stages_of(import_module(Segments(), (torch.randn(1, 3, 16, 16),), "segments"), 2)

    def error(factor: float = 1.0, summand: float = 0.0):
        def spoilt(module, arrays):
            is_last = module is stages[1].backward.module
            return [
                array * factor + summand if is_last and array.shape == (5,) else array
                for array in run(module, arrays)
            ]

        return check_gradients(model, stages, seed=0, run=spoilt)

    assert error().is_within(1e-3)
    wrong = error(summand=1e-5)
    assert wrong.tensor == "the gradient of head.bias (stage1, the joint backward)"
    assert not wrong.is_within(1e-2)
    # A module that needs its own type has no exact gradient; then rounding errors count.
    model.reference.module.body.register_forward_pre_hook(lambda _, given: given[0].float())
    assert not error().is_within(1e-3)

"""Gradients end where the user's code ends them: `detach`, `torch.no_grad`, and not within a checkpoint."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after the skip
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tuner.errors import UnsupportedOperatorError  # noqa: E402
from tuner.frontend.loading import for_training, with_torch_calls  # noqa: E402
from tuner.frontend.torch.program import import_module, load_exported  # noqa: E402
from tuner.stages import build_stages, check_gradients, cut_between, layers_of  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Target(nn.Module):
    """Gates its input by what a layer that never trains makes of it, and pulls towards a detached copy."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    @torch.no_grad()
    def gate(self, x):
        gate = self.other(x).softmax(-1)
        return gate, gate.sum(-1, keepdim=True)

    def forward(self, x):
        y = self.own(x).tanh()
        gate, total = self.gate(y)
        y = y * gate + total
        return y * y.detach() - x.detach()


class Blocking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 6)
        self.layers = nn.ModuleList([Target(), Target()])
        self.rebuilt = nn.Linear(6, 6)
        self.head = nn.Linear(6, 7)

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        x = x + checkpoint(self.rebuilt, x, use_reentrant=True)
        return self.head(x)


@pytest.fixture(scope="module")
def given():
    torch.manual_seed(0)
    return Blocking(), (torch.tensor([[0, 3, 1, 6]]),)


@pytest.fixture
def model(given):
    return for_training(import_module(*given, "blocking"))


def test_stages_have_the_gradients_that_the_code_says(run, model) -> None:
    stages = build_stages(model, cut_between(layers_of(model), (2,)))
    assert len(stages) == 2
    found = check_gradients(model, stages, seed=0, run=run)
    assert found.is_within(1e-5), found


def test_an_import_that_does_not_block_is_caught(run, given, model) -> None:
    unblocked = import_module(*given, "blocking")
    reference = replace(unblocked.reference, blocks=True)  # so it is not imported again
    unblocked = for_training(replace(unblocked, reference=reference))
    found = check_gradients(unblocked, build_stages(unblocked, ()), seed=0, run=run)
    assert not found.is_within(0.1)


def test_calls_of_torch_keep_gradients_blocked(run, model) -> None:
    (node, *_) = [node.name for node in model.reference.program.graph.nodes if "tanh" in node.name]
    again = with_torch_calls(model, (node,))
    assert again.called == (node,)
    assert "grad.no_grad" in str(again.module)


def test_files_block_gradients_too(run, tmp_path) -> None:
    module = nn.Sequential(nn.Linear(6, 6), Target(), nn.Linear(6, 7))
    inputs = (torch.randn(2, 6),)
    path = tmp_path / "blocking.pt2"
    torch.export.save(torch.export.export(module, inputs, strict=False), path)
    loaded = for_training(load_exported(path, shapes={}, guarded=False))
    assert str(loaded.module).count("grad.no_grad") >= 3
    found = check_gradients(loaded, build_stages(loaded, ()), seed=0, run=run)
    assert found.is_within(1e-5), found


def test_what_no_weight_reaches_is_not_blocked() -> None:
    """So models whose tables of positions are made under `no_grad` are imported once."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                angles = (x * 2).cos()
            return self.head(x * angles)

    model = import_module(Positions(), (torch.randn(2, 4),), "positions")
    assert model.reference.with_blocked_gradients(model) is model


def test_a_table_whose_rows_are_kept_short_is_not_trained() -> None:
    """torch shortens the rows in place, and hands them the gradient as if nothing had been done."""
    table = nn.Embedding(7, 6, max_norm=1.0)
    imported = import_module(nn.Sequential(table, nn.Linear(6, 7)), (torch.tensor([[0, 3]]),), "short")
    with pytest.raises(UnsupportedOperatorError, match="shortens rows of a table that trains to `max_norm`"):
        for_training(imported)

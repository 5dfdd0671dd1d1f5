"""Batch normalisation trains in stages as in torch: every micro-batch by its own statistics."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after the skip

from tuner.frontend.loading import for_training  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.programs.inputs import draw_inputs  # noqa: E402
from tuner.stages import build_stages, check_gradients, cut_between, layers_of  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Normalised(nn.Module):
    """A bias that the normalisation cancels, statistics over images and over rows, and dropout between."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(p))
        self.head = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False, momentum=None))

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


def built(batch: int = 6, p: float = 0.25):
    torch.manual_seed(0)
    return import_module(Normalised(p), (torch.randn(batch, 3, 7, 7),), "normalised")


@pytest.mark.parametrize("p", [pytest.param(0.0, marks=pytest.mark.slow), 0.25])
def test_stages_have_the_loss_and_the_gradients_of_the_module_in_train_mode(run, p: float) -> None:
    imported = built(p=p)
    before = {name: each.clone() for name, each in imported.reference.module.named_buffers()}
    model = for_training(imported)
    assert model.reference.mode == "train"
    (*_, note) = model.notes
    assert "batch_norm in body.1, head.1: each micro-batch" in note
    assert len(model.notes) == 1 + bool(p)
    stages = build_stages(model, cut_between(layers_of(model), (1,)) if p else ())
    found = check_gradients(model, stages, seed=0, run=run)
    assert found.is_within(1e-3), found  # two of the biases cancel: their gradients are rounding errors
    buffers = dict(imported.reference.module.named_buffers())
    assert all(torch.equal(buffers[name], each) for name, each in before.items())


def test_running_statistics_in_their_place_are_caught(run) -> None:
    evaluated = replace(built(p=0.0), reference=None)
    trained = for_training(built(p=0.0))
    wrong = replace(for_training(evaluated), reference=trained.reference)
    assert not check_gradients(wrong, build_stages(wrong, ()), seed=0, run=run).is_within(0.1)


def test_a_micro_batch_has_its_own_statistics() -> None:
    model = for_training(built(p=0.0))
    arrays = [{name: each.numpy() for name, each in draw_inputs(model, 0, index).items()} for index in (0, 1)]
    losses = [float(model.reference.gradients(model, each)[0]) for each in arrays]
    both = {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}
    assert float(model.reference.gradients(model, both)[0]) != pytest.approx(np.mean(losses), rel=1e-4)


def test_one_example_cannot_be_normalised_and_trains_in_eval_mode_with_the_reason() -> None:
    model = for_training(built(batch=1))
    assert model.reference.mode == "eval"
    assert "Expected more than 1 value per channel" in model.notes[0]

"""Gradients of imported torch models, cut into stages, are those that torch finds itself."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - only where torch is installed

from tuner.frontend.loss import with_loss  # noqa: E402 - as above
from tuner.frontend.torch.program import import_module  # noqa: E402 - it imports torch
from tuner.stages import (  # noqa: E402 - as above
    build_stages,
    choose_cuts,
    cut_between,
    draw_tensors,
    layers_of,
    run_stages,
)

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(x + self.norm(self.convolution(x)))


class ConvolutionalNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.layers = nn.Sequential(Residual(4), Residual(4))
        self.spread = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(torch.flatten(self.spread(self.layers(self.pool(self.stem(x)))), 1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 12)

    def forward(self, tokens):
        return self.head(self.encoder(self.embed(tokens)))


@pytest.mark.parametrize(
    ("build", "example"),
    [
        (ConvolutionalNetwork, torch.zeros(2, 3, 12, 12)),
        pytest.param(Transformer, torch.zeros(2, 4, dtype=torch.int64), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("split", [pytest.param(False, marks=pytest.mark.slow), True])
def test_gradients_of_stages_are_torchs(build, example, split, run):
    torch.manual_seed(0)
    module = build().eval()
    model = with_loss(import_module(module, (example,), build.__name__))
    layers = layers_of(model)
    cuts = choose_cuts([1.0] * len(layers), [0] * len(layers), 2)
    stages = build_stages(model, cut_between(layers, cuts))
    tensors = draw_tensors(model, rng=np.random.default_rng(0))
    found = run_stages(stages, tensors, split=split, run=run)
    data, labels = (torch.tensor(tensors[spec.name]) for spec in model.inputs)
    logits = module(data % 12 if data.dtype == torch.int64 else data)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    np.testing.assert_allclose(found[stages[-1].outputs[0].name], loss.detach().numpy(), rtol=1e-5)
    for name, parameter in module.named_parameters():
        scale = parameter.grad.abs().max().item()
        np.testing.assert_allclose(found[f"{name}.grad"], parameter.grad.numpy(), rtol=0, atol=1e-4 * scale)

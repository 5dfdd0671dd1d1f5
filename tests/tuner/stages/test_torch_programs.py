"""Programs of torch stages, run in any order of actions, give the uncut module's losses and gradients."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tuner.errors import TunerError  # noqa: E402 - only where torch is installed
from tuner.stages.torch_programs import TorchSpec, provide_programs, reference_step  # noqa: E402 - as above

pytestmark = pytest.mark.torch

MODELS = '''
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x, memory=None):
        x = x + torch.tanh(self.linear(self.norm(x)))
        return x if memory is None else x * torch.sigmoid(memory)


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.encoder = nn.Sequential(Layer(), Layer())
        self.decoder = nn.ModuleList([Layer(), Layer(), Layer()])
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, source, target):
        memory = self.encoder(self.embed(source))
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(x)


class Halves(nn.Module):
    """What crosses the cuts are views, and a mask of truth values."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x):
        left, right = self.first(x).chunk(2, dim=-1)
        kept = left > 0
        both = torch.cat([self.second(left), right], dim=-1)
        return (self.third(both) * kept[..., :3]).square().mean()


def encoder_decoder():
    return EncoderDecoder(), (torch.full((2, 5), 15), torch.full((2, 5), 15))


def halves():
    return Halves(), (torch.zeros(3, 8),)
'''


@dataclass(frozen=True)
class Step:
    kind: str
    micro_batch: int


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def run_all(programs, backward, num_micro_batches):
    """Run all forwards, then all backwards, the last micro-batch first, then what is left of the weights."""
    numbers = sorted(programs)
    for program in programs.values():
        program.start_step(num_micro_batches)
    for micro_batch in range(num_micro_batches):
        given = {}
        for number in numbers:
            given = programs[number].run(Step("F", micro_batch), given)
    for micro_batch in reversed(range(num_micro_batches)):
        given = {}
        for number in reversed(numbers):
            assert given.keys() == {info.name for info in programs[number].received_gradients}
            given = programs[number].run(Step(backward, micro_batch), given)
    for micro_batch in range(num_micro_batches) if backward == "I" else ():
        for number in numbers:
            programs[number].run(Step("W", micro_batch), {})


@pytest.mark.parametrize("backward", ["B", "I"])
@pytest.mark.parametrize(
    ("function", "cuts"),
    [("encoder_decoder", ("encoder.0", "decoder.0", "decoder.1")), ("halves", ("first", "second"))],
)
def test_losses_and_gradients_are_those_of_the_uncut_module(function, cuts, backward, models):
    spec = TorchSpec(model=f"{models}:{function}", cuts=cuts, seed=3)
    text = msgspec.json.encode(spec).decode()
    # Each stage comes from a call of its own, as each rank makes one.
    programs = {number: provide_programs(text, [number])[number] for number in range(len(cuts) + 1)}
    run_all(programs, backward, num_micro_batches=3)
    losses, expected = reference_step(spec, 3)
    assert programs[len(cuts)].losses() == pytest.approx(losses, rel=1e-6)
    found = {}
    for program in programs.values():
        for name, gradient in program.gradients().items():
            found[name] = found.get(name, 0) + gradient.numpy()
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-7)


def test_a_model_that_is_no_torch_module_is_refused():
    with pytest.raises(TunerError, match="names no torch module"):
        provide_programs('{"model": "gpt2", "cuts": []}', [0])


def test_inference_keeps_nothing_and_returns_no_gradients(models):
    spec = TorchSpec(model=f"{models}:encoder_decoder", cuts=("encoder.1",), training=False)
    programs = provide_programs(msgspec.json.encode(spec).decode(), [0, 1])
    for program in programs.values():
        program.start_step(1)
    sent = programs[0].run(Step("F", 0), {})
    assert not any(tensor.requires_grad for tensor in sent.values())
    assert programs[1].run(Step("F", 0), sent) == {}
    assert (programs[0].received_gradients, programs[1].sent_gradients) == ((), ())
    assert (programs[1].losses(), reference_step(spec, 1)) == ({}, ({}, {}))

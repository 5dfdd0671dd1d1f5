"""Dropout with its masks as inputs is torch's own dropout: equal under torch's seed, and equal in stages."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after the skip
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from benchmarks.architectures.training import check_training, stages_of  # noqa: E402
from tuner.frontend.loading import for_training  # noqa: E402
from tuner.frontend.torch.dropout import MASK, give_masks  # noqa: E402
from tuner.frontend.torch.program import import_module  # noqa: E402
from tuner.frontend.torch.training import in_mode  # noqa: E402
from tuner.programs.inputs import draw_inputs  # noqa: E402

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Block(nn.Module):
    """Attention with dropout, a residual, and layers with dropout."""

    def __init__(self, causal: bool, p: float = 0.3) -> None:
        super().__init__()
        self.causal, self.p = causal, p
        self.project, self.up, self.drop = nn.Linear(8, 24), nn.Linear(8, 8), nn.Dropout(p)

    def forward(self, x):
        heads = self.project(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            *heads, dropout_p=self.p if self.training else 0.0, is_causal=self.causal
        )
        x = x + self.drop(attended.transpose(1, 2).flatten(2))
        return x + torch.relu(functional.dropout(self.up(x), 0.2, self.training, inplace=True))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop = nn.Embedding(11, 8), nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block(causal=True), Block(causal=False)])
        self.head = nn.Linear(8, 11)

    def forward(self, ids):
        x = self.drop(self.table(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.4), nn.Flatten(), nn.Linear(36, 5))

    def forward(self, x):
        return self.layers(x)


class Checkpointed(Language):
    """Checkpoints of both kinds, whose backwards run their layers again."""

    def forward(self, ids):
        x = self.drop(self.table(ids))
        for block, is_reentrant in zip(self.blocks, (False, True), strict=True):
            x = checkpoint(block, x, use_reentrant=is_reentrant)
        return self.head(x)


class Recurrent(nn.Module):
    """Networks of several layers with dropout between them, of either order of axes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.one = nn.LSTM(6, 5, 3, dropout=0.3, batch_first=True, bidirectional=True, proj_size=3)
        self.two = nn.GRU(6, 6, 2, dropout=0.2)
        self.three = nn.RNN(6, 6, 2, dropout=0.1, bias=False)
        self.head = nn.Linear(6, 11)

    def forward(self, ids):
        x, (h, _) = self.one(self.table(ids))
        x, last = self.two(x)
        x, _ = self.three(x, last)
        return self.head(x) + h.sum()


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.GRU(6, 6, 2, dropout=0.2)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]))
        return nn.utils.rnn.pad_packed_sequence(self.one(packed)[0])[0]


class Noisy(Language):
    def forward(self, ids):
        x = super().forward(ids)
        return x * torch.rand(()) if self.training else x


CASES = {
    "language": lambda: (Language(), (torch.randint(11, (2, 6)),), 7),
    "features": lambda: (Features(), (torch.randn(2, 3, 5, 5),), 1),
    "checkpoints": lambda: (Checkpointed(), (torch.randint(11, (2, 6)),), 7),
    "recurrent": lambda: (Recurrent(), (torch.randint(11, (2, 6)),), 4),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(8, 2, 12, dropout=0.25, batch_first=True),
        (torch.randn(2, 6, 8),),
        4,
    ),
}


def built(name):
    torch.manual_seed(0)
    return CASES[name]()


@pytest.mark.parametrize("name", CASES)
def test_with_masks_that_torch_draws_results_are_torchs_own(name) -> None:
    module, inputs, count = built(name)
    masked = give_masks(module, inputs)
    assert masked is not None
    assert list(masked.probabilities) == [f"{MASK}_{index}" for index in range(count)]
    with in_mode(module, training=True) as call:
        expected = call(*inputs)
    with in_mode(masked.module, training=True) as call:
        torch.testing.assert_close(call(*masked.examples), expected, rtol=1e-5, atol=1e-6)
        *kept, last = masked.examples
        other = call(*kept, torch.zeros_like(last))
    assert not torch.allclose(other, expected)
    assert list(dict(masked.module.named_parameters())) == list(dict(module.named_parameters()))


def test_sequences_that_are_packed_are_left_alone() -> None:
    assert give_masks(Packed(), (torch.randn(4, 2, 6),)) is None


def test_what_draws_in_another_way_stays_with_a_note() -> None:
    model = for_training(import_module(Noisy(), (torch.randint(11, (2, 6)),), "model"))
    assert [spec.name for spec in model.inputs] == ["ids", "labels"]
    assert any("as in eval mode" in note for note in model.notes)


def test_masks_are_inputs_for_training_alone_and_drawn_apart_for_each_micro_batch() -> None:
    module, inputs, count = built("language")
    module.eval()
    model = import_module(module, inputs, "model")
    assert len(model.inputs) == 1
    trained, stages = stages_of(model, 2)
    assert not module.training
    assert [spec.dropout for spec in trained.inputs] == [None, 0.1, 0.3, 0.3, 0.2, 0.3, 0.3, 0.2, None]
    assert "its masks are inputs" in trained.notes[-1]
    read = [{info.name for info in stage.inputs} for stage in stages]
    assert len(read[0] & read[1]) < count
    one, again, other = (draw_inputs(trained, 0, micro_batch) for micro_batch in (0, 0, 1))
    name = f"{MASK}_1"
    assert torch.equal(one[name], again[name])
    assert not torch.equal(one[name], other[name])
    assert one[name].unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    shares = torch.cat([draw_inputs(trained, seed, 0)[name].flatten() == 0 for seed in range(50)])
    assert shares.float().mean().item() == pytest.approx(0.3, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["language", "features", "checkpoints", "recurrent"])
def test_stages_have_the_gradients_of_torch_with_equal_masks(name) -> None:
    module, inputs, _ = built(name)
    finding = check_training(import_module(module, inputs, "model"), 2)
    assert finding.outcome == "equal", finding.reason

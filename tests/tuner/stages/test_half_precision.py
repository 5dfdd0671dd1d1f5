"""Models in half precision, cut in two stages: the loss and every gradient are those of torch."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.architectures.ranks import check_run
from benchmarks.architectures.training import check_training
from tuner.frontend.loading import for_training
from tuner.frontend.torch.program import import_module
from tuner.programs.step_results import StepResults

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


def build(dtype: torch.dtype) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(50, 16), Residual(), nn.Linear(16, 50))
    return module.to(dtype).eval(), (torch.randint(50, (2, 8)),)


class Autocast(nn.Module):
    """Weights of float32, whose products are computed in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.second(nn.functional.gelu(self.first(x)))
        return y.float()


class AutocastEncoder(nn.Module):
    """Normalised behind its sums, with a ReLU; of the seed 0, torch rounds an input of it across 0."""

    def __init__(self) -> None:
        super().__init__()
        encoder = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.Sequential(nn.Embedding(50, 16), Residual(), encoder, nn.Linear(16, 50))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(ids)


def autocast() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Autocast(), (torch.randn(4, 8),)


def autocast_encoder() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return AutocastEncoder(), (torch.randint(50, (2, 8)),)


def bfloat16() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return build(torch.bfloat16)


def float16() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return build(torch.float16)


@pytest.mark.parametrize(
    "built",
    [
        autocast,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (bfloat16, float16, autocast_encoder)),
    ],
)
def test_stages_in_half_precision_give_the_gradients_of_torch(built) -> None:
    finding = check_training(import_module(*built(), "half"), 2)
    assert finding.outcome == "equal", finding.reason
    assert finding.error is not None
    assert finding.error < 2e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_of_logits_in_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    trained = for_training(import_module(*build(dtype), "half"))
    text = trained.module.script()
    assert "R.nn.log_softmax(lv" in text
    line = next(line for line in text.splitlines() if "R.nn.log_softmax(" in line)
    assert 'dtype="float32"' in line
    assert str(trained.module["main"].ret_ty.dtype.dtype) == str(dtype).removeprefix("torch.")


@pytest.mark.slow
@pytest.mark.parametrize("built", [bfloat16, float16, autocast, autocast_encoder])
def test_ranks_in_half_precision_give_the_losses_and_gradients_of_torch(built) -> None:
    finding = check_run(import_module(*built(), f"{__file__}:{built.__name__}"))
    assert finding.outcome == "equal", finding.reason
    assert finding.error is not None
    assert finding.error < 2e-2


def test_gradients_of_micro_batches_are_added_up_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256: of many small gradients nothing would be left."""
    results = StepResults()
    results.start(257)
    results.add([("w", torch.tensor([256.0], dtype=torch.bfloat16))])
    for _ in range(256):
        results.add([("w", torch.ones(1, dtype=torch.bfloat16))])
    (mean,) = results.mean_gradients().values()
    assert mean.dtype is torch.bfloat16
    assert float(mean) == pytest.approx(512 / 257, rel=2**-8)

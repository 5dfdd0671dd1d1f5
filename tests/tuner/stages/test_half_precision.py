"""Models in half precision, cut in two stages: the loss and every gradient are those of torch."""

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.architectures.training import check_training
from tuner.frontend.loading import for_training
from tuner.frontend.torch.program import import_module

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_stages_in_half_precision_give_the_gradients_of_torch(dtype: torch.dtype) -> None:
    finding = check_training(import_module(*build(dtype), "half"), 2)
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

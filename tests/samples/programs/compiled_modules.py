"""Torch modules that are compiled in tests: nested inputs and results, whole numbers, tied weights."""

from __future__ import annotations

from typing import Any

import torch


class Nested(torch.nn.Module):
    """Takes tensors by position and by name in trees of theirs, and gives a tree."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.table = torch.nn.Embedding(5, 8)
        self.head = torch.nn.Linear(8, 4)

    def forward(
        self, image: Any, labels: Any, pair: Any, scale: float = 2.0, mask: Any = None
    ) -> dict[str, Any]:
        features = torch.relu(self.norm(self.convolution(image))).mean((2, 3)) + self.table(labels)
        logits = self.head(features) * scale + pair["shift"]
        return {"logits": logits, "rest": (logits.argmax(1), [features * pair["mask"], 3, None])}


def nested() -> tuple[torch.nn.Module, dict[str, Any]]:
    """Return the module, with statistics that are not the default ones, and its example inputs by name."""
    torch.manual_seed(0)
    module = Nested()
    with torch.no_grad():
        module.norm.running_mean.uniform_(-1, 1)
        module.norm.running_var.uniform_(0.5, 2)
    return module.eval(), draw_nested(torch.Generator().manual_seed(0))


def draw_nested(rng: torch.Generator) -> dict[str, Any]:
    """Return inputs by name."""
    return {
        "image": torch.randn(2, 3, 8, 8, generator=rng),
        "labels": torch.randint(0, 5, (2,), generator=rng),
        "pair": {
            "shift": torch.randn(2, 4, generator=rng),
            "mask": torch.rand(2, 8, generator=rng) > 0.5,
        },
    }


def perceptron(width: int = 16) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return two linear layers and their example input."""
    torch.manual_seed(width)
    module = torch.nn.Sequential(torch.nn.Linear(width, 32), torch.nn.GELU(), torch.nn.Linear(32, width))
    return module.eval(), torch.randn(4, width)

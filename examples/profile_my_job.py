"""Measure a table of layer timings in a torch job of one's own, for `tessel plan`.

Run: python examples/profile_my_job.py profile.csv
Then: tessel plan profile.csv --devices 4 --micro-batches 16 --memory 16GiB
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from tessel.profiles.torch_hooks import coverage, measure_layers, write_table

VOCABULARY, WIDTH, LENGTH, BLOCKS, SAMPLES = 1000, 128, 64, 4, 4


class LanguageModel(nn.Module):
    """A small transformer whose head shares the embedding's weight: your model stands here."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, batch_first=True)
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def main(path: str) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel().to(device)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH), device=device)

    def step() -> Tensor:
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    layers: dict[str, nn.Module] = {"embedding": model.embedding}
    layers |= {f"block{index}": block for index, block in enumerate(model.blocks)}
    layers["head"] = model.head
    rows = measure_layers(layers, step, micro_batch=SAMPLES)
    write_table(rows, path, model="small language model")
    print(f"{path} written: {len(rows)} layers, which take {coverage(rows, step):.0%} of a step")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "profile.csv")

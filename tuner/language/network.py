"""The network of `cost_model.language.network` in torch, which trains it.

This module needs the extra `language`. Checked in tests/tuner/language/test_training.py: both predict the
same.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from cost_model.language.examples import Example
from cost_model.language.network import EPSILON, Network, NetworkShape
from cost_model.language.text import ANSWER


class TrainedNetwork(nn.Module):
    """Weights that change while they are trained."""

    def __init__(self, network: Network) -> None:
        """Take copies of a network's weights."""
        super().__init__()
        self.shape: NetworkShape = network.shape
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.from_numpy(value.copy())) for name, value in network.weights.items()}
        )

    def network(self) -> Network:
        """Return the weights as they are now."""
        found = {name: value.detach().numpy().copy() for name, value in self.weights.items()}
        return Network(self.shape, {name: found[name] for name in self.shape.tensors})

    def forward(self, example: Example) -> torch.Tensor:
        """Return the cross-entropy of an example's answers in nats a decision, by their weights."""
        weights = self.weights
        prompt = (
            torch.from_numpy(example.prompt.features) @ weights["input"]
            + weights["role"][torch.from_numpy(example.prompt.roles)]
            + weights["segment"][torch.from_numpy(example.prompt.segments)]
        )
        roles = torch.from_numpy(example.roles)
        answers = (
            torch.from_numpy(example.previous) @ weights["input"]
            + weights["role"][torch.from_numpy(example.previous_roles)]
            + weights["segment"][ANSWER]
            + weights["asked"][roles]
            + torch.from_numpy(example.queries) @ weights["query"]
        )
        for layer in range(self.shape.layers):
            prompt, answers = self._layer(prompt, answers, layer)
        asking = self._normed(answers, "last_gain") @ weights["asking"]
        known = torch.from_numpy(example.options) @ weights["option"]
        known = torch.relu(known + weights["option_role"][torch.from_numpy(example.option_roles)])
        logits = asking @ (known @ weights["answering"]).T / math.sqrt(self.shape.width)
        logits = logits.masked_fill(~torch.from_numpy(example.is_legal), -torch.inf)
        targets = torch.from_numpy(example.targets)
        entropy = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        means = entropy.reshape(targets.shape).mean(dim=1)
        return (means * torch.from_numpy(example.weights)).sum()

    def _layer(
        self, prompt: torch.Tensor, answers: torch.Tensor, layer: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = self._heads(prompt[None], layer)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        new_prompt = self._finish(prompt[None], mixed, layer)[0]
        count, length = answers.shape[:2]
        query, own_key, own_value = self._heads(answers, layer)
        keys = torch.cat([key.expand(count, -1, -1, -1), own_key], dim=2)
        values = torch.cat([value.expand(count, -1, -1, -1), own_value], dim=2)
        mask = torch.ones(length, len(prompt) + length, dtype=torch.bool).tril(len(prompt))
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return new_prompt, self._finish(answers, mixed, layer)

    def _heads(self, hidden: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values, shape (count, heads, length, width of a head)."""
        found = self._normed(hidden, f"attention_gain{layer}") @ self.weights[f"attention{layer}"]
        count, length = hidden.shape[:2]
        split = found.reshape(count, length, 3, self.shape.heads, self.shape.width // self.shape.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return query, key, value

    def _finish(self, hidden: torch.Tensor, mixed: torch.Tensor, layer: int) -> torch.Tensor:
        joined = mixed.transpose(1, 2).reshape(hidden.shape)
        hidden = hidden + joined @ self.weights[f"mixed{layer}"]
        inner = self._normed(hidden, f"hidden_gain{layer}") @ self.weights[f"hidden{layer}"]
        return hidden + torch.relu(inner).square() @ self.weights[f"result{layer}"]

    def _normed(self, values: torch.Tensor, gain: str) -> torch.Tensor:
        scale = values.square().mean(dim=-1, keepdim=True).add(EPSILON).sqrt()
        return values / scale * self.weights[gain]

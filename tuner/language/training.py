"""Train the network, several examples a step; weights are kept that do best on kernels held out.

The network is that of `cost_model.language.network` in torch, which trains it: this module needs the extra
`language`. Checked in tests/tuner/language/test_training.py: both predict the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cost_model.language.examples import Example
from cost_model.language.network import EPSILON, Network, NetworkShape
from cost_model.language.text import ANSWER
from tuner.errors import TunerError

logger = logging.getLogger(__name__)

_BATCH = 4
"""Examples of one step, each of up to 16 schedules."""

_WARM_UP_STEPS = 50
_MAX_NORM = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step of training.

    Attributes:
        completed: steps so far.
        loss: of this one, in nats a decision.
        held_out_loss: of the kernels held out after this step, where an epoch ends; else None.
        network: the best so far where an epoch ends; else None.
    """

    completed: int
    total: int
    loss: float
    held_out_loss: float | None = None
    network: Network | None = None


def fit(
    network: Network,
    training_examples: Callable[[np.random.Generator], Sequence[Example]],
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    held_out: Sequence[Example] = (),
) -> Iterator[TrainingStep]:
    """Train, and yield after each step; equal arguments give equal weights.

    Args:
        network: what learns; it is copied.
        training_examples: makes the examples of an epoch, with prompts of their own; always as many.
        epochs: how often they are made.
        learning_rate: the peak; linear warm-up, then cosine decay to 0.
        seed: of prompts and their order.
        held_out: if given, the weights with the lowest loss on these after any epoch are yielded.

    Raises:
        TunerError: the loss is not finite.
    """
    trained = TrainedNetwork(network)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=learning_rate, weight_decay=0.01)
    rng = np.random.default_rng(seed)
    best_loss, best = math.inf, network
    completed = 0
    for epoch in range(epochs):
        examples = training_examples(rng)
        steps = math.ceil(len(examples) / _BATCH)
        total = epochs * steps
        order = rng.permutation(len(examples))
        for start in range(0, len(examples), _BATCH):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate * _rate(completed, total)
            loss = _step(trained, [examples[index] for index in order[start : start + _BATCH]], optimizer)
            completed += 1
            if completed < (epoch + 1) * steps:
                yield TrainingStep(completed=completed, total=total, loss=loss)
        apart = mean_loss(trained, held_out) if held_out else None
        if apart is None or apart < best_loss:
            best, best_loss = trained.network(), math.inf if apart is None else apart
        logger.info("epoch %d: held-out loss %s", epoch, apart)
        yield TrainingStep(completed=completed, total=total, loss=loss, held_out_loss=apart, network=best)


def mean_loss(trained: TrainedNetwork, examples: Sequence[Example]) -> float:
    """Return the cross-entropy of the examples in nats a decision."""
    with torch.inference_mode():
        return float(np.mean([trained(example).item() for example in examples]))


def _step(trained: TrainedNetwork, examples: Sequence[Example], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    total = 0.0
    for example in examples:
        loss = trained(example) / len(examples)
        if not torch.isfinite(loss):
            raise TunerError(
                f"the loss is {loss.item()}, so the network learns nothing any more; train again with a "
                "smaller --learning-rate"
            )
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(trained.parameters(), _MAX_NORM)
    optimizer.step()
    return total


def _rate(step: int, total: int) -> float:
    """Return the factor of the learning rate at a step: linear warm-up, then cosine decay."""
    rise = min(1.0, (step + 1) / min(_WARM_UP_STEPS, total))
    return rise * 0.5 * (1 + math.cos(math.pi * step / total))


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

"""Train the network, several examples a step; weights are kept that do best on kernels held out.

Checked in tests/tuner/language/test_training.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cost_model.language.examples import Example
from cost_model.language.network import Network
from tuner.errors import TunerError
from tuner.language.network import TrainedNetwork

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

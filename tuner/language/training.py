"""Train a network: first on unmeasured schedules, then on the best of the measured ones.

Unmeasured schedules teach what schedules look like; the best few per cent of each kernel's trials, and then
the best one alone, teach which are fast. Each phase continues from the weights of the previous one. If there
are enough kernels, every sixth is held out of fine-tuning, and the weights with the lowest held-out loss are
kept. Checked in tests/tuner/language/test_network.py.

Source: Zhai et al., OSDI 2024, section 5. Differences: the best few per cent are learnt before the best one,
and nothing starts again from the pre-trained weights.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from tuner.errors import TunerError
from tuner.language.examples import Example, batch_of, examples_of, text_of
from tuner.language.kernels import kernel_module, random_kernel
from tuner.language.network import Network
from tuner.language.sketches import KernelSpace, Proposal
from tuner.language.text import Text

logger = logging.getLogger(__name__)

_BATCH = 4
"""Examples of one step, each of up to eight schedules."""

_WARM_UP_STEPS = 20
_MAX_NORM = 1.0

_KEPT_APART = 6
"""One kernel of so many is kept apart, where there are at least twice as many."""

Trials: TypeAlias = Mapping[Proposal, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of training.

    Attributes:
        completed: steps so far.
        total: steps there are.
        loss: of this one, in nats a decided token.
    """

    completed: int
    total: int
    loss: float


def random_spaces(
    families: Sequence[str], count: int, tuned_for: Any, rng: np.random.Generator
) -> Iterator[KernelSpace]:
    """Yield distinct random kernels of each family, the families in turn."""
    names: set[str] = set()
    for _ in range(count):
        for family in families:
            kernel = random_kernel(family, rng)
            if kernel.name not in names:
                names.add(kernel.name)
                yield KernelSpace(kernel.name, kernel_module(kernel), tuned_for)


def sampled_texts(space: KernelSpace, count: int, rng: np.random.Generator) -> dict[Text, float]:
    """Return distinct schedules of a kernel as TVM draws them, each of weight 1."""
    return {text_of(space, space.sample(rng)): 1.0 for _ in range(count)}


def best_texts(space: KernelSpace, trials: Trials, share: float) -> dict[Text, float]:
    """Return the best share of a kernel's trials, at least one; together they weigh 1.

    Args:
        space: of the kernel.
        trials: latencies in microseconds; failures are left out.
        share: of the trials, up to 1; 0 for the best one alone.
    """
    latency_us = {proposal: latency for proposal, latency in trials.items() if latency is not None}
    if not latency_us:
        return {}
    count = max(1, round(share * len(latency_us)))
    best = sorted(latency_us, key=lambda proposal: latency_us[proposal])[:count]
    return {text_of(space, proposal): 1.0 / len(best) for proposal in best}


def fit(
    network: Network,
    texts: Mapping[Text, float],
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    kept_apart: Mapping[Text, float] | None = None,
) -> Iterator[Step]:
    """Train in place, and yield after each step; equal arguments give equal weights.

    Args:
        network: what learns.
        texts: each with its weight.
        epochs: how often each is seen.
        learning_rate: the peak; linear warm-up, then cosine decay to 0.
        seed: of the order of texts.
        kept_apart: if given, the weights with the lowest loss on these, before or after any epoch, are kept.

    Raises:
        TunerError: the loss is not finite.
    """
    examples = examples_of(texts)
    if not examples or epochs < 1:
        return
    rng = np.random.default_rng(seed)
    steps_an_epoch = math.ceil(len(examples) / _BATCH)
    total = epochs * steps_an_epoch
    optimizer = torch.optim.AdamW(network.model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, total))
    best = _Best(network, examples_of(kept_apart)) if kept_apart else None
    for epoch in range(epochs):
        order = rng.permutation(len(examples))
        for step in range(steps_an_epoch):
            chosen = [examples[index] for index in order[step * _BATCH : (step + 1) * _BATCH]]
            loss = _step(network, chosen, optimizer)
            schedule.step()
            yield Step(completed=epoch * steps_an_epoch + step + 1, total=total, loss=loss)
        if best is not None:
            best.look()
    if best is not None:
        best.restore()


def split_kernels(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the kernels into training and held-out ones, if there are enough."""
    if len(names) < 2 * _KEPT_APART:
        return tuple(names), ()
    apart = tuple(names[_KEPT_APART - 1 :: _KEPT_APART])
    return tuple(name for name in names if name not in apart), apart


def mean_loss(network: Network, examples: Sequence[Example]) -> float:
    """Return the cross-entropy of the decisions, in nats per token."""
    total, weight = 0.0, 0.0
    with torch.inference_mode():
        for start in range(0, len(examples), _BATCH):
            found, counted = network.loss(batch_of(examples[start : start + _BATCH]))
            total += found.item()
            weight += counted
    return total / weight


class _Best:
    """Keeps the weights with the lowest held-out loss."""

    def __init__(self, network: Network, examples: Sequence[Example]) -> None:
        self._network = network
        self._examples = examples
        self._loss = math.inf
        self._weights: dict[str, torch.Tensor] = {}
        self.look()

    def look(self) -> None:
        loss = mean_loss(self._network, self._examples)
        logger.info("loss on kernels kept apart: %.3f", loss)
        if loss < self._loss:
            self._loss = loss
            self._weights = {
                name: tensor.detach().clone() for name, tensor in self._network.model.state_dict().items()
            }

    def restore(self) -> None:
        self._network.model.load_state_dict(self._weights)


def _step(network: Network, examples: Sequence[Example], optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    total, weight = network.loss(batch_of(examples))
    loss = total / weight
    if not torch.isfinite(loss):
        raise TunerError(
            f"the loss is {loss.item()}, so the network learns nothing any more; train again with a smaller "
            "--learning-rate"
        )
    loss.backward()  # type: ignore[no-untyped-call]  # torch declares it so
    torch.nn.utils.clip_grad_norm_(network.model.parameters(), _MAX_NORM)
    optimizer.step()
    return loss.item()


def _rate(step: int, total: int) -> float:
    """Return the factor of the learning rate at a step: linear warm-up, then cosine decay."""
    rise = min(1.0, (step + 1) / min(_WARM_UP_STEPS, total))
    return rise * 0.5 * (1 + math.cos(math.pi * step / total))

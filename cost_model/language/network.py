"""The network: a small decoder-only transformer, its prediction a softmax over what may be written next.

Tokens and options are vectors of features, so that there is no list of words: an option's logit is the
product of the hidden state with the option's own embedding. Tokens of the prompt attend to each other, those
of an answer to the prompt and to what was written before. Order is in the tokens' roles; there are no other
positions. Writing runs on numpy alone, some 0.1 s for 96 schedules; training is `tuner.language.training`'s.
Checked in tests/cost_model/language/test_network.py, and against torch in
tests/tuner/language/test_training.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import DecisionSpace, Rows
from cost_model.language.text import (
    ANSWER,
    MARK,
    NUM_ROLES,
    NUM_SEGMENTS,
    NUMBER_WIDTH,
    OPTION_WIDTH,
    TOKEN_WIDTH,
    Context,
    Grammar,
    Option,
    Step,
)

Floats = npt.NDArray[np.float32]

EPSILON = 1e-6
"""Under the root of a norm."""

_MAX_PARAMETERS = 500_000


class NetworkShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The network's size; the defaults give 0.4 million parameters."""

    layers: int = 3
    width: int = 96
    heads: int = 4

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads) < 1 or self.width % self.heads:
            raise ValueError(
                f"{self.layers} layers of width {self.width} with {self.heads} heads are no network; all are "
                "at least 1, and heads divide the width"
            )
        if self.num_parameters > _MAX_PARAMETERS:
            raise ValueError(
                f"{self.layers} layers of width {self.width} have {self.num_parameters:,} parameters, more "
                f"than thousands of trials can teach; take at most {_MAX_PARAMETERS:,}"
            )

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of weights, in the order of files."""
        width = self.width
        found: dict[str, tuple[int, ...]] = {
            "input": (TOKEN_WIDTH, width),
            "role": (NUM_ROLES, width),
            "segment": (NUM_SEGMENTS, width),
            "asked": (NUM_ROLES, width),
            "query": (NUMBER_WIDTH, width),
        }
        for layer in range(self.layers):
            found |= {
                f"attention_gain{layer}": (width,),
                f"attention{layer}": (width, 3 * width),
                f"mixed{layer}": (width, width),
                f"hidden_gain{layer}": (width,),
                f"hidden{layer}": (width, 4 * width),
                f"result{layer}": (4 * width, width),
            }
        return found | {
            "last_gain": (width,),
            "asking": (width, width),
            "option": (OPTION_WIDTH, width),
            "option_role": (NUM_ROLES, width),
            "answering": (width, width),
        }

    @property
    def num_parameters(self) -> int:
        """How many weights there are."""
        width = self.width
        outside = TOKEN_WIDTH + 3 * NUM_ROLES + NUM_SEGMENTS + NUMBER_WIDTH + OPTION_WIDTH + 1
        return width * outside + 2 * width**2 + self.layers * (12 * width**2 + 2 * width)


@dataclass(frozen=True, slots=True)
class Written:
    """Candidates that were written.

    Attributes:
        rows: distinct ones, the likeliest first.
        log_probabilities: of each, at the temperature they were sampled with.
        num_written: how many were, duplicates included.
    """

    rows: Rows
    log_probabilities: npt.NDArray[np.float64]
    num_written: int


@dataclass(frozen=True)
class Network:
    """Weights of a shape; they never change."""

    shape: NetworkShape
    weights: Mapping[str, Floats]

    def __post_init__(self) -> None:
        found = {name: value.shape for name, value in self.weights.items()}
        if found != self.shape.tensors:
            raise ValueError("the weights are not of the network's shape; train it again")

    def write(
        self,
        space: DecisionSpace,
        context: Context,
        count: int,
        *,
        rng: np.random.Generator,
        temperature: float = 1.0,
    ) -> Written:
        """Return candidates of a kernel, all legal but for locations that TVM may repair.

        Args:
            count: how many are written, at least 1; fewer are distinct.
            rng: random numbers; equal ones give equal candidates.
            temperature: above 0; lower values favour likelier decisions.
        """
        if count < 1 or not temperature > 0:
            raise ValueError(
                f"{count} schedules at temperature {temperature} were asked for; give at least 1, above 0"
            )
        grammar = Grammar(space)
        decided, likelihoods = self._sample(grammar, context, count, temperature, rng)
        found: dict[tuple[int, ...], float] = {}
        for values, likelihood in zip(decided, likelihoods, strict=True):
            found.setdefault(tuple(values), float(likelihood))
        ranked = sorted(found, key=lambda values: -found[values])
        return Written(
            np.stack([grammar.row(values) for values in ranked]),
            np.asarray([found[values] for values in ranked]),
            count,
        )

    def log_probability(self, space: DecisionSpace, context: Context, row: npt.NDArray[np.int64]) -> float:
        """Return the logarithm of the probability that a candidate is written."""
        grammar = Grammar(space)
        values = grammar.values(row)
        writing = _Writing(self, grammar, context, 1)
        total = 0.0
        for index, step in enumerate(grammar.steps):
            decided = [values[:index]]
            options, (logits,) = writing.ask(step, decided)[0]
            chances = _softmax(logits)
            place = [option.value for option in options].index(values[index])
            total += math.log(float(chances[place]))
            writing.append(step, [values[index]])
        return total

    def _sample(
        self, grammar: Grammar, context: Context, count: int, temperature: float, rng: np.random.Generator
    ) -> tuple[list[list[int]], npt.NDArray[np.float64]]:
        decided: list[list[int]] = [[] for _ in range(count)]
        likelihoods = np.zeros(count)
        writing = _Writing(self, grammar, context, count)
        for step in grammar.steps:
            chosen = [0] * count
            for members, (options, logits) in writing.ask(step, decided).grouped():
                chances = _softmax(logits / np.float32(temperature))
                bounds = np.cumsum(chances, axis=1)
                drawn = rng.random(len(members))
                for place, member in enumerate(members):
                    picked = min(int(np.searchsorted(bounds[place], drawn[place])), len(options) - 1)
                    chosen[member] = options[picked].value
                    likelihoods[member] += math.log(float(chances[place, picked]))
            for values, value in zip(decided, chosen, strict=True):
                values.append(value)
            writing.append(step, chosen)
        return decided, likelihoods


class _Asked:
    """The options of several answers with their logits, those together that have the same ones."""

    def __init__(self) -> None:
        self.groups: list[tuple[list[int], tuple[Sequence[Option], Floats]]] = []

    def grouped(self) -> list[tuple[list[int], tuple[Sequence[Option], Floats]]]:
        return self.groups

    def __getitem__(self, index: int) -> tuple[Sequence[Option], Floats]:
        return self.groups[index][1]


class _Writing:
    """Answers that grow from one prompt, all by one value at a time."""

    def __init__(self, network: Network, grammar: Grammar, context: Context, count: int) -> None:
        self.weights = network.weights
        self.shape = network.shape
        self.grammar = grammar
        self.count = count
        self.previous: tuple[int, Floats] = MARK, np.zeros((count, TOKEN_WIDTH), dtype=np.float32)
        prompt = grammar.prompt(context)
        weights = self.weights
        hidden = (
            prompt.features @ weights["input"]
            + weights["role"][prompt.roles]
            + weights["segment"][prompt.segments]
        )
        self.prompt: list[tuple[Floats, Floats]] = []
        self.answers: list[list[tuple[Floats, Floats]]] = [[] for _ in range(self.shape.layers)]
        for layer in range(self.shape.layers):
            query, key, value = self._heads(hidden, layer)
            self.prompt.append((key, value))
            scores = np.einsum("qhd,khd->hqk", query, key) * self._scale
            mixed = np.einsum("hqk,khd->qhd", _softmax(scores), value)
            hidden = self._finish(hidden, mixed, layer)

    @property
    def _scale(self) -> float:
        return 1.0 / math.sqrt(self.shape.width // self.shape.heads)

    def ask(self, step: Step, decided: Sequence[Sequence[int]]) -> _Asked:
        """Return what each answer may write next, with logits of shape (num_answers, num_options)."""
        weights = self.weights
        states = [self.grammar.remaining(step, values) for values in decided]
        queries = np.stack([self.grammar.query(step, values) for values in decided])
        role, features = self.previous
        hidden = (
            features @ weights["input"]
            + weights["role"][role]
            + weights["segment"][ANSWER]
            + weights["asked"][step.role]
            + queries @ weights["query"]
        )
        for layer in range(self.shape.layers):
            hidden = self._attend(hidden, layer)
        asking = normed(hidden, weights["last_gain"]) @ weights["asking"]
        found = _Asked()
        for state in sorted(set(states)):
            members = [index for index, each in enumerate(states) if each == state]
            options = self.grammar.options(step, decided[members[0]])
            features = np.stack([option.features for option in options])
            known = np.maximum(features @ weights["option"] + weights["option_role"][step.role], 0)
            keys = known @ weights["answering"]
            logits = asking[members] @ keys.T * np.float32(self.shape.width**-0.5)
            found.groups.append((members, (options, logits)))
        return found

    def append(self, step: Step, values: Sequence[int]) -> None:
        """Take what each answer writes."""
        tokens = {value: self.grammar.token(step, value) for value in set(values)}
        self.previous = step.role, np.stack([tokens[value] for value in values])

    def _attend(self, hidden: Floats, layer: int) -> Floats:
        query, key, value = self._heads(hidden, layer)
        self.answers[layer].append((key, value))
        own_keys = np.stack([each for each, _ in self.answers[layer]])
        own_values = np.stack([each for _, each in self.answers[layer]])
        prompt_keys, prompt_values = self.prompt[layer]
        scores = np.concatenate(
            [
                np.einsum("bhd,khd->bhk", query, prompt_keys),
                np.einsum("bhd,kbhd->bhk", query, own_keys),
            ],
            axis=2,
        )
        chances = _softmax(scores * np.float32(self._scale))
        length = len(prompt_keys)
        mixed = np.einsum("bhk,khd->bhd", chances[:, :, :length], prompt_values)
        mixed = mixed + np.einsum("bhk,kbhd->bhd", chances[:, :, length:], own_values)
        return self._finish(hidden, mixed, layer)

    def _heads(self, hidden: Floats, layer: int) -> tuple[Floats, Floats, Floats]:
        found = normed(hidden, self.weights[f"attention_gain{layer}"]) @ self.weights[f"attention{layer}"]
        query, key, value = np.split(
            found.reshape(len(hidden), 3, self.shape.heads, self.shape.width // self.shape.heads), 3, axis=1
        )
        return query[:, 0], key[:, 0], value[:, 0]

    def _finish(self, hidden: Floats, mixed: Floats, layer: int) -> Floats:
        hidden = hidden + mixed.reshape(len(hidden), self.shape.width) @ self.weights[f"mixed{layer}"]
        inner = normed(hidden, self.weights[f"hidden_gain{layer}"]) @ self.weights[f"hidden{layer}"]
        grown: Floats = hidden + np.square(np.maximum(inner, 0)) @ self.weights[f"result{layer}"]
        return grown


def normed(values: Floats, gain: Floats) -> Floats:
    """Return vectors divided by their root mean square, times a gain."""
    scale = np.sqrt(np.mean(np.square(values), axis=-1, keepdims=True) + np.float32(EPSILON))
    found: Floats = values / scale * gain
    return found


def initial_weights(shape: NetworkShape, seed: int) -> dict[str, Floats]:
    """Return random weights; equal seeds give equal ones."""
    rng = np.random.default_rng(seed)
    found: dict[str, Floats] = {}
    for name, extents in shape.tensors.items():
        if len(extents) == 1:
            found[name] = np.ones(extents, dtype=np.float32)
        else:
            spread = 0.02 if name.startswith(("mixed", "result")) else 1.0 / math.sqrt(extents[0])
            found[name] = (spread * rng.standard_normal(extents)).astype(np.float32)
    return found


def _softmax(logits: Floats) -> Floats:
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    found: Floats = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return found

"""Constrained decoding of proposals: tokens are sampled one by one among the legal ones.

Tokens of the prompt are forced, and so is a token that is the only legal one. Every text is therefore a legal
proposal, whatever the network has learnt. Checked in tests/tuner/language/test_network.py.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.language.choices import Choice, Decision
from tuner.language.examples import MAX_POSITIONS
from tuner.language.network import Network
from tuner.language.sketches import KernelSpace, Proposal, Sketch
from tuner.language.vocabulary import END, PADDING, ids_of

MAX_BATCH = 64
"""Most texts that grow at once."""

_MAX_ROUNDS = 8
"""Rounds after which no more distinct proposals are expected: a small space may not hold enough."""

_PADDING = ids_of([PADDING])[0]


@dataclass(frozen=True, slots=True)
class Generated:
    """The proposals generated for a kernel.

    Attributes:
        proposals: distinct ones, the likeliest first.
        num_written: how many were, duplicates included.
    """

    proposals: tuple[Proposal, ...]
    num_written: int

    @property
    def distinct_ratio(self) -> float:
        """Share of generated proposals that are distinct."""
        return len(self.proposals) / self.num_written if self.num_written else 1.0


def generate(
    network: Network,
    space: KernelSpace,
    count: int,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    known: Collection[Proposal] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Generated:
    """Return distinct proposals for a kernel; fewer if the network does not find enough.

    Equal arguments give equal proposals.

    Args:
        network: predicts the next token.
        space: of the kernel.
        count: how many, at least 1.
        temperature: above 0; lower values favour likelier decisions.
        seed: of the random numbers.
        known: proposals to exclude.
        on_progress: called with the number found and the total.

    Raises:
        ValueError: the count or temperature is out of range, or the kernel cannot be written.
    """
    if count < 1 or not temperature > 0:
        raise ValueError(
            f"{count} proposals at temperature {temperature} were asked for; give at least 1, above 0"
        )
    rng = np.random.default_rng(seed)
    found: dict[Proposal, float] = {}
    num_written = 0
    for _ in range(_MAX_ROUNDS):
        written = write(network, space, min(count - len(found), MAX_BATCH), temperature, rng)
        num_written += len(written)
        found.update((each, likelihood) for each, likelihood in written if each not in known)
        if on_progress is not None:
            on_progress(len(found), count)
        if len(found) >= count:
            break
    return Generated(tuple(sorted(found, key=lambda each: -found[each])), num_written)


def write(
    network: Network, space: KernelSpace, count: int, temperature: float, rng: np.random.Generator
) -> list[tuple[Proposal, float]]:
    """Return proposals with their log-probabilities, duplicates included."""
    kernel_ids = ids_of(space.text.tokens)
    options = ids_of(space.text.sketch_choice.next_tokens([]))
    probabilities = _probabilities(network.start(kernel_ids, 1).logits[0], options, temperature)
    sketches = rng.choice(len(options), size=count, p=probabilities)
    proposals = []
    for index in sorted(set(map(int, sketches))):
        sketch = space.sketches[index]
        prompt = [*kernel_ids, options[index], *ids_of(sketch.text.tokens)]
        answers = _write_answers(network, prompt, sketch, int(np.sum(sketches == index)), temperature, rng)
        likelihood = math.log(probabilities[index])
        proposals += [(Proposal(index, tuple(a.decisions)), likelihood + a.log_probability) for a in answers]
    return proposals


class _Answer:
    """One text that grows: what is decided, and what is forced before the next decision."""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        self.decisions: list[Decision] = []
        self.log_probability = 0.0
        self.written: list[str] = []
        self.forced: deque[str] = deque()
        self.choice: Choice | None = None
        self._next_choice()

    @property
    def is_whole(self) -> bool:
        return self.choice is None and not self.forced

    def allowed(self) -> tuple[str, ...]:
        """Return the tokens that may follow."""
        if self.forced:
            return (self.forced[0],)
        assert self.choice is not None
        return self.choice.next_tokens(self.written)

    def append(self, token: str) -> None:
        """Take one of them."""
        if self.forced:
            self.forced.popleft()
        else:
            self.written.append(token)
        while self.choice is not None and not self.forced and not self.choice.next_tokens(self.written):
            self.decisions.append(self.choice.read(self.written))
            self._next_choice()

    def _next_choice(self) -> None:
        self.written = []
        self.choice = self.sketch.choice(self.decisions)
        self.forced.extend([END] if self.choice is None else self.choice.header)


def _write_answers(
    network: Network,
    prompt: list[int],
    sketch: Sketch,
    count: int,
    temperature: float,
    rng: np.random.Generator,
) -> list[_Answer]:
    answers = [_Answer(sketch) for _ in range(count)]
    writing = network.start(prompt, count)
    length = len(prompt)
    while not all(each.is_whole for each in answers):
        if length >= MAX_POSITIONS:
            raise ValueError(
                f"a text of this kernel has more than {MAX_POSITIONS} tokens; the language model cannot "
                "write its schedules"
            )
        following = []
        for answer, logits in zip(answers, writing.logits, strict=True):
            if answer.is_whole:
                following.append(_PADDING)
                continue
            allowed = answer.allowed()
            ids = ids_of(allowed)
            chosen = 0
            if len(ids) > 1:
                probabilities = _probabilities(logits, ids, temperature)
                chosen = int(rng.choice(len(ids), p=probabilities))
                answer.log_probability += math.log(probabilities[chosen])
            answer.append(allowed[chosen])
            following.append(ids[chosen])
        writing.append(following)
        length += 1
    return answers


def _probabilities(
    logits: npt.NDArray[np.float64], ids: list[int], temperature: float
) -> npt.NDArray[np.float64]:
    scores = logits[ids] / temperature
    exponentials = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum())

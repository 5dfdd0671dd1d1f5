"""Training examples: several answers after the prompt that they share.

The prompt (kernel and sketch) is three quarters of a text and the same for all schedules of a sketch. An
example holds it once, followed by the decisions of several schedules; each answer attends to the prompt and
to itself, at the positions that it would have alone. Checked in tests/tuner/language/test_network.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuner.language.sketches import KernelSpace, Proposal
from tuner.language.text import Text, write_text
from tuner.language.vocabulary import DECISIONS, ids_of

MAX_POSITIONS = 512
"""Longest text; a convolution with its padding takes 360 tokens."""

_PROMPT_ENDS = ids_of([DECISIONS])[0]


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and answers to it.

    Attributes:
        ids: int64, shape (num_tokens,): the prompt, then each answer.
        positions: int64, shape (num_tokens,): of each token in its own text.
        segments: int64, shape (num_tokens,): 0 for the prompt, then 1, 2, … for each answer.
        weights: float32, shape (num_tokens,): weight of the token's loss; 0 for tokens of the prompt.
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Several examples, padded to the longest.

    Attributes:
        ids: int64, shape (num_examples, num_tokens).
        positions: int64, same shape.
        seen: bool, shape (num_examples, num_tokens, num_tokens): attention mask: whether a token (row)
            attends to another.
        predicted_from: int64, shape (num_examples, num_tokens): the position from which each token is
            predicted.
        weights: float32, shape (num_examples, num_tokens).
    """

    ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    seen: npt.NDArray[np.bool_]
    predicted_from: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


def text_of(space: KernelSpace, proposal: Proposal) -> Text:
    """Return a proposal's text.

    Raises:
        ValueError: it is longer than a network reads, or holds what the vocabulary lacks.
    """
    sketch = space.sketches[proposal.sketch]
    text = write_text(
        space.text,
        sketch.text,
        index=proposal.sketch,
        choices=sketch.choices(proposal.decisions),
        decisions=proposal.decisions,
    )
    if len(text.ids) > MAX_POSITIONS:
        raise ValueError(
            f"the text of kernel {space.name} has {len(text.ids)} tokens, a network reads {MAX_POSITIONS}; "
            "leave the kernel out"
        )
    return text


def examples_of(texts: Mapping[Text, float], *, max_answers: int = 8) -> list[Example]:
    """Return examples of the texts, those with the same prompt together.

    Args:
        texts: each with its weight.
        max_answers: upper limit of answers per example.
    """
    by_prompt: dict[tuple[int, ...], list[tuple[Text, float]]] = {}
    for text, weight in texts.items():
        by_prompt.setdefault(text.ids[: _prompt_length(text)], []).append((text, weight))
    return [
        _example(group[start : start + max_answers])
        for group in by_prompt.values()
        for start in range(0, len(group), max_answers)
    ]


def batch_of(examples: Sequence[Example]) -> Batch:
    """Return the examples as one batch; padding attends to itself alone and has weight 0."""
    num_tokens = max(len(each.ids) for each in examples)

    def padded(values: Sequence[npt.NDArray[np.int64]], fill: int) -> npt.NDArray[np.int64]:
        return np.stack([np.pad(each, (0, num_tokens - len(each)), constant_values=fill) for each in values])

    segments = padded([each.segments for each in examples], -1)
    order = np.arange(num_tokens)
    same = segments[:, :, None] == segments[:, None, :]
    seen = (order[None, :, None] >= order[None, None, :]) & (same | (segments[:, None, :] == 0))
    seen &= (segments[:, :, None] >= 0) | (order[:, None] == order[None, :])
    weights = np.stack([np.pad(each.weights, (0, num_tokens - len(each.weights))) for each in examples])
    return Batch(
        ids=padded([each.ids for each in examples], 0),
        positions=padded([each.positions for each in examples], 0),
        seen=seen,
        predicted_from=_predicted_from(segments),
        weights=weights,
    )


def _prompt_length(text: Text) -> int:
    return text.ids.index(_PROMPT_ENDS) + 1


def _example(group: Sequence[tuple[Text, float]]) -> Example:
    first = group[0][0]
    length = _prompt_length(first)
    ids, positions = list(first.ids[:length]), list(range(length))
    segments = [0] * length
    # The sketch is decided in the prompt, once for all answers.
    total = sum(weight for _, weight in group)
    weights = [total * decided for decided in first.decided[:length]]
    for segment, (text, weight) in enumerate(group, start=1):
        answer = text.ids[length:]
        ids += answer
        positions += range(length, length + len(answer))
        segments += [segment] * len(answer)
        weights += [weight * decided for decided in text.decided[length:]]
    return Example(
        ids=np.asarray(ids, dtype=np.int64),
        positions=np.asarray(positions, dtype=np.int64),
        segments=np.asarray(segments, dtype=np.int64),
        weights=np.asarray(weights, dtype=np.float32),
    )


def _predicted_from(segments: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position that predicts each token: for an answer's first token, the end of the prompt."""
    before = np.maximum(np.arange(segments.shape[1]) - 1, 0)
    places = np.tile(before, (len(segments), 1))
    for row, found in enumerate(segments):
        prompt_end = int(np.sum(found == 0)) - 1
        begins = np.flatnonzero((found[1:] != found[:-1]) & (found[1:] > 0)) + 1
        places[row, begins] = prompt_end
    return places

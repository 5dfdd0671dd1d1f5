"""Training examples: a prompt, several schedules written after it, and what could have been written instead.

The options of all answers are tabulated once, and a mask says which of them were legal at which step.
Checked in tests/tuner/language/test_training.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import DecisionSpace, Rows
from cost_model.language.text import MARK, TOKEN_WIDTH, Context, Floats, Grammar, Step, Tokens


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and answers to it; A answers of T steps, U options in all.

    Attributes:
        previous: float32, shape (A, T, TOKEN_WIDTH): what was written before each step.
        previous_roles: int64, shape (T,).
        roles: int64, shape (T,): what each step decides.
        queries: float32, shape (A, T, NUMBER_WIDTH): what remained.
        options: float32, shape (U, OPTION_WIDTH).
        option_roles: int64, shape (U,).
        is_legal: bool, shape (A, T, U).
        targets: int64, shape (A, T): the option that was taken.
        weights: float32, shape (A,): of each answer.
    """

    prompt: Tokens
    previous: Floats
    previous_roles: npt.NDArray[np.int64]
    roles: npt.NDArray[np.int64]
    queries: Floats
    options: Floats
    option_roles: npt.NDArray[np.int64]
    is_legal: npt.NDArray[np.bool_]
    targets: npt.NDArray[np.int64]
    weights: Floats


@dataclass(frozen=True, slots=True)
class TrainingExample:
    """Good candidates of a kernel, and what is known when they are written.

    Attributes:
        rows: candidates to be written, at least one.
        weights: of each, positive; they sum to 1.
    """

    space: DecisionSpace
    context: Context
    rows: Rows
    weights: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if not len(self.rows) or len(self.rows) != len(self.weights):
            raise ValueError(
                f"{len(self.rows)} candidates have {len(self.weights)} weights; give one for each"
            )


def example_of(example: TrainingExample) -> Example:
    """Return an example's arrays."""
    grammar = Grammar(example.space)
    answers = [grammar.values(row) for row in example.rows]
    table: dict[tuple[int, bytes], int] = {}
    features: list[Floats] = []
    legal: list[list[list[int]]] = []
    queries: list[list[Floats]] = []
    targets: list[list[int]] = []
    for values in answers:
        legal.append([])
        queries.append([])
        targets.append([])
        for index, step in enumerate(grammar.steps):
            decided = values[:index]
            places = []
            for option in grammar.options(step, decided):
                key = (_key(step), option.features.tobytes())
                if key not in table:
                    table[key] = len(features)
                    features.append(option.features)
                places.append(table[key])
                if option.value == values[index]:
                    targets[-1].append(table[key])
            legal[-1].append(places)
            queries[-1].append(grammar.query(step, decided))
    role_of_key = {_key(step): step.role for step in grammar.steps}
    option_roles = np.zeros(len(features), dtype=np.int64)
    for (decided_key, _), place in table.items():
        option_roles[place] = role_of_key[decided_key]
    is_legal = np.zeros((len(answers), len(grammar.steps), len(features)), dtype=bool)
    for answer, steps in enumerate(legal):
        for index, places in enumerate(steps):
            is_legal[answer, index, places] = True
    step_roles = np.asarray([step.role for step in grammar.steps], dtype=np.int64)
    previous = np.zeros((len(answers), len(grammar.steps), TOKEN_WIDTH), dtype=np.float32)
    for answer, values in enumerate(answers):
        previous[answer, 1:] = grammar.answer_tokens(values)[:-1]
    return Example(
        prompt=grammar.prompt(example.context),
        previous=previous,
        previous_roles=np.concatenate([[MARK], step_roles[:-1]]).astype(np.int64),
        roles=step_roles,
        queries=np.asarray(queries, dtype=np.float32),
        options=np.stack(features),
        option_roles=option_roles,
        is_legal=is_legal,
        targets=np.asarray(targets, dtype=np.int64),
        weights=example.weights.astype(np.float32),
    )


def _key(step: Step) -> int:
    """Return what steps share whose options are the same: the role of a tile's part, else the column."""
    return step.role if step.part >= 0 else -1 - step.column

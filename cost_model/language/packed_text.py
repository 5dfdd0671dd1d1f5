"""Decisions of packed kernels as tokens: one number after the other, of those that some legal candidate has.

Which numbers are legal follows from all that were written before, since registers and repeated results bound
tiles as a whole; it is read off the space's table of candidates. A number's features are its own and how
many tiles of it there are in the extent that it cuts. Checked in
tests/cost_model/language/test_packed_text.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import TiledKernel
from cost_model.draft.packed_families import PackedFamily
from cost_model.draft.packed_space import PackedSpace, Space
from cost_model.language.text import (
    NUMBER_WIDTH,
    OPTION_WIDTH,
    TOKEN_WIDTH,
    Floats,
    Grammar,
    Option,
    State,
    Step,
    TiledGrammar,
    number_features,
    packed_role,
)

_EXTENTS: Mapping[str, tuple[str, ...]] = {
    "rows": ("rows", "length", "width", "queries"),
    "vectors": ("columns", "filters", "channels"),
    "lanes": ("columns", "filters", "channels"),
    "block_rows": ("rows",),
    "depth_block": ("depth",),
    "unroll": ("depth", "channels"),
    "block_tiles": ("lines",),
    "pixels": ("result", "length"),
    "group": ("channels",),
    "tile": ("height",),
    "groups": ("width",),
    "between_lanes": ("filters",),
    "last_rows": ("result",),
    "last_vectors": ("narrow",),
    "last_lanes": ("narrow",),
    "key_vectors": ("keys",),
    "value_vectors": ("depth",),
}
"""By decision the extent that it cuts: the first of these that the space has; flags cut none."""

_NONE = 2 * NUMBER_WIDTH
"""The feature of an option that is the number 0, which has no size."""


def grammar_of(space: Space) -> Grammar:
    """Return how candidates of a space are written.

    Raises:
        ValueError: it is of a GPU.
    """
    return PackedGrammar(space) if isinstance(space, PackedSpace) else TiledGrammar(space)


class PackedGrammar(Grammar):
    """What is written of candidates of packed kernels."""

    def __init__(self, space: PackedSpace) -> None:
        """Take the space."""
        self.space = space
        extents = dict(space.extents)
        self._extents = {
            kind.name: next((extents[key] for key in _EXTENTS.get(kind.name, ()) if extents.get(key)), 1)
            for kind in space.kinds
        }
        legal = space.rows
        self._members: dict[tuple[int, ...], npt.NDArray[np.int64]] = {(): np.arange(len(legal))}
        self.steps = tuple(
            Step(packed_role(kind.name), column, -1)
            for column, kind in enumerate(space.kinds, start=1)
            if len(np.unique(legal[:, column])) > 1
        )
        self._fixed = legal[0]

    @property
    def kernel(self) -> TiledKernel:
        """The kernel's loops and tensors."""
        return self.space.kernel

    def options(self, step: Step, decided: Sequence[int]) -> tuple[Option, ...]:
        """Return the numbers that some legal candidate has which begins so."""
        return tuple(Option(value, self._option(step, value)) for value in self.state(step, decided))

    def state(self, step: Step, decided: Sequence[int]) -> State:
        """Return these numbers."""
        found = np.unique(self.space.rows[self._beginning(decided), step.column])
        values = self.space.kinds[step.column - 1].values
        return tuple(values[place] for place in found)

    def query(self, step: Step, decided: Sequence[int]) -> Floats:
        """Return the features of the extent that is cut."""
        return number_features(self._extents[self.space.kinds[step.column - 1].name])

    def values(self, row: npt.NDArray[np.int64]) -> tuple[int, ...]:
        """Return the number of each decision."""
        return tuple(self.space.kinds[step.column - 1].values[row[step.column]] for step in self.steps)

    def row(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the candidate that was written."""
        row: npt.NDArray[np.int64] = self._fixed.copy()
        for step, value in zip(self.steps, values, strict=True):
            row[step.column] = self.space.kinds[step.column - 1].values.index(value)
        return row

    def token(self, step: Step, value: int) -> Floats:
        """Return the features of a written number as a token, shape (TOKEN_WIDTH,)."""
        features = np.zeros(TOKEN_WIDTH, dtype=np.float32)
        option = self._option(step, value)
        features[:NUMBER_WIDTH] = option[:NUMBER_WIDTH]
        features[NUMBER_WIDTH] = option[_NONE]
        return features

    def kernel_features(self) -> Sequence[float]:
        """Return which family it is of."""
        return [0.0, *(float(self.space.family == family) for family in PackedFamily)]

    def _option(self, step: Step, value: int) -> Floats:
        features = np.zeros(OPTION_WIDTH, dtype=np.float32)
        if value:
            extent = self._extents[self.space.kinds[step.column - 1].name]
            features[:NUMBER_WIDTH] = number_features(value)
            features[NUMBER_WIDTH : 2 * NUMBER_WIDTH] = number_features(-(-extent // value))
        else:
            features[_NONE] = 1
        return features

    def _beginning(self, decided: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the places of legal candidates that begin with these numbers."""
        written = tuple(decided)
        if written not in self._members:
            before = self._beginning(written[:-1])
            step = self.steps[len(written) - 1]
            place = self.space.kinds[step.column - 1].values.index(written[-1])
            self._members[written] = before[self.space.rows[before, step.column] == place]
        return self._members[written]

"""Kernels and schedules as sequences of tokens, each a vector of numbers instead of a word of a list.

The prompt holds the kernel and its loops, the best decisions of the nearest kernels as the nearest legal
ones, and the kernel's own best trials so far. What is written is a sketch and then one decision after the
other; a tile from its innermost factor out to the second, the outermost being what remains. A token says
which part of which loop it is about (loops are counted from the innermost, as vectors are), and its number by
size, residues and prime factors, so that extents that no training text held can be read and written. Nothing
here knows TVM or a network. Checked in tests/cost_model/language/test_text.py.

Source: Zhai et al., "Enabling Tensor Language Model to Assist in Generating High-Performance Tensor Programs
for Deep Learning", OSDI 2024, section 4. Differences: no text of instructions, numbers as features in place
of words, similar kernels and earlier trials in the prompt, and only legal continuations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cost_model.draft.decision_space import (
    GPU_LEVELS,
    DecisionSpace,
    LocationDecision,
    OptionDecision,
    Rows,
    ThreadsDecision,
    TileDecision,
    TiledKernel,
    UnrollDecision,
)
from cost_model.draft.gpu_decision_features import MAX_THREADS, MAX_VIRTUAL, WARP

Floats = npt.NDArray[np.float32]

TEXT_VERSION = 3
"""Of tokens and their features; weights are of one version."""

_SPATIAL_SLOTS, _REDUCTION_SLOTS = 4, 3
_WRITTEN_PARTS = 3

MARK, KERNEL, SKETCH, UNROLL, LOCATION = range(5)
_FIRST_SPATIAL = 5
_FIRST_REDUCTION = _FIRST_SPATIAL + _SPATIAL_SLOTS * _WRITTEN_PARTS
_FIRST_LOOP = _FIRST_REDUCTION + _REDUCTION_SLOTS

_FIRST_GPU_SPATIAL = _FIRST_LOOP + _SPATIAL_SLOTS + _REDUCTION_SLOTS
_FIRST_GPU_REDUCTION = _FIRST_GPU_SPATIAL + _SPATIAL_SLOTS
_FIRST_GPU_OPTION = _FIRST_GPU_REDUCTION + _REDUCTION_SLOTS
_GPU_OPTIONS = 4
"""Widths and numbers of threads that have roles of their own; further ones share the last."""

_VIRTUAL, _THREADS = 1, 2
"""The parts of a GPU's spatial tiles whose products are a block's virtual and other threads."""

_SPATIAL_ROLES = (*range(_FIRST_SPATIAL, _FIRST_REDUCTION), *range(_FIRST_GPU_SPATIAL, _FIRST_GPU_REDUCTION))

_UNUSED_ROLES = 9
"""Roles of decisions that earlier versions wrote; their weights stay, so that those versions' models load."""

NUM_ROLES = _FIRST_GPU_OPTION + _GPU_OPTIONS + _UNUSED_ROLES
"""What a token is about: a mark before an example, the kernel, a decision, a part of a tile, or a loop."""

MAX_NEIGHBOURS, MAX_OWN = 4, 2
GIVEN, ANSWER = 0, 1
_FIRST_NEIGHBOUR = 2
_FIRST_OWN = _FIRST_NEIGHBOUR + MAX_NEIGHBOURS
NUM_SEGMENTS = _FIRST_OWN + MAX_OWN

_BUCKETS = 12
NUMBER_WIDTH = _BUCKETS + 13
_CATEGORIES = 17
"""Levels of sketches, options of unrolling, kinds of locations, and how far in a location is."""
_KERNEL_WIDTH = 12
TOKEN_WIDTH = NUMBER_WIDTH + _CATEGORIES + _KERNEL_WIDTH
OPTION_WIDTH = 2 * NUMBER_WIDTH + _CATEGORIES
"""Features of what may be written: its number, what remains after it, and its category."""

_MAX_LEVEL, _MAX_UNROLL, _MAX_DEPTH = 4, 3, 4


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to decide: a column of a candidate, or a part of it.

    Attributes:
        role: what it is about.
        part: of a tile; −1 for what is no tile.
    """

    role: int
    column: int
    part: int


@dataclass(frozen=True, slots=True)
class Option:
    """A value that may be written.

    Attributes:
        value: factor of a tile, or row of the decision's table.
        features: float32, shape (OPTION_WIDTH,).
    """

    value: int
    features: Floats


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens in order.

    Attributes:
        features: float32, shape (num_tokens, TOKEN_WIDTH).
        roles: int64, shape (num_tokens,).
        segments: int64, shape (num_tokens,).
    """

    features: Floats
    roles: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.roles)


@dataclass(frozen=True, slots=True)
class Context:
    """What is known when a schedule is written, beside the kernel.

    Attributes:
        neighbours: candidates after the best trials of similar kernels, the most promising first.
        distances: of each, in octaves.
        own: the kernel's best trials so far, the fastest first.
    """

    neighbours: Rows
    distances: tuple[float, ...]
    own: Rows


class Grammar:
    """What is written of candidates of MetaSchedule's sketches, in which order, and what may be written next.

    Attributes:
        steps: what is decided one after the other; loops of extent 1 have nothing to decide.
    """

    def __init__(self, space: DecisionSpace) -> None:
        self.space = space
        self._slots = _slots_of(space.kernel)
        self.steps = tuple(self._steps())

    def options(self, step: Step, decided: Sequence[int]) -> tuple[Option, ...]:
        """Return the factors, or the sketches, unrollings or locations that may be written.

        Args:
            decided: the values of the steps before it.
        """
        if step.part < 0:
            return _category_options(self.space, step.column)
        kind = self.space.kinds[step.column - 1]
        assert isinstance(kind, TileDecision)
        remaining = self.remaining(step, decided)
        limit = kind.max_innermost if step.part == kind.parts - 1 else remaining
        least, most = self._bounds(step, kind, decided)
        return _factor_options(remaining, min(limit, most), least)

    def _bounds(self, step: Step, kind: TileDecision, decided: Sequence[int]) -> tuple[int, int]:
        """Return the factors between which a GPU's block can have as many threads as it may and must."""
        extent = self.space.kernel.loops[kind.loop].extent
        if kind.parts != GPU_LEVELS.count("S"):
            return 1, extent
        written = {
            (each.column, each.part): value
            for each, value in zip(self.steps, decided, strict=False)
            if each.role in _SPATIAL_ROLES
        }
        so_far = math.prod(value for (_, part), value in written.items() if part == step.part)
        if step.part == _VIRTUAL:
            return 1, max(1, MAX_VIRTUAL // so_far)
        columns = dict.fromkeys(
            each.column for each in self.steps if each.role in _SPATIAL_ROLES and each.column != step.column
        )
        # Of other loops the threads that are written, or else as many as are left for them.
        others = math.prod(
            written.get((column, _THREADS)) or self.remaining(Step(0, column, _THREADS), decided)
            for column in columns
        )
        own = self.remaining(step, decided)
        if own * others < WARP:
            return 1, extent  # a small kernel: TVM refuses all of its tiles
        if step.part > _THREADS:
            return 1, own * others // WARP
        return -(-WARP // others), max(1, MAX_THREADS // so_far)

    def remaining(self, step: Step, decided: Sequence[int]) -> int:
        """Return the extent that is not divided yet; 1 for what is no tile."""
        if step.part < 0:
            return 1
        kind = self.space.kinds[step.column - 1]
        assert isinstance(kind, TileDecision)
        written = math.prod(
            value
            for each, value in zip(self.steps, decided, strict=False)
            if each.column == step.column and each.part > step.part
        )
        return self.space.kernel.loops[kind.loop].extent // written

    def query(self, step: Step, decided: Sequence[int]) -> Floats:
        """Return the features of what is asked, the extent that remains, shape (NUMBER_WIDTH,)."""
        return number_features(self.remaining(step, decided))

    def values(self, row: npt.NDArray[np.int64]) -> tuple[int, ...]:
        """Return what is written of a candidate, one value a step."""
        return tuple(
            int(row[step.column])
            if step.part < 0
            else int(self.space.tables[step.column - 1][row[step.column]][step.part])
            for step in self.steps
        )

    def row(self, values: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the candidate that was written."""
        row = np.zeros(len(self.space.sizes), dtype=np.int64)
        factors: dict[int, list[int]] = {}
        for position, kind in enumerate(self.space.kinds):
            if isinstance(kind, TileDecision):
                factors[position + 1] = [1] * kind.parts
        for step, value in zip(self.steps, values, strict=True):
            if step.part < 0:
                row[step.column] = value
            else:
                factors[step.column][step.part] = value
        for column, parts in factors.items():
            kind = self.space.kinds[column - 1]
            assert isinstance(kind, TileDecision)
            parts[0] = self.space.kernel.loops[kind.loop].extent // math.prod(parts[1:])
            found = self.space.find_tile(column - 1, tuple(parts))
            assert found is not None, "only legal factors are offered"
            row[column] = found
        return row

    def token(self, step: Step, value: int) -> Floats:
        """Return the features of a written value as a token, shape (TOKEN_WIDTH,)."""
        features = np.zeros(TOKEN_WIDTH, dtype=np.float32)
        if step.part < 0:
            option = _category_options(self.space, step.column)[value].features
            features[:NUMBER_WIDTH] = option[:NUMBER_WIDTH]
            features[NUMBER_WIDTH : NUMBER_WIDTH + _CATEGORIES] = option[2 * NUMBER_WIDTH :]
        else:
            features[:NUMBER_WIDTH] = number_features(value)
        return features

    def prompt(self, context: Context) -> Tokens:
        """Return the tokens of the kernel, then of its neighbours and of its own trials."""
        parts = [self._kernel_tokens()]
        for rank, (row, away) in enumerate(zip(context.neighbours, context.distances, strict=True)):
            parts.append(self._example(row, _FIRST_NEIGHBOUR + min(rank, MAX_NEIGHBOURS - 1), away))
        for rank, row in enumerate(context.own[:MAX_OWN]):
            parts.append(self._example(row, _FIRST_OWN + rank, 0.0))
        return Tokens(
            np.concatenate([each.features for each in parts]),
            np.concatenate([each.roles for each in parts]),
            np.concatenate([each.segments for each in parts]),
        )

    def answer_tokens(self, values: Sequence[int]) -> Floats:
        """Return the features of written values, shape (len(values), TOKEN_WIDTH)."""
        found = [self.token(step, value) for step, value in zip(self.steps, values, strict=False)]
        return np.stack(found) if found else np.zeros((0, TOKEN_WIDTH), dtype=np.float32)

    def _example(self, row: npt.NDArray[np.int64], segment: int, away: float) -> Tokens:
        mark = np.zeros(TOKEN_WIDTH, dtype=np.float32)
        mark[-1] = away / 4
        features = np.concatenate([mark[None], self.answer_tokens(self.values(row))])
        roles = np.asarray([MARK, *(step.role for step in self.steps)])
        return Tokens(features, roles, np.full(len(roles), segment))

    def _kernel_tokens(self) -> Tokens:
        kernel = self.space.kernel
        features, roles = [np.zeros(TOKEN_WIDTH, dtype=np.float32)], [KERNEL]
        reads = [each for each in kernel.accesses if not each.is_written]
        result = kernel.accesses[-1]
        numbers = (
            math.log2(kernel.num_operations) / 32,
            len(kernel.loops) / 8,
            kernel.num_blocks / 4,
            len(kernel.accesses) / 4,
            float(any(isinstance(kind, LocationDecision) for kind in self.space.kinds)),
        )
        features[0][NUMBER_WIDTH + _CATEGORIES :][: len(numbers)] = numbers
        slots = _slots_of(kernel)
        for index, loop in enumerate(kernel.loops):
            found = np.zeros(TOKEN_WIDTH, dtype=np.float32)
            found[:NUMBER_WIDTH] = number_features(loop.extent)
            accesses = [*reads[:2], result]
            for place, access in enumerate(accesses):
                steps = [each[index] for each in access.steps]
                start = NUMBER_WIDTH + _CATEGORIES + 3 * place
                found[start] = float(any(steps))
                found[start + 1] = float(bool(steps) and abs(steps[-1]) == 1 and not any(steps[:-1]))
                found[start + 2] = max((abs(each) for each in steps), default=0) / 4
            features.append(found)
            is_reduction = loop.is_reduction
            slot = slots[index]
            roles.append(_FIRST_LOOP + (_SPATIAL_SLOTS if is_reduction else 0) + slot)
        return Tokens(np.stack(features), np.asarray(roles), np.full(len(roles), GIVEN))

    def _steps(self) -> Iterator[Step]:
        if len(self.space.sketch_levels) > 1:
            yield Step(SKETCH, 0, -1)
        num_options = 0
        for position, kind in enumerate(self.space.kinds):
            match kind:
                case TileDecision():
                    loop = self.space.kernel.loops[kind.loop]
                    slot = self._slots[kind.loop]
                    for part in range(kind.parts - 1, 0, -1) if loop.extent > 1 else ():
                        yield Step(_part_role(loop.is_reduction, slot, part), position + 1, part)
                case UnrollDecision():
                    yield Step(UNROLL, position + 1, -1)
                case OptionDecision():
                    place = min(num_options, _GPU_OPTIONS // 2 - 1)
                    first = _FIRST_GPU_OPTION + _GPU_OPTIONS // 2 * isinstance(kind, ThreadsDecision)
                    yield Step(first + place, position + 1, -1)
                    num_options += 1
                case LocationDecision():
                    yield Step(LOCATION, position + 1, -1)


def _part_role(is_reduction: bool, slot: int, part: int) -> int:
    """Return what a token is about that says a part of a tile; a GPU's tiles have one more of each."""
    if is_reduction:
        return (_FIRST_REDUCTION if part == 1 else _FIRST_GPU_REDUCTION) + slot
    if part > _WRITTEN_PARTS:
        return _FIRST_GPU_SPATIAL + slot
    return _FIRST_SPATIAL + _WRITTEN_PARTS * slot + part - 1


def _slots_of(kernel: TiledKernel) -> tuple[int, ...]:
    """Return each loop's number among those of its kind from the innermost; the outermost share one."""
    counts = [0, 0]
    slots = []
    for loop in reversed(kernel.loops):
        most = (_REDUCTION_SLOTS if loop.is_reduction else _SPATIAL_SLOTS) - 1
        slots.append(min(counts[loop.is_reduction], most))
        counts[loop.is_reduction] += 1
    return tuple(reversed(slots))


@lru_cache(maxsize=65536)
def number_features(number: int) -> Floats:
    """Return a positive number as its size, what is left of it by powers of two, and its prime factors."""
    features = np.zeros(NUMBER_WIDTH, dtype=np.float32)
    size = math.log2(number)
    features[0] = size / 8
    features[1] = float(number == 1)
    features[2:6] = [float(number % each == 0) for each in (2, 4, 8, 16)]
    features[6] = number % 16 / 16
    features[7] = min(number, 16) / 16
    rest = number
    for place, prime in enumerate((2, 3, 5, 7)):
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        features[8 + place] = power / 4
    features[12] = math.log2(rest) / 8
    centres = np.arange(_BUCKETS)
    features[13:] = np.maximum(0, 1 - np.abs(size - centres))
    return features


@lru_cache(maxsize=65536)
def _factor_options(remaining: int, limit: int, least: int) -> tuple[Option, ...]:
    found = []
    for factor in _divisors(remaining):
        if factor > limit:
            break
        if factor < least:
            continue
        features = np.zeros(OPTION_WIDTH, dtype=np.float32)
        features[:NUMBER_WIDTH] = number_features(factor)
        features[NUMBER_WIDTH : 2 * NUMBER_WIDTH] = number_features(remaining // factor)
        found.append(Option(factor, features))
    return tuple(found)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def _category_options(space: DecisionSpace, column: int) -> tuple[Option, ...]:
    """Return every sketch, unrolling or location."""
    found = []
    for value in range(space.sizes[column]):
        features = np.zeros(OPTION_WIDTH, dtype=np.float32)
        category, fraction = _category(space, column, value)
        if column and space.is_for_gpu and isinstance(kind := space.kinds[column - 1], OptionDecision):
            features[:NUMBER_WIDTH] = number_features(max(1, kind.steps[value]))
        features[2 * NUMBER_WIDTH + category] = 1
        features[-1] = fraction
        found.append(Option(value, features))
    return tuple(found)


def _category(space: DecisionSpace, column: int, value: int) -> tuple[int, float]:
    """Return a value's number among all categories, and where in a range of places it is."""
    if column == 0:
        return min(space.sketch_levels[value], _MAX_LEVEL), 0.0
    kind = space.kinds[column - 1]
    if isinstance(kind, OptionDecision):
        return _MAX_LEVEL + 1 + min(value, _MAX_UNROLL), 0.0
    assert isinstance(kind, LocationDecision)
    first = _MAX_LEVEL + _MAX_UNROLL + 2
    location = value - 2
    if location < 0:
        return first + value, 0.0
    reductions = sum(loop.is_reduction for loop in space.kernel.loops)
    spatial = len(space.kernel.loops) - reductions
    ends = np.cumsum([0, spatial, spatial, reductions, spatial, reductions, spatial])
    depth = int(np.searchsorted(ends, location, side="right")) - 1
    return first + 2 + min(depth, _MAX_DEPTH), location / max(1, kind.num_loops)

"""Devices and order of the stages of a placement, and the cuts of a model that fit them.

    m shape    devices *  0  1  *      a chain, whose first and last stage are divided over all devices
    k shape    0 ─ 1 ─┐                two branches, on devices of their own, that meet in a divided stage
               2 ─ 3 ─┴ *

Stages stand in topological order, and hold the layers of a model in program order. Cuts are chosen as
`choose_cuts` does along each run of stages that follow one another on a device each; every way to give the
runs their layers is tried that the data allow: a stage may read only what one before it in the placement
makes. A divided stage is taken to cost a P-th of its layers on P devices; what it does cost is measured when
the cuts are known. Checked against every possible cut in tests/tuner/stages/test_placed_stages.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tuner.errors import TunerError
from tuner.frontend.model import Model
from tuner.stages.balance import choose_cuts
from tuner.stages.layers import Layer
from tuner.stages.liveness import find_flow
from tuner.stages.program import read_program

MAX_WAYS = 50_000
"""Ways to give runs of stages their layers, up to which all are tried."""


@dataclass(frozen=True)
class PlacedStages:
    """Stages of a placement, before they hold anything.

    Attributes:
        devices: of each stage, ascending; one that has several is divided over them.
        before: of each stage, the stages that it receives from, ascending; all stand before it.
        needs_words: whether each divided stage must be one layer that holds words: one with an axis of as
            many as the model looks up.
    """

    devices: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    needs_words: bool = False

    def __post_init__(self) -> None:
        if len(self.devices) != len(self.before) or not self.devices:
            raise ValueError(
                f"{len(self.devices)} stages have {len(self.before)} lists of stages before them"
            )
        for number, earlier in enumerate(self.before):
            if any(not 0 <= each < number for each in earlier):
                raise ValueError(f"stage {number} receives from {earlier}, which do not all stand before it")

    @classmethod
    def chain(cls, devices: Sequence[Sequence[int]]) -> PlacedStages:
        """Return stages that follow one another."""
        before = tuple((number - 1,) if number else () for number in range(len(devices)))
        return cls(tuple(map(tuple, devices)), before)

    @property
    def is_chain(self) -> bool:
        """Whether each stage receives from the one before it alone."""
        return self.before == tuple((number - 1,) if number else () for number in range(len(self.before)))

    @property
    def branches(self) -> tuple[tuple[int, ...], ...] | None:
        """What `build_stages` takes: `before`, or None for a chain."""
        return None if self.is_chain else self.before

    @property
    def divided(self) -> tuple[int, ...]:
        """The stages that are divided over several devices."""
        return tuple(number for number, own in enumerate(self.devices) if len(own) > 1)

    @property
    def num_devices(self) -> int:
        """Devices of all stages, numbered from 0."""
        return 1 + max(device for own in self.devices for device in own)

    @cached_property
    def runs(self) -> tuple[range, ...]:
        """Stages that follow one another and nothing else, on one device each; a divided one by itself."""
        follow = [0] * len(self.before)
        for earlier in self.before:
            for each in earlier:
                follow[each] += 1
        runs: list[range] = []
        for number, earlier in enumerate(self.before):
            goes_on = (
                earlier == (number - 1,)
                and follow[number - 1] == 1
                and not {number, number - 1} & set(self.divided)
            )
            runs.append(range(runs.pop().start, number + 1) if goes_on else range(number, number + 1))
        return tuple(runs)

    def is_reachable(self, source: int, target: int) -> bool:
        """Whether what a stage makes can be had by another, directly or relayed."""
        waiting, seen = [target], {target}
        while waiting:
            for earlier in self.before[waiting.pop()]:
                if earlier not in seen:
                    seen.add(earlier)
                    waiting.append(earlier)
        return source in seen


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """What the layers of a model cost and read.

    Attributes:
        names: of each layer, for messages.
        costs_us: of each layer.
        memory_bytes: of each layer.
        reads: pairs of layers, of which the second reads what the first makes.
        memory_limit_bytes: of a stage; None for no limit.
    """

    names: tuple[str, ...]
    costs_us: tuple[float, ...]
    memory_bytes: tuple[int, ...]
    reads: frozenset[tuple[int, int]]
    memory_limit_bytes: int | None = None


def layer_reads(model: Model, layers: Sequence[Layer]) -> frozenset[tuple[int, int]]:
    """Return the pairs of layers of which the second reads what the first makes."""
    program = read_program(model)
    parts = find_flow(program, [layer.start for layer in layers[1:]]).parts
    maker = {value: number for number, part in enumerate(parts) for value in part.made}
    return frozenset(
        (maker[value], number)
        for number, part in enumerate(parts)
        for value in part.received_and_read
        if value in maker
    )


def can_place(placed: PlacedStages, layers: LayerCosts, fixed: Mapping[int, int]) -> bool:
    """Whether some cut has the data go as the stages do, these divided stages holding these layers."""
    return next(_ways(placed, layers, fixed), None) is not None


def choose_placed_cuts(
    placed: PlacedStages, layers: LayerCosts, *, fixed: Mapping[int, int] | None = None
) -> tuple[int, ...]:
    """Find the layers at which each stage but the first begins, so that the slowest is as fast as can be.

    Then the most even ones are taken, as `choose_cuts` has it; ties by the earliest cuts.

    Args:
        layers: what they are to hold.
        fixed: divided stages that hold one layer, by number, and which one.

    Raises:
        TunerError: no cut has the data go as the stages do, or none fits the limit.
    """
    fixed = fixed or {}
    stages = len(placed.devices)
    if len(layers.names) < stages:
        raise TunerError(
            f"the model has {len(layers.names)} layers that can be cut apart, fewer than the {stages} stages "
            "of the placement; use one of fewer stages"
        )
    best: tuple[float, float, tuple[int, ...]] | None = None
    refused: TunerError | None = None
    known: dict[tuple[int, int, int], tuple[float, float, tuple[int, ...]] | TunerError] = {}
    for count, borders in enumerate(_ways(placed, layers, fixed)):
        if count == MAX_WAYS:
            raise TunerError(
                f"the placement has more than {MAX_WAYS} ways to hold these layers; use one of fewer "
                "branches and divided blocks"
            )
        slowest, squares, cuts = 0.0, 0.0, []
        for number, run in enumerate(placed.runs):
            key = (number, borders[number], borders[number + 1])
            if key not in known:
                known[key] = _cut_run(placed, layers, run, borders[number], borders[number + 1])
            found = known[key]
            if isinstance(found, TunerError):
                refused = refused or found
                break
            slowest, squares = max(slowest, found[0]), squares + found[1]
            cuts += [*([borders[number]] if number else []), *found[2]]
        else:
            best = min(best or (math.inf, math.inf, ()), (slowest, squares, tuple(cuts)))
    if best is not None:
        return best[2]
    if refused is not None:
        raise refused
    raise TunerError(_misfit(placed, fixed))


def _misfit(placed: PlacedStages, fixed: Mapping[int, int]) -> str:
    if placed.is_chain:
        between = f", with layers {', '.join(map(str, fixed.values()))} divided," if fixed else ""
        return (
            f"no cut of the model{between} gives each of the {len(placed.devices)} stages a layer; use a "
            "placement of fewer stages"
        )
    return (
        "the model has no such branches: wherever it is cut, a stage reads what no stage before it in the "
        "placement makes; use a chain, such as vshape"
    )


def _ways(placed: PlacedStages, layers: LayerCosts, fixed: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """Yield the layers at which runs of stages begin, and the number of layers: all that the data allow."""
    runs, num_layers = placed.runs, len(layers.names)
    first_of = {run.start: number for number, run in enumerate(runs)}
    fixed_runs = {first_of[stage]: layer for stage, layer in fixed.items()}
    can_read = [
        [placed.is_reachable(source[-1], target[0]) for source in runs[:number]]
        for number, target in enumerate(runs)
    ]
    needed_after = [sum(map(len, runs[number + 1 :])) for number in range(len(runs))]

    def extend(borders: tuple[int, ...], run_of: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        number, first = len(borders) - 1, borders[-1]
        if number in fixed_runs and fixed_runs[number] != first:
            return
        lasts = range(first + len(runs[number]), num_layers - needed_after[number] + 1)
        if number in fixed_runs:
            lasts = range(first + 1, min(first + 2, lasts.stop))
        elif number == len(runs) - 1:
            lasts = range(num_layers, num_layers + 1)
        elif number + 1 in fixed_runs:
            at = fixed_runs[number + 1]
            lasts = range(at, at + 1) if at in lasts else range(0)
        for last in lasts:
            if number == len(runs) - 1 and last != num_layers:
                return
            held = (*run_of, *(number for _ in range(first, last)))
            if any(
                held[source] != number and not can_read[number][held[source]]
                for source, target in layers.reads
                if first <= target < last
            ):
                # What a longer run would read, it reads too.
                return
            if number == len(runs) - 1:
                yield (*borders, last)
            else:
                yield from extend((*borders, last), held)

    return extend((0,), ())


def _cut_run(
    placed: PlacedStages, layers: LayerCosts, run: range, first: int, last: int
) -> tuple[float, float, tuple[int, ...]] | TunerError:
    """Cut the layers of one run into its stages: the slowest, the sum of squares, and the cuts."""
    devices = len(placed.devices[run.start])
    costs = [cost / devices for cost in layers.costs_us[first:last]]
    try:
        cuts = choose_cuts(
            costs,
            [-(-num_bytes // devices) for num_bytes in layers.memory_bytes[first:last]],
            len(run),
            memory_limit_bytes=layers.memory_limit_bytes,
            names=layers.names[first:last],
        )
    except TunerError as error:
        return error
    borders = (0, *cuts, len(costs))
    stages = [sum(costs[start:stop]) for start, stop in itertools.pairwise(borders)]
    return max(stages), sum(cost**2 for cost in stages), tuple(first + cut for cut in cuts)

"""Whether the blocks of a saved plan are what its stages cost: nothing that a file claims is believed.

Spans and lags are whole steps, rounded up; one more or less is another machine's rounding. Checked in
tests/tessel/test_loading.py by plans with single figures changed.
"""

from __future__ import annotations

import math

from tessel.errors import ScheduleError
from tessel.placement import BlockKind, Edge, Placement
from tessel.planning.costs.stage_costs import FloatArray
from tessel.planning.costs.stage_figures import StageFigures
from tessel.planning.costs.training_step import place_blocks


def check_blocks(
    placement: Placement, figures: StageFigures, step_us: float, *, counts_halves: bool = True
) -> None:
    """Refuse blocks that are not those of the stages.

    Args:
        placement: as it was saved.
        step_us: microseconds of a step.
        counts_halves: whether memory between the halves of a backward is compared; earlier versions counted
            it otherwise.

    Raises:
        ScheduleError: a block or an edge differs; names it, what it has and what its stages say.
    """
    if figures.tower is not None:
        _check_tower(placement, figures, step_us)
    forms: dict[BlockKind, FloatArray | None] = {
        BlockKind.FORWARD: figures.forward_us,
        BlockKind.BACKWARD: figures.backward_us,
        BlockKind.BACKWARD_INPUT: figures.backward_input_us,
        BlockKind.BACKWARD_WEIGHT: figures.backward_weight_us,
    }
    seen = set()
    for block in placement.blocks:
        if figures.tower is not None and block.name.startswith("tower"):
            continue
        stage = stage_of(block.name)
        us = forms.get(block.kind)
        if us is None or not 0 <= stage < len(us):
            raise ScheduleError(f"block {block.name} belongs to none of its {len(figures.groups)} stages")
        seen.add((stage, block.kind))
        if block.devices != figures.groups[stage]:
            raise ScheduleError(
                f"block {block.name} is on devices {block.devices}, and stage {stage} on "
                f"{figures.groups[stage]}"
            )
        expected = float(us[stage]) / step_us
        if abs(block.span - expected) > 1 + 1e-6 * expected:
            raise ScheduleError(
                f"block {block.name} takes {block.span} steps of {step_us:g} us, and stage {stage} was "
                f"measured to take {us[stage]:g} us"
            )
        kept, halved = math.ceil(figures.kept_bytes[stage]), math.ceil(figures.halved_bytes[stage])
        memory = {
            BlockKind.FORWARD: kept,
            BlockKind.BACKWARD: -kept,
            BlockKind.BACKWARD_INPUT: halved - kept,
            BlockKind.BACKWARD_WEIGHT: -halved,
        }[block.kind]
        is_half = block.kind in (BlockKind.BACKWARD_INPUT, BlockKind.BACKWARD_WEIGHT)
        if (counts_halves or not is_half) and abs(block.memory - memory) > 1:
            raise ScheduleError(
                f"block {block.name} adds {block.memory} bytes, and stage {stage} has it add {memory}"
            )
    for stage in range(len(figures.groups)):
        if (stage, BlockKind.FORWARD) not in seen:
            raise ScheduleError(f"stage {stage} has no forward block")
    _check_edges(placement, figures, step_us)


def _check_tower(placement: Placement, figures: StageFigures, step_us: float) -> None:
    """Refuse blocks of a tower in bubbles that are not those of a copy on each device."""
    found, wanted = (_parts_of_tower(each) for each in (placement, place_blocks(figures, step_us)))
    if found.keys() != wanted.keys():
        raise ScheduleError("its tower in bubbles has not the blocks of one copy on each device")
    for part, size in found.items():
        if abs(size - wanted[part]) > 1 + 1e-6 * abs(wanted[part]):
            raise ScheduleError(
                f"{' '.join(map(str, part))} of the tower in bubbles is {size}, and its layers give "
                f"{wanted[part]}"
            )


def _parts_of_tower(placement: Placement) -> dict[tuple[object, ...], int]:
    """Return what there is to compare of a tower's blocks: spans, bytes and lags, by what they are of."""
    own = [block for block in placement.blocks if block.name.startswith("tower")]
    found: dict[tuple[object, ...], int] = {}
    for block in own:
        found["span of", block.name, block.kind, block.devices] = block.span
        found["bytes of", block.name] = block.memory
    for edge in placement.edges:
        if edge.source.startswith("tower") or edge.target.startswith("tower"):
            found["lag from", edge.source, "to", edge.target] = edge.lag
    for choice in placement.choices:
        if choice.name == "tower":
            found["choice", choice.options] = 0
    return found


def stage_of(block: str) -> int:
    """Return the stage that a block's name says, as `b3_input` says 3; -1 where it says none."""
    number = block[1:].partition("_")[0]
    return int(number) if number.isascii() and number.isdecimal() else -1


def _check_edges(placement: Placement, figures: StageFigures, step_us: float) -> None:
    between: dict[tuple[int, int], list[Edge]] = {}
    for edge in placement.edges:
        if edge.source.startswith("tower") or edge.target.startswith("tower"):
            continue
        between.setdefault((stage_of(edge.source), stage_of(edge.target)), []).append(edge)
    for stage, later in enumerate(figures.next_stages):
        for following in later:
            lag = float(figures.hop_us[stage]) / step_us
            there = between.get((stage, following), [])
            for edge in (*there, *between.get((following, stage), [])):
                if abs(edge.lag - lag) > 1 + 1e-6 * lag:
                    raise ScheduleError(
                        f"the hop from {edge.source} to {edge.target} takes {edge.lag} steps of {step_us:g} "
                        f"us, and it was measured to take {figures.hop_us[stage]:g} us"
                    )
            if not any(edge.source == f"f{stage}" for edge in there):
                raise ScheduleError(f"nothing goes from stage {stage} to stage {following}")

"""Plain data of MetaSchedule's traces: a kernel tiled in levels, its sketches and its decisions.

Records keep traces as TVM's JSON. They are read here without replaying them, so that thousands take a second;
only a kernel's tensors are asked of TVM, once. Left out are traces that sample anything but tiles, options
and locations (tensor cores'), whose tensors are not indexed linearly, or that neither tile in levels nor
spread a loop over a GPU's threads. Checked in tests/tuner/backends/metaschedule/test_traces.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import sym, tirx
from tvm.s_tir import Schedule

from cost_model.draft.decision_space import (
    CPU_LEVELS,
    GPU_LEVELS,
    Access,
    Decision,
    DecisionKind,
    LocationDecision,
    Loop,
    OptionDecision,
    ThreadsDecision,
    TileDecision,
    TiledKernel,
    UnrollDecision,
    WidthDecision,
)
from tuner.graph.relax_types import IRModule

TILE, OPTION, LOCATION = "SamplePerfectTile", "SampleCategorical", "SampleComputeLocation"
SAMPLING = (TILE, OPTION, LOCATION)

_STRUCTURE = "meta_schedule.tiling_structure"
_PIPELINE = "software_pipeline_stage"
_MAX_WIDTH = 4
"""Elements that a GPU's thread copies at once, at most; TVM's least number of threads."""

_REDUCTION = 2
"""TVM's number of a reduction among kinds of iterations."""


@dataclass(frozen=True, slots=True)
class TracedSketch:
    """A trace that tiles a block in levels, or spreads it over threads.

    Attributes:
        kinds: of each decision, in the order of instructions.
        sketch_level: see `DecisionSpace.sketch_levels`.
        decisions: those of the trace.
    """

    block: str
    kinds: tuple[DecisionKind, ...]
    sketch_level: int
    decisions: tuple[Decision, ...]


def read_trace(trace: Any) -> TracedSketch | None:
    """Return what a trace in TVM's JSON decides; None if it is not tiled in levels, or is not read here.

    Args:
        trace: instructions and decisions, of plain lists.
    """
    try:
        instructions, decided = trace
        return _Reading(dict(map(tuple, decided))).read(instructions)
    except (IndexError, KeyError, TypeError, ValueError):
        return None  # records may come from a stranger


def tiled_kernel(module: IRModule, block_name: str) -> TiledKernel | None:
    """Return a module's block as the draft model knows it; None where a tensor is not indexed linearly."""
    schedule = Schedule(module)
    block = schedule.get(schedule.get_sblock(block_name))
    num_blocks = len(schedule.get_child_blocks(schedule.get_sblock("root")))
    variables = [each.var for each in block.iter_vars]
    loops = tuple(Loop(int(each.dom.extent), int(each.iter_type) == _REDUCTION) for each in block.iter_vars)
    result = block.writes[0].source
    accesses = [_access(each, variables) for each in block.reads if not each.source.same_as(result)]
    accesses.append(_access(block.writes[0], variables, is_written=True))
    known = tuple(each for each in accesses if each is not None)
    if len(known) < len(accesses) or all(loop.is_reduction for loop in loops):
        return None
    return TiledKernel(loops, known, num_blocks)


def decisions_of(trace: Any) -> tuple[Decision, ...]:
    """Return the decisions of a trace in the order of its instructions, without postprocessors'."""
    found: list[Decision] = []
    for instruction in trace.insts:
        if instruction.kind.name == "EnterPostproc":
            break
        if instruction.kind.name in SAMPLING:
            decision = trace.get_decision(instruction)
            found.append(tuple(map(int, decision)) if instruction.kind.name == TILE else int(decision))
    return tuple(found)


def plain_json(value: Any) -> Any:
    """Return TVM's containers as lists, and its numbers as Python's."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "value") and not hasattr(value, "__iter__"):
        return value.value
    if hasattr(value, "__iter__"):
        return [plain_json(each) for each in value]
    return str(value)


class _Reading:
    """Reads the instructions of one trace in order."""

    def __init__(self, decided: dict[int, Any]) -> None:
        self.decided = decided
        self.block_names: dict[str, str] = {}
        self.block = ""
        self.levels = ""
        self.loop_numbers: dict[str, int] = {}
        self.part_numbers: dict[str, int] = {}
        self.kinds: list[DecisionKind] = []
        self.decisions: list[Decision] = []
        self.sketch_level = 0

    def read(self, instructions: Sequence[Any]) -> TracedSketch | None:
        for number, (kind, inputs, attributes, outputs) in enumerate(instructions):
            if kind == "EnterPostproc":
                break
            if kind.startswith("Sample"):
                found = self._kind(kind, inputs, attributes)
                if found is None:
                    return None
                self.kinds.append(found)
                self.decisions.append(_decision(self.decided[number], found))
            else:
                self._see(kind, inputs, attributes, outputs)
        tiled = {each.loop for each in self.kinds if isinstance(each, TileDecision)}
        if self.levels and tiled != set(self.loop_numbers.values()):
            return None
        if not self.levels and not any(isinstance(each, ThreadsDecision) for each in self.kinds):
            return None
        parts = sum(each.parts for each in self.kinds if isinstance(each, TileDecision))
        kinds = tuple(
            LocationDecision(parts) if isinstance(each, LocationDecision) else each for each in self.kinds
        )
        return TracedSketch(self.block_names[self.block], kinds, self.sketch_level, tuple(self.decisions))

    def _see(
        self, kind: str, inputs: Sequence[Any], attributes: Sequence[Any], outputs: Sequence[str]
    ) -> None:
        if kind == "GetSBlock":
            self.block_names[outputs[0]] = str(attributes[0])
        elif kind == "Annotate" and attributes[0] == _STRUCTURE:
            if inputs[1].strip('"') not in (CPU_LEVELS, GPU_LEVELS) or self.levels:
                raise ValueError("one block is tiled, in known levels")
            self.block, self.levels, self.loop_numbers = inputs[0], inputs[1].strip('"'), {}
        elif kind == "Annotate" and attributes[0] == _PIPELINE:
            self.sketch_level = max(map(int, inputs[1]))
        elif kind == "GetLoops" and not self.loop_numbers and self._is_ours(inputs[0]):
            self.block, self.loop_numbers = inputs[0], {loop: at for at, loop in enumerate(outputs)}
        elif kind == "Split" and inputs[0] in self.loop_numbers:
            self.part_numbers.update((loop, part) for part, loop in enumerate(outputs))
        elif kind == "ReverseComputeAt" and inputs[1] in self.part_numbers:
            self.sketch_level = self.part_numbers[inputs[1]] + 1

    def _is_ours(self, block: str) -> bool:
        """Say whether a block is the tiled one; before there is one, whether it is the kernel's own."""
        return block == self.block if self.block else block in self.block_names

    def _kind(self, kind: str, inputs: Sequence[Any], attributes: Sequence[Any]) -> DecisionKind | None:
        if kind == TILE and inputs[0] in self.loop_numbers:
            parts, max_innermost = map(int, attributes)
            if parts not in (self.levels.count("S"), self.levels.count("R")):
                return None
            return TileDecision(self.loop_numbers[inputs[0]], parts, max_innermost)
        if kind == OPTION:
            return _option(tuple(map(int, attributes[0])))
        return LocationDecision(0) if kind == LOCATION else None


def _option(steps: tuple[int, ...]) -> OptionDecision:
    """Return what is chosen among numbers: only unrolling may be 0, and few elements are a width."""
    if 0 in steps:
        return UnrollDecision(steps)
    return (WidthDecision if max(steps) <= _MAX_WIDTH else ThreadsDecision)(steps)


def _decision(value: Any, kind: DecisionKind) -> Decision:
    return tuple(map(int, value)) if isinstance(kind, TileDecision) else int(value)


def _access(region: Any, variables: Sequence[Any], *, is_written: bool = False) -> Access | None:
    """Return the steps of a tensor's indices; None if they are not constant."""
    analyzer = sym.Analyzer()
    steps: list[tuple[int, ...]] = []
    for dimension in region.region:
        row = []
        for variable in variables:
            step = analyzer.simplify(_advanced(dimension.min, variable) - dimension.min)
            if not hasattr(step, "value"):
                return None
            row.append(int(step.value))
        steps.append(tuple(row))
    dtype = np.dtype(str(region.source.dtype))
    return Access(dtype.itemsize, tuple(steps), is_written)


def _advanced(index: Any, variable: Any) -> Any:
    """Return the index with the variable one larger."""
    return tvm_ffi.structural_map(
        index, (tirx.Var, lambda found: found + 1 if found.same_as(variable) else found)
    )

"""A kernel's sketches: the instructions that MetaSchedule would schedule it by, and what is left to decide.

TVM's rules give a kernel a few sketches (without fusing what follows a product, fusing it at one loop or at
another). A proposal names one, and a decision for each of its sampling instructions. Where a loop's extent
follows from the kernel alone, what may be decided is known beforehand; where it follows from earlier
decisions, as for every place to compute a block at, the sketch is replayed up to there and TVM is asked.
TVM silently repairs decisions that are not legal, so that a schedule is always compared with what was asked
for. Checked in tests/tuner/language/test_sketches.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tvm.s_tir import Schedule, meta_schedule
from tvm.s_tir.schedule import Trace

from tuner.backends.metaschedule.intrinsics import (
    import_x86_intrinsics,  # TVM's context needs them before it is made
)
from tuner.backends.metaschedule.traces import LOCATION as _LOCATION
from tuner.backends.metaschedule.traces import OPTION, decisions_of, plain_json
from tuner.backends.metaschedule.traces import SAMPLING as _SAMPLING
from tuner.backends.metaschedule.traces import TILE as _TILE
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.language.choices import Choice, Decision, LocationChoice, OptionChoice, TileChoice
from tuner.language.text import Argument, Block, KernelText, SketchText

_NO_LOCATION = 1 << 20
"""Larger than the index of any loop: TVM turns it into the largest index that is legal."""

_INLINE = -2
"""The last location that TVM knows; every block may have it asked for."""

_ITERATION_KINDS = {0: "spatial", 2: "reduction"}
"""TVM's numbers of an iteration's kind."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One schedule of a kernel: the sketch it follows, and its decisions in the order of instructions."""

    sketch: int
    decisions: tuple[Decision, ...]


class Sketch:
    """The instructions of some of a kernel's schedules."""

    def __init__(self, module: IRModule, trace: Any) -> None:
        """Take the instructions of any schedule that follows the sketch."""
        self.module = module
        self.trace = trace
        self.sampling = [each for each in trace.insts if each.kind.name.startswith("Sample")]
        unknown = sorted({str(each.kind.name) for each in self.sampling} - set(_SAMPLING))
        if unknown:
            raise TunerError(
                f"schedules of this kernel sample by {', '.join(unknown)}, which the language cannot write; "
                "tune it with MetaSchedule itself"
            )

    @property
    def num_decisions(self) -> int:
        """How many decisions a schedule takes."""
        return len(self.sampling)

    @cached_property
    def key(self) -> str:
        """The relevant instructions as text, without decisions."""
        return _key(self.trace)

    @cached_property
    def text(self) -> SketchText:
        """The instructions as the language writes them."""
        return SketchText.of_instructions(plain_json(self.trace.as_json(remove_postproc=True)[0]))

    def choice(self, decisions: Sequence[Decision]) -> Choice | None:
        """Return what may be decided next; None where all is decided.

        Args:
            decisions: the first ones, each legal.
        """
        position = len(decisions)
        if position == self.num_decisions:
            return None
        known = self._known_choices[position]
        return known if known is not None else self._replayed_choice(decisions)

    def choices(self, decisions: Sequence[Decision]) -> list[Choice]:
        """Return what each of all decisions was chosen among; of locations, only the one that was."""
        found: list[Choice] = []

        def see(instruction: Any, inputs: Sequence[Any], attributes: Sequence[Any], decided: Any) -> Any:
            if instruction.kind.name not in _SAMPLING:
                return decided
            decision = decisions[len(found)]
            if instruction.kind.name == _LOCATION:
                assert isinstance(decision, int)
                found.append(LocationChoice((decision,)))
            else:
                found.append(_simple_choice(schedule, instruction, inputs, attributes))
            return decided

        schedule = Schedule(self.module)
        self.with_decisions(decisions).apply_to_schedule(schedule, True, see)
        return found

    def with_decisions(self, decisions: Sequence[Decision]) -> Any:
        """Return the trace that takes these decisions; the first ones will do for its beginning."""
        trace = self.trace
        for instruction, decision in zip(self.sampling, decisions, strict=False):
            value = list(decision) if isinstance(decision, tuple) else decision
            trace = trace.with_decision(instruction, value, remove_postproc=True)
        return trace

    def sample(self, seed: int) -> tuple[Decision, ...]:
        """Return decisions as TVM draws them at random; the seed is at least 1."""
        schedule = Schedule(self.module, seed=seed)
        Trace(self.trace.insts, {}).apply_to_schedule(schedule, True)
        return decisions_of(schedule.trace)

    def apply(self, decisions: Sequence[Decision]) -> Any | None:
        """Return the schedule with these decisions; None where TVM repaired one of them, or refuses it."""
        schedule = Schedule(self.module)
        try:
            self.with_decisions(decisions).apply_to_schedule(schedule, True)
        except Exception:  # TVM raises whatever its instructions raise
            return None
        return schedule if decisions_of(schedule.trace) == tuple(decisions) else None

    @cached_property
    def _known_choices(self) -> list[Choice | None]:
        """What each decision is chosen among, or None where that depends on the decisions before it."""
        first = decisions_of(self.trace)
        choices = self.choices(first)
        return [
            choice if is_fixed else None
            for choice, is_fixed in zip(choices, _fixed(self.trace.insts), strict=True)
        ]

    def _replayed_choice(self, decisions: Sequence[Decision]) -> Choice:
        """Replay the beginning of the sketch, and ask TVM what may come next."""
        stop = self.trace.insts.index(self.sampling[len(decisions)]) + 1
        found: list[Choice] = []
        seen = 0

        def see(instruction: Any, inputs: Sequence[Any], attributes: Sequence[Any], decision: Any) -> Any:
            nonlocal seen
            seen += instruction.kind.name in _SAMPLING
            if seen <= len(decisions) or found:
                return decision
            if instruction.kind.name == _LOCATION:
                found.append(LocationChoice(_locations(schedule, inputs[0])))
            else:
                found.append(_simple_choice(schedule, instruction, inputs, attributes))
            return decision

        schedule = Schedule(self.module)
        whole = self.with_decisions(decisions)
        part = Trace(list(whole.insts)[:stop], {})
        for instruction in list(part.insts):
            if instruction.kind.name in _SAMPLING:
                part = part.with_decision(instruction, whole.get_decision(instruction), remove_postproc=True)
        part.apply_to_schedule(schedule, True, see)
        return found[0]


class KernelSpace:
    """A kernel with all its sketches, in an order that does not depend on TVM's."""

    def __init__(self, name: str, module: IRModule, tuned_for: Any) -> None:
        """Ask TVM's rules for the sketches.

        Args:
            name: what to call the kernel.
            module: a module whose `main` is the kernel.
            tuned_for: TVM's target, with its number of cores.

        Raises:
            TunerError: a sketch cannot be written in the language.
        """
        if "cpu" in map(str, tuned_for.keys):
            import_x86_intrinsics()
        self.name = name
        self.module = module
        self.tuned_for = tuned_for
        self._context = meta_schedule.TuneContext(
            mod=module, target=tuned_for, space_generator="post-order-apply", task_name=name, rand_state=1
        )
        found = [Sketch(module, each.trace) for each in self._context.generate_design_space()]
        # Plain ones come first, whatever the order of TVM's rules, so that equal numbers mean alike things.
        self.sketches = sorted(found, key=lambda each: (len(each.trace.insts), each.text.tokens, each.key))

    @property
    def has_decisions(self) -> bool:
        """Whether there is anything to decide beside the sketch."""
        return any(
            str(each.kind.name) in (_TILE, _LOCATION) for sketch in self.sketches for each in sketch.sampling
        )

    @cached_property
    def text(self) -> KernelText:
        """The kernel as the language writes it."""
        schedule = Schedule(self.module)
        blocks = [
            Block(str(block.name_hint), tuple(map(_iteration, block.iter_vars)))
            for block in map(schedule.get, schedule.get_child_blocks(schedule.get_sblock("root")))
        ]
        arguments = [
            Argument(str(each.dtype), tuple(map(int, each.shape)))
            for each in meta_schedule.arg_info.ArgInfo.from_entry_func(self.module)
        ]
        target = {
            str(name): value if isinstance(value, int) else str(value)
            for name, value in sorted(self.tuned_for.export().items())
            if isinstance(value, int | str) and value != "" and name != "tag"
        }
        return KernelText(target, tuple(arguments), tuple(blocks), len(self.sketches))

    def sample(self, rng: np.random.Generator) -> Proposal:
        """Return a schedule as TVM draws one at random: any sketch, any decisions."""
        sketch = int(rng.integers(len(self.sketches)))
        return Proposal(sketch, self.sketches[sketch].sample(int(rng.integers(1, 2**31 - 1))))

    def read_trace(self, trace_json: str) -> Proposal | None:
        """Return the proposal that a measured trace is, as records keep it; None where it is of no sketch."""
        schedule = Schedule(self.module)
        try:
            Trace.apply_json_to_schedule(json.loads(trace_json), schedule)
        except Exception:  # TVM raises whatever its instructions raise
            return None
        key = _key(schedule.trace)
        for index, sketch in enumerate(self.sketches):
            if sketch.key == key:
                decisions = decisions_of(schedule.trace)
                return Proposal(index, decisions[: sketch.num_decisions])
        return None

    def schedule(self, proposal: Proposal) -> Any | None:
        """Return a proposal's schedule, ready to be built; None where it is not legal.

        It is what MetaSchedule would measure: the decisions are in it as they were asked for, and all of
        TVM's postprocessors accept it.
        """
        schedule = self.sketches[proposal.sketch].apply(proposal.decisions)
        if schedule is None:
            return None
        schedule.enter_postproc()
        accepted = all(each.apply(schedule) for each in self._context.space_generator.postprocs)
        return schedule if accepted else None


def _key(trace: Any) -> str:
    """Return the instructions without those whose results nobody uses, which evolution leaves out."""
    return json.dumps(plain_json(trace.simplified(remove_postproc=True).as_json()[0]))


def _simple_choice(
    schedule: Any, instruction: Any, inputs: Sequence[Any], attributes: Sequence[Any]
) -> Choice:
    """Return what a tile or an option may be, by the state of the schedule before it."""
    if instruction.kind.name == _TILE:
        extent = int(schedule.get(inputs[0]).extent)
        return TileChoice(extent, parts=int(attributes[0]), max_innermost=int(attributes[1]))
    return OptionChoice(len(attributes[0]))


def _locations(schedule: Any, block: Any) -> tuple[int, ...]:
    """Ask TVM for every location: it turns one that is not legal into the next smaller one that is."""
    found: list[int] = []
    asked = _NO_LOCATION
    while not found or found[-1] > _INLINE:
        schedule.sample_compute_location(block, decision=asked)
        trace = schedule.trace
        location = int(trace.get_decision(trace.insts[-1]))
        if found and location >= found[-1]:
            break  # there is no smaller one
        found.append(location)
        asked = location - 1
    return tuple(sorted(found))


def _fixed(instructions: Sequence[Any]) -> list[bool]:
    """Return for each sampling instruction whether what it may sample is the same after any decisions.

    A loop's extent is settled where the loop is made. What is made before a sampled value is first used is
    the same after any decisions.
    """
    sampled: set[int] = set()
    settled: set[int] = set()
    is_settled = True
    fixed = []
    for instruction in instructions:
        kind = str(instruction.kind.name)
        handles = [hash(each) for each in instruction.inputs if hasattr(each, "same_as")]
        if kind in _SAMPLING:
            fixed.append(kind == OPTION or (kind == _TILE and set(handles) <= settled))
            sampled.update(map(hash, instruction.outputs))
        elif sampled.intersection(handles):
            is_settled = False
        elif is_settled:
            settled.update(map(hash, instruction.outputs))
    return fixed


def _iteration(variable: Any) -> tuple[str, int]:
    return _ITERATION_KINDS.get(int(variable.iter_type), "other"), int(variable.dom.extent)

"""What a device is told to do, in order: the form in which pipeline schedules are published.

A schedule of one's own is a `PipelineSchedule` whose `instructions` yields what one stage does, first to
last; `examples/custom_schedule.py` is one. An instruction says nothing about time but its duration: when it
runs follows from the order and from what it waits for (`tessel.dag`). Checked in
tests/tessel/test_instruction.py.

    stage 0   F0 F1 .  .  B0 B0 F2 .  ...       yields Forward(0, 0), Forward(0, 1), Backward(0, 0), ...

Source: Rasley et al., DeepSpeed (PipeSchedule), for a generator of instructions a stage; Chung et al.,
Perseus (SOSP 2024), for instructions with durations. Here a stage's backward may also be two instructions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Instruction:
    """One piece of work.

    Attributes:
        stage: the stage whose work it is.
        micro_batch: the micro-batch it works on.
        duration: steps it takes, >= 0.
    """

    stage: int
    micro_batch: int
    duration: int = 1

    def __post_init__(self) -> None:
        if self.stage < 0 or self.micro_batch < 0 or self.duration < 0:
            raise ValueError(f"{self} has a negative number; stages, micro-batches and durations are >= 0")


@dataclass(frozen=True, slots=True)
class Forward(Instruction):
    """The stage's forward pass."""


@dataclass(frozen=True, slots=True)
class Backward(Instruction):
    """The stage's whole backward pass: gradients of its inputs and of its weights."""


@dataclass(frozen=True, slots=True)
class BackwardInput(Instruction):
    """The half of the backward that the stage before waits for."""


@dataclass(frozen=True, slots=True)
class BackwardWeight(Instruction):
    """The half of the backward that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Recompute(Instruction):
    """The forward pass once more, to have its activations for the backward."""


Durations = Mapping[type[Instruction], int | Sequence[int]]
"""Steps by type of instruction: one number, or one a stage."""


class PipelineSchedule(ABC):
    """The orders of all stages of a pipeline; one's own subclass says what one stage does.

    Attributes:
        num_stages: stages, numbered from 0; each has a device of its own.
        num_micro_batches: micro-batches, numbered from 0.
        durations: steps by type of instruction; 1 where a type is not named.
    """

    def __init__(
        self, *, num_stages: int, num_micro_batches: int, durations: Durations | None = None
    ) -> None:
        if num_stages < 1 or num_micro_batches < 1:
            raise ValueError(
                f"{num_stages} stages and {num_micro_batches} micro-batches were given; "
                "give at least 1 of each"
            )
        self.num_stages = num_stages
        self.num_micro_batches = num_micro_batches
        self.durations = dict(durations or {})

    @abstractmethod
    def instructions(self, stage: int) -> Iterator[Instruction]:
        """Yield what the stage does, in order; durations are filled in afterwards."""

    def streams(self) -> tuple[tuple[Instruction, ...], ...]:
        """Return the instructions of every stage with their durations."""
        return tuple(
            tuple(self._with_duration(instruction) for instruction in self.instructions(stage))
            for stage in range(self.num_stages)
        )

    def _with_duration(self, instruction: Instruction) -> Instruction:
        given = self.durations.get(type(instruction), instruction.duration)
        duration = given if isinstance(given, int) else given[instruction.stage]
        return type(instruction)(instruction.stage, instruction.micro_batch, duration)

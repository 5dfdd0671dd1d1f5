"""Instruction streams per device: the form in which pipeline schedules are published.

A user-defined schedule is a `PipelineSchedule` whose `instructions` yields what one device does, first to
last; `examples/custom_schedule.py` is one. An instruction has a duration but no start time, which follows
from the order and the dependencies (`tessel.dag.pipeline_dag`). Checked in tests/tessel/test_instruction.py.

    device 0   F0 F1 .  .  B0 B0 F2 .  ...       yields Forward(0, 0), Forward(0, 1), Backward(0, 0), ...

Source: Rasley et al., DeepSpeed (PipeSchedule), for a generator of instructions; Chung et al., Perseus (SOSP
2024), for instructions with durations. Here a stage's backward may also be two instructions, and a device may
have several stages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from tessel.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class Instruction:
    """One piece of work; a kind of one's own is a subclass.

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


StepsByKind = Mapping[type[Instruction], int | Sequence[int]]
"""A number by kind of instruction: one for all stages, or one per stage."""

ACTIVATIONS: StepsByKind = MappingProxyType({Forward: 1, Backward: -1, BackwardWeight: -1})
"""Memory where nothing else is said: a forward's activations are held until its backward is whole."""


class PipelineSchedule(ABC):
    """The orders of all devices of a pipeline; one's own subclass says what one device does.

    Attributes:
        num_stages: stages, numbered from 0.
        num_micro_batches: micro-batches, numbered from 0.
        num_devices: devices, numbered from 0; as many as stages unless given.
        durations: steps by kind of instruction; the instruction's own where a kind is not named.
        memory: units by kind of instruction that it adds when it starts; 0 where a kind is not named.
    """

    def __init__(
        self,
        *,
        num_stages: int,
        num_micro_batches: int,
        num_devices: int | None = None,
        durations: StepsByKind | None = None,
        memory: StepsByKind = ACTIVATIONS,
    ) -> None:
        self.num_stages = num_stages
        self.num_micro_batches = num_micro_batches
        self.num_devices = num_stages if num_devices is None else num_devices
        if min(self.num_stages, self.num_micro_batches, self.num_devices) < 1:
            raise ValueError(
                f"{num_stages} stages, {num_micro_batches} micro-batches and {self.num_devices} devices were "
                "given; give at least 1 of each"
            )
        self.durations = dict(durations or {})
        self.memory = dict(memory)

    @abstractmethod
    def instructions(self, device: int) -> Iterator[Instruction]:
        """Yield what the device does, in order; durations are filled in afterwards."""

    def streams(self) -> tuple[tuple[Instruction, ...], ...]:
        """Return the instructions of every device with their durations.

        Raises:
            ScheduleError: an instruction is of a stage or micro-batch that the pipeline does not have.
        """
        return tuple(
            tuple(self._with_duration(instruction, device) for instruction in self.instructions(device))
            for device in range(self.num_devices)
        )

    def _with_duration(self, instruction: Instruction, device: int) -> Instruction:
        if instruction.stage >= self.num_stages or instruction.micro_batch >= self.num_micro_batches:
            raise ScheduleError(
                f"device {device} has {instruction}, but the pipeline has {self.num_stages} stages and "
                f"{self.num_micro_batches} micro-batches, numbered from 0; correct the stream"
            )
        return replace(instruction, duration=number_for(self.durations, instruction, instruction.duration))


def number_for(numbers: StepsByKind, instruction: Instruction, default: int) -> int:
    """Return the number that holds for an instruction's kind and stage.

    Raises:
        ScheduleError: there is a number per stage for the kind, but none for this stage.
    """
    given = numbers.get(type(instruction), default)
    if isinstance(given, int):
        return given
    if instruction.stage >= len(given):
        raise ScheduleError(
            f"{type(instruction).__name__} has numbers for {len(given)} stages, and stage "
            f"{instruction.stage} is asked for; give one number, or one per stage"
        )
    return given[instruction.stage]

"""Job of the ranks of a run and their reports: plain data, read and written without torch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tessel.engine.actions import Action, RankActions, actions_from_csv
from tessel.engine.devices import CPUS, Devices
from tessel.engine.errors import EngineError

FOLDER_PREFIX = "tessel-run-"
"""How the names of the folders begin that ranks meet in; they are removed after the run."""

MAX_TENSORS = 64
"""Tensors that may cross one border; keeps the tags of transfers apart."""

_MAX_TAGS = 1 << 31
"""gloo's tags are 32-bit integers."""


class RunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One schedule to run: its name and every rank's actions, as lines of cells."""

    name: str
    actions: tuple[str, ...]


class RankSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sum of gradients over ranks at the end of a step: weights that they share, in one all-reduce.

    Attributes:
        ranks: that take part, ascending, at least two.
        num_bytes: of each.
    """

    ranks: tuple[int, ...]
    num_bytes: int


class Rendezvous(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where ranks of several machines meet, each started apart.

    Attributes:
        rank: the one that is started here.
        host: where torchrun's store is.
        port: likewise.
        prefix: of all keys of this run.
    """

    rank: int
    host: str
    port: int
    prefix: str


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every rank is told.

    Attributes:
        num_ranks: processes in the group.
        ranks_by_stage: ranks of each stage, ascending.
        micro_batches: micro-batches of one step.
        provider: `module:function` that builds programs, given `provider_spec` and stage numbers. It runs in
            the rank, after the ranks have met, so that a stage on several ranks may make a group of its own.
        provider_spec: what the provider is given, as JSON text.
        runs: schedules, run in turn.
        repeats: counted steps of each schedule.
        num_threads: threads of each rank's programs.
        devices: where each rank computes, and what carries tensors between them.
        write_gradients: whether gradients of each schedule's last step are written.
        write_outputs: whether each schedule runs once more, uncounted, and outputs of that step are written.
        rendezvous: where the ranks meet if they are on several machines; None where all are started here, and
            meet in a file.
        stages_before: of each stage, those that it receives from; the one before it where empty.
        sums: of gradients over ranks, which are timed after the steps.

    Raises:
        EngineError: there are more stages and micro-batches than transfers can be told apart.
    """

    num_ranks: int
    ranks_by_stage: tuple[tuple[int, ...], ...]
    micro_batches: int
    provider: str
    provider_spec: str
    runs: tuple[RunSpec, ...]
    repeats: int
    num_threads: int
    devices: Devices = CPUS
    write_gradients: bool = True
    write_outputs: bool = False
    rendezvous: Rendezvous | None = None
    stages_before: tuple[tuple[int, ...], ...] = ()
    sums: tuple[RankSum, ...] = ()

    @property
    def before(self) -> tuple[tuple[int, ...], ...]:
        """Of each stage, those that it receives from."""
        return self.stages_before or tuple(
            (stage - 1,) if stage else () for stage in range(len(self.ranks_by_stage))
        )

    @property
    def own_ranks(self) -> Sequence[int]:
        """The ranks that are started here."""
        return range(self.num_ranks) if self.rendezvous is None else (self.rendezvous.rank,)

    @property
    def farthest(self) -> int:
        """Largest difference of the numbers of stages that hand over to each other; 1 in a chain."""
        return max((stage - each for stage, earlier in enumerate(self.before) for each in earlier), default=1)

    def __post_init__(self) -> None:
        tags = 2 * MAX_TENSORS * self.farthest
        if self.micro_batches * len(self.ranks_by_stage) * tags > _MAX_TAGS:
            raise EngineError(
                f"{len(self.ranks_by_stage)} stages with {self.micro_batches} micro-batches are more than "
                f"{_MAX_TAGS // tags} stage runs a step, whose transfers cannot be told apart; "
                "use fewer micro-batches a step"
            )


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One action as it really ran; seconds on the machine's monotonic clock, or rank 0's of several machines.

    Attributes:
        action: such as `0F3`.
        ready_s: when the rank had ended the action before.
        start_s: when what the action needs was there.
        end_s: when it had computed; what it made is sent after that.
    """

    action: str
    ready_s: float
    start_s: float
    end_s: float

    @property
    def parsed(self) -> Action:
        """What was done."""
        ((action,),) = actions_from_csv(self.action)
        return action


class RankResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one rank reports.

    Attributes:
        events: of every counted step of each schedule.
        losses: by schedule and micro-batch.
        gradient_types: data types in which it computed gradients, which files may hold in a wider one.
        predicted_bytes: what the stages' own plans say that its process holds in steps; None where they have
            none, or it computes on a GPU.
        held_bytes: what its process did hold, beyond the imports and what building the stages left; None
            where the system does not say.
        clock_error_s: by how much its events may be off those of rank 0, on another machine's clock.
        sums_s: seconds in the sums of gradients that it takes part in, together, of every repeat.
    """

    rank: int
    events: dict[str, tuple[tuple[Event, ...], ...]]
    losses: dict[str, dict[int, float]]
    gradient_types: tuple[str, ...] = ()
    predicted_bytes: int | None = None
    held_bytes: int | None = None
    clock_error_s: float = 0.0
    sums_s: tuple[float, ...] = ()


class Failure(msgspec.Struct, frozen=True):
    """The rank that failed first, and its exit status; negative for a signal."""

    rank: int
    status: int


def actions_as_lines(actions: RankActions) -> tuple[str, ...]:
    """Return every rank's actions as one line of cells each."""
    return tuple(",".join(map(str, own)) for own in actions)

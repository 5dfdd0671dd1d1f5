"""Choices of a plan: placements and degrees; and what it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tessel.errors import ScheduleError
from tessel.planning.layout import Layout, PlacementName, TowerName
from tessel.profiles.profile import Degrees

if TYPE_CHECKING:
    from tessel.batches.spread import Spread

CustomPlacement = tuple[int, ...]
"""The device, within one pipeline, of each stage of a chain; see `tessel.planning.candidates.families`."""

NAMED_PLACEMENTS: tuple[PlacementName, ...] = tuple(
    name for name in get_args(PlacementName) if name != "custom"
)

TensorDegrees = int | tuple[int, ...] | Literal["own"] | None
"""Devices over which layers are split: everywhere, by stage, `own` to search these, or None for any one."""

MAX_CHUNKS = 8
"""Stages a device, unless told otherwise: beyond, hops cost more than a shorter warm-up saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What `find_plan` may choose from, and what it prints beside its choice.

    Attributes:
        placements: shapes to choose from, by name or as the device of each stage of a chain.
        split_backward: whether orders may run backwards in halves; None for wherever the profile has them.
        recompute: whether stages may run their forward again instead of keeping activations.
        may_exceed_memory: where nothing fits, return the step that comes nearest to it in place of an error.
        max_chunks: most stages a device of `interleaved` placements.
        data_parallel: that degree alone; None for every one that divides the devices. The same holds for
        pipeline: devices of one pipeline,
        tensor_parallel: devices over which layers are split, of those that the profile has; of each stage of
            a `vshape` where several are given, searched stage by stage where it is `own`,
        context_parallel: devices over which sequences are split, likewise,
        expert_parallel: devices over which routed experts are divided, likewise,
        micro_batch: samples of a micro-batch, of those that the profile has, and
        chunks: stages per device.
        tower: where the tower in front of the language model runs, if there is one.
        baselines: whether to compute the rows to compare with.
        by_hand: a layout to compare with.
        spread: how durations vary from step to step; None for as the table's layers say.
        robust: percentile of the step by which the plan is chosen among finalists; None for the step itself.
        what_if: whether to plan again with more memory, faster hops and other micro-batch sizes, for the
            explanation.
    """

    placements: tuple[PlacementName | CustomPlacement, ...] = NAMED_PLACEMENTS
    split_backward: bool | None = None
    recompute: bool = True
    may_exceed_memory: bool = False
    max_chunks: int = MAX_CHUNKS
    data_parallel: int | None = None
    pipeline: int | None = None
    tensor_parallel: TensorDegrees = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    micro_batch: int | None = None
    chunks: int | None = None
    tower: TowerName = "first"
    baselines: bool = True
    by_hand: Layout | None = None
    spread: Spread | None = None
    robust: float | None = None
    what_if: bool = True

    def __post_init__(self) -> None:
        if not self.placements:
            raise ScheduleError(f"no placement is allowed; give one of {', '.join(NAMED_PLACEMENTS)}")
        if self.tower != "first" and isinstance(self.tensor_parallel, str | tuple):
            raise ScheduleError(
                f"a tower that runs {self.tower} needs equal tensor-parallel degrees of all stages; give one "
                "degree, or run the tower first"
            )
        for placement in self.placements:
            if isinstance(placement, str) and placement not in NAMED_PLACEMENTS:
                raise ScheduleError(
                    f"there is no placement {placement!r}; there are {', '.join(NAMED_PLACEMENTS)}, or give "
                    "the device of each stage"
                )
        for name in ("data_parallel", "pipeline", *Degrees._fields, "chunks", "max_chunks"):
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = min(value, default=0)
            if isinstance(value, int) and value < 1:
                raise ScheduleError(f"{name} is {value}, and it is at least 1; leave it out for any")

    def allows(self, degrees: Degrees) -> bool:
        """Whether a table of the profile may be chosen for all stages."""
        if self.tensor_parallel not in (None, "own", degrees.tensor_parallel):
            return False
        return self.allows_but_for_tensor(degrees)

    def allows_but_for_tensor(self, degrees: Degrees) -> bool:
        """Whether a table may be chosen if it has a tensor-parallel degree that may."""
        named = degrees._asdict()
        del named["tensor_parallel"]
        return all(getattr(self, name) in (None, value) for name, value in named.items())

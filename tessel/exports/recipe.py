"""Recipe of an export: the stages, who holds them, the order of each rank, and the numbers beside
them.

Every framework is given the same `Recipe`, from a plan of `tessel plan`, a plan of `tessel tune` or a
schedule, and refuses what it cannot run. What rows of a profile are in a language model, which Megatron and
torchtitan ask for, stands in `tessel.exports.roles`. Ranks are positions of the pipeline; which device of the
user each of them runs on is said beside. Checked in tests/tessel/exports/test_recipe.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessel.engine.actions import Action, ActionKind, RankActions, actions_of
from tessel.errors import ScheduleError
from tessel.exports.roles import Role, roles_of
from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline
from tessel.planning.layout import Layout
from tessel.planning.saved_plan import SavedPlan
from tessel.profiles.profile import Profile
from tessel.schedule import Schedule
from tessel.tuned_plan import TunedPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A pipeline as frameworks are told of it.

    Attributes:
        model: name for headings.
        layers: names of all layers, in model order; empty where none are known.
        cuts: first and last layer of each stage, inclusive; empty where no layers are known.
        device_of_stage: rank of each stage within one pipeline.
        actions: order of each rank; recomputations are inside their backwards.
        schedule: the schedule that the actions are of.
        micro_batches: of one pipeline in a training step; of each copy of its chain.
        step_us: microseconds of a step of the schedule; None where it has no length.
        micro_batch: samples of one; None where unknown.
        data_parallel: replicas of the pipeline.
        tensor_parallel: devices over which each layer is split; the most, where stages differ.
        stage_degrees: the degrees of all stages where these differ, as text; empty elsewhere.
        context_parallel: devices over which the sequence of each sample is split.
        expert_parallel: devices over which the routed experts are divided.
        recompute: whether a stage runs its forward again before its backward; empty for none.
        training_step_us: microseconds of a whole training step; None where only the pipeline is known.
        rank_devices: the user's devices at each rank of the pipeline, replica by replica; empty where they
            are 0, 1, 2, … in this order, or not known.
        roles: what each layer is, as the user states it; empty to tell it from the names.
        sharding: what replicas divide among them, as the plan counts on it. The same holds for
        offload: what lies in the memory of the hosts.
        tied: stages of each weight that several of them hold.
        frozen: places of layers whose weights are not trained.
        adapted: of those of whose weights a part is trained, as of a LoRA job.
        copies: of the chain, numbered one after the other on the same ranks; 2 in an `xshape`.
    """

    model: str
    layers: tuple[str, ...]
    cuts: tuple[tuple[int, int], ...]
    device_of_stage: tuple[int, ...]
    actions: RankActions
    schedule: Schedule
    micro_batches: int
    step_us: float | None = None
    micro_batch: int | None = None
    data_parallel: int = 1
    tensor_parallel: int = 1
    stage_degrees: str = ""
    context_parallel: int = 1
    expert_parallel: int = 1
    recompute: tuple[bool, ...] = ()
    training_step_us: float | None = None
    rank_devices: tuple[tuple[int, ...], ...] = ()
    roles: tuple[Role, ...] = ()
    sharding: str = "none"
    tied: tuple[tuple[int, ...], ...] = ()
    offload: str = "none"
    frozen: tuple[int, ...] = ()
    adapted: tuple[int, ...] = ()
    copies: int = 1

    @property
    def devices(self) -> int:
        """Ranks of one pipeline."""
        return len(self.actions)

    @property
    def processes(self) -> int:
        """Processes of the whole job, one a device."""
        return self.devices * self.data_parallel * self.tensor_parallel * self.context_parallel

    @property
    def num_stages(self) -> int:
        """Stages of one pipeline."""
        return len(self.device_of_stage)

    @property
    def is_loop(self) -> bool:
        """Whether there is one chain, and stage i is on rank i mod P."""
        return self.copies == 1 and all(
            rank == stage % self.devices for stage, rank in enumerate(self.device_of_stage)
        )

    @property
    def is_v(self) -> bool:
        """Whether each rank has two stages, the first P going down and the others back up."""
        down = tuple(range(self.devices))
        return self.copies == 1 < self.devices and self.device_of_stage == (*down, *reversed(down))

    @property
    def has_split_backward(self) -> bool:
        """Whether a backward runs as two halves."""
        halves = (ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)
        return any(action.kind in halves for own in self.actions for action in own)

    @property
    def is_trained(self) -> bool:
        """Whether any stage has a backward."""
        return any(action.kind is not ActionKind.FORWARD for own in self.actions for action in own)

    def layers_of(self, stage: int) -> tuple[str, ...]:
        """Return the names of a stage's layers."""
        first, last = self.cuts[stage]
        return self.layers[first : last + 1]

    def roles_of_stages(self) -> tuple[tuple[Role, ...], ...]:
        """Return what each layer of each stage is, as stated or by its name.

        Raises:
            ScheduleError: a name does not tell it; says which.
        """
        roles = self.roles or roles_of(self.layers)
        return tuple(roles[first : last + 1] for first, last in self.cuts)


def recipe_of_schedule(schedule: Schedule, *, model: str = "schedule") -> Recipe:
    """Return the recipe of a schedule alone, whose stages have no layers.

    Raises:
        ScheduleError: its stages are no chain with each stage on one device; says what is.
    """
    devices, copies = chain_devices(schedule)
    return Recipe(
        model=model,
        layers=(),
        cuts=(),
        device_of_stage=devices,
        actions=actions_of(schedule),
        schedule=schedule,
        micro_batches=schedule.micro_batches,
        copies=copies,
    )


def recipe_of_plan(plan: TunedPlan) -> Recipe:
    """Return the recipe of a plan that `tessel tune` wrote.

    Raises:
        ScheduleError: its stages are no chain with each stage on one device, or not those of its schedule.
    """
    devices, copies = chain_devices(plan.schedule)
    if len(devices) != len(plan.stages):
        raise ScheduleError(
            f"the plan has {len(plan.stages)} stages, and its schedule {len(devices)}, so that nobody knows "
            "which layers a stage has; make the plan again with `tessel tune`"
        )
    layers = tuple(layer for stage in plan.stages for layer in stage.layers)
    recomputes = [stage.recomputes for stage in plan.stages]
    cuts, first = [], 0
    for stage in plan.stages:
        cuts.append((first, first + len(stage.layers) - 1))
        first += len(stage.layers)
    return Recipe(
        model=plan.model,
        layers=layers,
        cuts=tuple(cuts),
        device_of_stage=devices,
        actions=actions_of(plan.schedule),
        schedule=plan.schedule,
        micro_batches=plan.schedule.micro_batches,
        step_us=plan.step_us,
        micro_batch=plan.batch,
        recompute=tuple(recomputes) if any(recomputes) else (),
        copies=copies,
    )


def recipe_of_saved_plan(plan: SavedPlan) -> Recipe:
    """Return the recipe of a plan that `tessel plan --save` wrote.

    Raises:
        ScheduleError: its stages are no chain with each stage on one device.
    """
    layout = plan.layout
    if len(plan.schedules) > 1:
        raise ScheduleError(
            f"the plan of {plan.profile.name} gives each of {len(plan.schedules)} replicas an order and "
            "micro-batches of its own, and frameworks are told one order; plan with --data-parallel 1, or "
            "read the plan's file"
        )
    layout.refuse_bubbles("an export")
    devices, copies = chain_devices(plan.schedule)
    cuts = layout.cuts * copies
    frozen, adapted = _trained_in_part(plan.profile)
    return Recipe(
        model=plan.profile.name,
        layers=tuple(layer.name for layer in plan.profile.layers),
        cuts=cuts,
        device_of_stage=devices,
        actions=actions_of(plan.schedule),
        schedule=plan.schedule,
        micro_batches=plan.schedule.micro_batches,
        step_us=plan.step_us,
        micro_batch=layout.micro_batch,
        data_parallel=layout.data_parallel,
        tensor_parallel=layout.tensor_parallel,
        stage_degrees=layout.named_tensor_degrees if layout.has_own_degrees else "",
        context_parallel=layout.context_parallel,
        expert_parallel=layout.expert_parallel,
        recompute=layout.recompute * copies,
        training_step_us=plan.training_step_us,
        sharding=plan.sharding,
        frozen=frozen,
        adapted=adapted,
        tied=_tied_stages([layer.tie for layer in plan.profile.layers], cuts),
        copies=copies,
        offload=plan.offload,
        rank_devices=devices_of_ranks(layout) if layout.device_order else (),
    )


def _trained_in_part(profile: Profile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of layers that are frozen, and of those that are trained in part."""
    held = [cost.weight_bytes for cost in profile.tables[0].costs]
    trained = [cost.updated_bytes for cost in profile.tables[0].costs]
    if not any(trained):  # of inference
        return (), ()
    frozen = tuple(place for place, own in enumerate(trained) if own == 0 < held[place])
    return frozen, tuple(place for place, own in enumerate(trained) if 0 < own < held[place])


def _tied_stages(ties: Sequence[str], cuts: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return the stages of each tie that goes over several."""
    held: dict[str, list[int]] = {}
    for stage, (first, last) in enumerate(cuts):
        for tie in dict.fromkeys(ties[first : last + 1]):
            if tie:
                held.setdefault(tie, []).append(stage)
    return tuple(tuple(stages) for stages in held.values() if len(stages) > 1)


def devices_of_ranks(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return the user's devices at each rank of the pipeline, replica by replica."""
    return tuple(layout.devices_at(rank) for rank in range(layout.pipeline))


def chain_devices(schedule: Schedule) -> tuple[tuple[int, ...], int]:
    """Return the device of each stage, and how many equal copies of a chain the stages are.

    Raises:
        ScheduleError: they are not; says why no framework runs it.
    """
    try:
        pipeline = read_pipeline(schedule.placement)
    except NotAPipelineError as error:
        raise ScheduleError(
            f"this placement cannot be exported: {error}; give each stage a forward and its backward blocks"
        ) from error
    stages = pipeline.stages
    copies = sum(not stage.before for stage in stages)
    length, rest = divmod(len(stages), copies)
    is_chain = not rest and all(
        len(stage.devices) == 1 and stage.before == ((index - 1,) if index % length else ())
        for index, stage in enumerate(stages)
    )
    if not is_chain:
        raise ScheduleError(
            "the stages are no chain with each stage on one device, nor equal copies of one, and no "
            "framework here runs anything else; use `tessel run`, or plan with another --placement"
        )
    return tuple(stage.devices[0] for stage in stages), copies


def renumbered_by_first_stage(actions: RankActions) -> RankActions:
    """Return the same actions with micro-batches numbered in the order in which the first stage runs them."""
    forwards = [
        action.micro_batch
        for own in actions
        for action in own
        if action.stage == 0 and action.kind is ActionKind.FORWARD
    ]
    number = {micro_batch: place for place, micro_batch in enumerate(forwards)}
    return tuple(
        tuple(Action(action.stage, action.kind, number[action.micro_batch]) for action in own)
        for own in actions
    )

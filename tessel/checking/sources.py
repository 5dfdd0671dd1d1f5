"""Cases from what people have: a CSV of orders, a layout of Megatron, a schedule, a plan.

With a profile, stages are priced from its layers. Layers are cut as the layout or `cuts` say; of a CSV, which
names no layers, into stages of least largest work where no cuts are given. Without a profile every
transformer layer, or every stage of a CSV, counts one step forward and two backward (one for each half), an
embedding none and the loss as one layer, and memory is unlimited. Checked in
tests/tessel/checking/test_sources.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tessel.checking.case import (
    Case,
    MakeOrders,
    NamedOrders,
    PricedLayout,
    case_of_layout,
    named_orders,
)
from tessel.checking.numbering import check_numbering
from tessel.engine.actions import ActionKind, RankActions, orders_of_actions
from tessel.errors import ScheduleError
from tessel.exports.megatron import MegatronLayout, group_sizes, megatron_orders
from tessel.handwritten import HANDWRITTEN, StreamRule
from tessel.placement import Block, BlockKind, Choice, Edge, Placement
from tessel.planning.job import Job
from tessel.planning.layout import Layout, PlacementName
from tessel.profiles.profile import Degrees, Profile

FORWARD_STEPS, BACKWARD_STEPS, HALF_STEPS = 1, 2, 1
"""Steps of a layer without a profile: the usual count of matrix products."""

MAX_GROUP_SIZES = 6
"""Other sizes of Megatron's groups that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """What prices the stages.

    Attributes:
        profile: layers and their costs.
        job: devices and links, optimizer and framework.
        micro_batch: samples of a micro-batch; the profile's smallest if None.
        data_parallel: replicas of the pipeline.
        tensor_parallel: devices over which each layer is split.
        context_parallel: devices over which the sequence of each sample is split.
        expert_parallel: devices over which the routed experts are divided.
    """

    profile: Profile
    job: Job
    micro_batch: int | None = None
    data_parallel: int = 1
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1

    @property
    def degrees(self) -> Degrees:
        """Micro-batch size and degrees of parallelism within a layer."""
        size = self.profile.micro_batches[0] if self.micro_batch is None else self.micro_batch
        return Degrees(size, self.tensor_parallel, self.context_parallel, self.expert_parallel)


def case_of_csv(
    name: str,
    actions: RankActions,
    pricing: Pricing | None = None,
    *,
    cuts: Sequence[tuple[int, int]] | None = None,
) -> Case:
    """Return the case of each rank's actions.

    Args:
        actions: of each rank.
        pricing: prices the stages; without it every stage counts alike.
        cuts: first and last layer of each stage, inclusive; balanced if None.

    Raises:
        ScheduleError: a stage stands on two ranks, an action is missing or stands there twice, or the profile
            cannot price the stages; says which.
    """
    devices = _stage_devices(actions)
    check_numbering(actions)
    micro_batches = 1 + max(action.micro_batch for own in actions for action in own)
    kinds = {action.kind for own in actions for action in own}
    is_split = bool(kinds & {ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT})
    if pricing is None:
        placement = _unit_placement([1] * len(devices), devices, actions)
        orders = named_orders(placement, orders_of_actions(placement, actions))
        return Case(
            name=name,
            placement=placement,
            orders=orders,
            micro_batches=micro_batches,
            make_orders=_same_rule(placement, orders, micro_batches),
        )
    # Where orders joint and split are mixed, the stages' own blocks say which actions there are.
    skeleton = _unit_placement([1] * len(devices), devices, actions)
    orders = named_orders(skeleton, orders_of_actions(skeleton, actions))
    if is_split and not _is_splittable(pricing.profile):
        raise ScheduleError(
            f"{name} splits backwards, and the profile {pricing.profile.name} has no halves; give "
            "backward_input_ms and backward_weight_ms for every layer"
        )
    priced = _priced(pricing, devices, micro_batches, cuts, is_split=is_split)
    return case_of_layout(
        name,
        priced,
        orders,
        micro_batches=micro_batches,
        make_orders=_same_rule(skeleton, orders, micro_batches),
    )


def case_of_megatron(
    name: str,
    layout: MegatronLayout,
    pricing: Pricing | None = None,
    *,
    micro_batches: int,
    group_size: int | None = None,
) -> Case:
    """Return the case of a layout in the order in which Megatron runs it.

    Raises:
        ScheduleError: Megatron refuses the numbers, or the profile has other layers than the layout.
    """
    actions = megatron_orders(layout, micro_batches, group_size=group_size)
    devices = tuple(map(layout.rank_of, range(len(layout.stages))))
    size = layout.pipeline if group_size is None else group_size

    def orders_of(placement: Placement, count: int, size: int = size) -> NamedOrders | None:
        try:
            made = megatron_orders(layout, count, group_size=size)
        except ScheduleError:
            return None
        return _names_of(made)

    others = []
    if layout.virtual > 1:
        sizes = [other for other in group_sizes(layout.pipeline, micro_batches) if other != size]
        for other in sizes[:MAX_GROUP_SIZES]:
            orders = orders_of(_ANY, micro_batches, other)
            if orders is not None:
                others.append((f"set microbatch_group_size_per_vp_stage to {other}", orders))
    if pricing is None:
        weights = [sum(letter in "tmL" for letter in stage) for stage in layout.stages]
        return Case(
            name=name,
            placement=_unit_placement(weights, devices, actions),
            orders=_names_of(actions),
            micro_batches=micro_batches,
            make_orders=orders_of,
            is_order_free=False,
            other_orders=tuple(others),
        )
    priced = _priced(pricing, devices, micro_batches, cuts_of_layout(layout, pricing.profile), is_split=False)
    return case_of_layout(
        name,
        priced,
        _names_of(actions),
        micro_batches=micro_batches,
        make_orders=orders_of,
        is_order_free=False,
        other_orders=tuple(others),
    )


def cuts_of_layout(layout: MegatronLayout, profile: Profile) -> tuple[tuple[int, int], ...]:
    """Return the first and last layer of each stage, the profile having a row for each letter.

    Raises:
        ScheduleError: it has another number of rows, or a stage has no layer.
    """
    if len(layout.layers) != len(profile.layers):
        raise ScheduleError(
            f"the layout has {len(layout.layers)} layers, E and L among them, and the profile "
            f"{profile.name} has {len(profile.layers)}; give it a row for each, the embedding first and the "
            "head last"
        )
    cuts, first = [], 0
    for stage, letters in enumerate(layout.stages):
        if not letters:
            raise ScheduleError(
                f"stage {stage} has no layer, which a profile cannot price; leave --profile out"
            )
        cuts.append((first, first + len(letters) - 1))
        first += len(letters)
    return tuple(cuts)


def balanced_cuts(work: Sequence[float], num_stages: int) -> tuple[tuple[int, int], ...]:
    """Return consecutive runs of layers whose largest sum is least; of several, the earliest cuts last.

    Raises:
        ScheduleError: there are fewer layers than stages.
    """
    if len(work) < num_stages:
        raise ScheduleError(
            f"{num_stages} stages cannot each have one of {len(work)} layers; give a profile with more rows"
        )
    # best[count][last]: of the first `last` layers in so many stages, the least largest sum, and where the
    # last stage begins.
    sums = [0.0]
    for each in work:
        sums.append(sums[-1] + each)
    best = [[(0.0, 0)] + [(float("inf"), 0)] * len(work)]
    for count in range(1, num_stages + 1):
        row = [(float("inf"), 0)] * (len(work) + 1)
        for last in range(count, len(work) - (num_stages - count) + 1):
            row[last] = min(
                (max(best[count - 1][first][0], sums[last] - sums[first]), first)
                for first in range(count - 1, last)
            )
        best.append(row)
    cuts, last = [], len(work)
    for count in range(num_stages, 0, -1):
        first = best[count][last][1]
        cuts.append((first, last - 1))
        last = first
    return tuple(reversed(cuts))


def _priced(
    pricing: Pricing,
    devices: tuple[int, ...],
    micro_batches: int,
    cuts: Sequence[tuple[int, int]] | None,
    *,
    is_split: bool,
) -> PricedLayout:
    profile = pricing.profile
    if cuts is None:
        costs = profile.costs(**pricing.degrees._asdict())
        work = [cost.forward_us + (cost.joint_backward_us or 0.0) for cost in costs]
        cuts = balanced_cuts(work, len(devices))
    if len(cuts) != len(devices):
        raise ScheduleError(
            f"{len(cuts)} cuts are given for {len(devices)} stages; give each stage its layers"
        )
    if cuts[0][0] != 0 or cuts[-1][1] != len(profile.layers) - 1:
        raise ScheduleError(
            f"the cuts go from layer {cuts[0][0]} to {cuts[-1][1]}, and the profile has layers 0 to "
            f"{len(profile.layers) - 1}; give every layer a stage"
        )
    pipeline = max(devices) + 1
    name = _placement_name(devices, pipeline)
    layout = Layout(
        data_parallel=pricing.data_parallel,
        pipeline=pipeline,
        tensor_parallel=pricing.tensor_parallel,
        context_parallel=pricing.context_parallel,
        expert_parallel=pricing.expert_parallel,
        micro_batch=pricing.degrees.micro_batch,
        micro_batches=micro_batches,
        placement=name,
        cuts=tuple(cuts),
        split_backward=is_split,
        stage_devices=devices if name == "custom" else (),
    )
    return PricedLayout(profile=profile, layout=layout, job=pricing.job)


def _placement_name(devices: tuple[int, ...], pipeline: int) -> PlacementName:
    if devices == tuple(range(pipeline)):
        return "vshape"
    if (
        all(device == stage % pipeline for stage, device in enumerate(devices))
        and not len(devices) % pipeline
    ):
        return "interleaved"
    down = tuple(range(pipeline))
    return "zbv" if devices == (*down, *reversed(down)) else "custom"


def _is_splittable(profile: Profile) -> bool:
    return all(cost.is_splittable for table in profile.tables for cost in table.costs)


def _stage_devices(actions: RankActions) -> tuple[int, ...]:
    """Return the rank of each stage.

    Raises:
        ScheduleError: a stage has none, or two.
    """
    rank_of: dict[int, int] = {}
    for rank, own in enumerate(actions):
        for action in own:
            if rank_of.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"stage {action.stage} has actions on ranks {rank_of[action.stage]} and {rank}, and "
                    f"a stage "
                    "is on one; correct the orders"
                )
    if not rank_of:
        raise ScheduleError("no rank has an action; a schedule runs at least one micro-batch")
    missing = next((stage for stage in range(max(rank_of)) if stage not in rank_of), None)
    if missing is not None:
        raise ScheduleError(f"stage {missing} has no action on any rank; number stages from 0 without gaps")
    idle = next((rank for rank, own in enumerate(actions) if not own), None)
    if idle is not None:
        raise ScheduleError(f"rank {idle} has no action; give each rank a line, and each line an action")
    return tuple(rank_of[stage] for stage in range(len(rank_of)))


def _unit_placement(weights: Sequence[int], devices: tuple[int, ...], actions: RankActions) -> Placement:
    """Return a chain of stages, each as long as its weight says, with the blocks that the actions run."""
    kinds = Counter((action.stage, action.kind) for own in actions for action in own)
    blocks: list[Block] = []
    edges: list[Edge] = []
    choices = []
    gradient: list[str] = []
    for stage in reversed(range(len(devices))):
        backward = _backward_blocks(stage, weights[stage], devices[stage], kinds)
        names = [block.name for block in backward]
        if stage:
            edges.append(Edge(f"f{stage - 1}", f"f{stage}"))
        heads = [name for name in names if not name.endswith("_weight")] or names
        edges += [Edge(f"f{stage}", name) for name in heads]
        edges += [Edge(before, after) for before in gradient for after in heads]
        if f"b{stage}_input" in names and f"b{stage}_weight" in names:
            edges.append(Edge(f"b{stage}_input", f"b{stage}_weight"))
        if f"b{stage}" in names and len(names) > 1:
            choices.append(Choice(f"b{stage}", ((f"b{stage}",), tuple(names[1:]))))
        gradient = [name for name in heads if name != f"b{stage}_weight"]
        forward = Block(
            name=f"f{stage}",
            kind=BlockKind.FORWARD,
            devices=(devices[stage],),
            span=FORWARD_STEPS * weights[stage],
            memory=weights[stage] if backward else 0,
        )
        blocks += [forward, *backward]
    return Placement(
        devices=max(devices) + 1, blocks=tuple(blocks), edges=tuple(edges), choices=tuple(choices)
    )


_HALVES = (
    (ActionKind.BACKWARD, "b{}", BlockKind.BACKWARD, BACKWARD_STEPS, -1),
    (ActionKind.BACKWARD_INPUT, "b{}_input", BlockKind.BACKWARD_INPUT, HALF_STEPS, 0),
    (ActionKind.BACKWARD_WEIGHT, "b{}_weight", BlockKind.BACKWARD_WEIGHT, HALF_STEPS, -1),
)


def _backward_blocks(
    stage: int, weight: int, device: int, kinds: Counter[tuple[int, ActionKind]]
) -> list[Block]:
    return [
        Block(
            name=form.format(stage), kind=kind, devices=(device,), span=steps * weight, memory=memory * weight
        )
        for action, form, kind, steps, memory in _HALVES
        if kinds[stage, action]
    ]


_NAMES = {
    ActionKind.FORWARD: "f{}",
    ActionKind.BACKWARD: "b{}",
    ActionKind.BACKWARD_INPUT: "b{}_input",
    ActionKind.BACKWARD_WEIGHT: "b{}_weight",
}

_ANY = Placement(devices=1, blocks=(Block(name="f0", kind=BlockKind.FORWARD, devices=(0,)),))
"""A placement where it does not matter which."""


def _names_of(actions: RankActions) -> NamedOrders:
    return tuple(
        tuple((_NAMES[action.kind].format(action.stage), action.micro_batch) for action in own)
        for own in actions
    )


def _same_rule(placement: Placement, orders: NamedOrders, micro_batches: int) -> MakeOrders | None:
    """Return what makes the orders of the hand-written rule that these follow; None where they follow
    none."""
    for rule in HANDWRITTEN:
        if not isinstance(rule, StreamRule) or rule.needs_limit:
            continue
        if rule.why_not(placement, micro_batches) is not None:
            continue
        try:
            made = rule.orders(placement, micro_batches=micro_batches)
        except ScheduleError:
            continue
        if named_orders(placement, made) == orders:
            return _orders_of_rule(rule)
    return None


def _orders_of_rule(rule: StreamRule) -> MakeOrders:
    def make(placement: Placement, micro_batches: int) -> NamedOrders | None:
        if rule.why_not(placement, micro_batches) is not None:
            return None
        return named_orders(placement, rule.orders(placement, micro_batches=micro_batches))

    return make

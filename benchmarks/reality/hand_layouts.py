"""Layouts that NVIDIA wrote by hand for three models, beside what is planned for the same devices.

The layouts are those of Megatron-Bridge's recipes (Apache-2.0, NVIDIA; three strings). No profile of these
models is public. Each layer takes its operations at the rate of a measured product of the nearest model: the
output layer of Llama-3-8B on GH200, four devices a layer (Sailor's profile: 4.088 ms forward and 8.271 ms
backward for 8,192 tokens of 4,096 x 128,256 weights). So ratios of layers, which decide about layouts, are
ratios of operations; what a layer keeps is 34 bytes a token and column (Korthikanti et al. 2022, with the
attention's own recomputed). Left out: communication between experts, and hops.

By hand, Megatron's order is run: interleaved 1F1B. Ours is planned twice with no more memory than that takes:
in the same loop with joint backwards, and in a V of two chunks, where backwards may be split. A layer of
multi-token prediction is a block and a projection; its loss takes the output layer a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.reality.numbers import percent, signed
from tessel.exports.megatron import MegatronLayout, read_layout
from tessel.handwritten.interleaved_1f1b import INTERLEAVED_1F1B
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.costs.training_step import StepEstimate, build_step, estimate_step
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.layout import Layout, PlacementName
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.profiles.profile import CostTable, Layer, Profile, StageCosts
from tessel.search.budget import LONGEST_S, SearchBudget

MICRO_BATCHES = 64
"""Fewer than the recipes have, so that the ramps show; of every row."""

FORWARD_S, BACKWARD_S = 4.088e-3, 8.271e-3
WEIGHTS = 4096 * 128_256 / 4
TOKENS = 8192
"""Of the measured product, on one device."""

BAR = "\\|"
"""A bar within a cell of a table."""

LINK = Link(bytes_per_s=1e15)
"""Hops are left out."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A model and its layout.

    Attributes:
        name: of the model.
        layout: as the recipe has it.
        pipeline: ranks.
        tensor_parallel: devices of a rank.
        hidden: columns.
        sequence: tokens of a sample.
        block: weights that a token goes through in a layer, those of chosen experts only.
        attention: columns of queries and values together, of all heads.
        vocabulary: rows of the output layer.
    """

    name: str
    layout: str
    pipeline: int
    tensor_parallel: int
    hidden: int
    sequence: int
    block: float
    attention: int
    vocabulary: int


RECIPES = (
    Recipe(
        name="Llama-3-70B",
        layout="Et*2|(t*2|)*34,t*3|(t*2|)*3,tL",
        pipeline=8,
        tensor_parallel=4,
        hidden=8192,
        sequence=8192,
        block=2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28_672,
        attention=2 * 64 * 128,
        vocabulary=128_256,
    ),
    Recipe(
        name="Kimi-K2",
        layout="Et|(tt|)*30L",
        pipeline=16,
        tensor_parallel=8,
        hidden=7168,
        sequence=4096,
        block=(7168 * (1536 + 576) + 64 * (1536 * 192 + 512 * 256) + 64 * 128 * 7168 + 9 * 3 * 7168 * 2048),
        attention=64 * (192 + 128),
        vocabulary=163_840,
    ),
    Recipe(
        name="DeepSeek-V3",
        layout="Et*3|(tt|)*29,m|L",
        pipeline=16,
        tensor_parallel=1,
        hidden=7168,
        sequence=4096,
        block=(7168 * (1536 + 576) + 128 * (1536 * 192 + 512 * 256) + 128 * 128 * 7168 + 9 * 3 * 7168 * 2048),
        attention=128 * (192 + 128),
        vocabulary=129_280,
    ),
)


def profile_of(recipe: Recipe, layout: MegatronLayout) -> Profile:
    """Return the profile of a recipe's model, a layer for each letter of its layout."""
    # Of causal attention, half of the products with all keys and all values.
    block = recipe.block + recipe.sequence * recipe.attention / 2
    head = recipe.hidden * recipe.vocabulary
    saved = 34 * recipe.sequence * recipe.hidden // recipe.tensor_parallel
    losses = 1 + layout.layers.count("m")
    costs = {
        "E": _cost(recipe, 0.0, weights=head, saved=0),
        "t": _cost(recipe, block, weights=recipe.block, saved=saved),
        "m": _cost(recipe, block + 2 * recipe.hidden**2, weights=recipe.block, saved=saved),
        "L": _cost(recipe, losses * head, weights=head, saved=0),
    }
    return Profile(
        name=recipe.name,
        layers=tuple(Layer(f"{letter}{index}") for index, letter in enumerate(layout.layers)),
        tables=(
            CostTable(
                micro_batch=1, tensor_parallel=1, costs=tuple(costs[letter] for letter in layout.layers)
            ),
        ),
    )


def _cost(recipe: Recipe, operations: float, *, weights: float, saved: int) -> StageCosts:
    scale = operations / recipe.tensor_parallel / WEIGHTS * recipe.sequence / TOKENS * 1e6
    return StageCosts(
        forward_us=FORWARD_S * scale,
        backward_us=BACKWARD_S * scale,
        # The half of the inputs takes as many operations as the forward, and so does that of the weights.
        backward_input_us=BACKWARD_S * scale / 2,
        backward_weight_us=BACKWARD_S * scale / 2,
        update_us=0.0,
        weight_bytes=round(2 * weights / recipe.tensor_parallel),
        saved_bytes=saved,
    )


def hand_layout(layout: MegatronLayout) -> Layout:
    """Return a Megatron layout as one of ours."""
    ends = [sum(map(len, layout.stages[: index + 1])) for index in range(len(layout.stages))]
    return Layout(
        data_parallel=1,
        pipeline=layout.pipeline,
        micro_batch=1,
        micro_batches=MICRO_BATCHES,
        placement="interleaved",
        cuts=tuple((end - len(stage), end - 1) for stage, end in zip(layout.stages, ends, strict=True)),
    )


def tables(work: float) -> Iterator[str]:
    """Yield a row for each recipe.

    Args:
        work: units of work of each plan, so that the same plans are found on any machine.
    """
    yield (
        "| model | layout by hand | busiest device over mean | ours in its loop: faster by | order "
        "| at most, by the bound | ours in a V: faster by | order | at most, by the bound |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for recipe in RECIPES:
        layout = read_layout(recipe.layout, recipe.pipeline)
        profile = profile_of(recipe, layout)
        by_hand, excess = estimate_by_hand(profile, hand_layout(layout))
        memory = max(by_hand.memory_bytes)
        loop = plan(profile, hand_layout(layout), memory, "interleaved", work)
        v = plan(profile, hand_layout(layout), memory, "zbv", work)
        yield (
            f"| {recipe.name} | `{recipe.layout.replace('|', BAR)}` | {percent(excess)} "
            f"| {gains(by_hand, loop)} | {gains(by_hand, v)} |"
        )


def estimate_by_hand(profile: Profile, layout: Layout) -> tuple[StepEstimate, float]:
    """Return what a layout takes in Megatron's order, and how far its busiest device is above the mean."""
    cluster = Cluster(devices=layout.pipeline, hop=LINK, collective=LINK)
    step = build_step(
        profile,
        layout,
        Job(cluster=cluster, optimizer=OPTIMIZERS["adam-mixed"]),
    )
    schedule = INTERLEAVED_1F1B.build(step.placement, micro_batches=step.micro_batches)
    work = step.figures.device_work_us()
    return estimate_step(step, schedule), float(work.max() / work.mean() - 1)


def plan(
    profile: Profile,
    by_hand: Layout,
    memory_bytes: int,
    placement: PlacementName,
    work: float,
) -> PlanResult:
    """Return the plan for as many devices with that memory, without data parallelism."""
    cluster = Cluster(devices=by_hand.pipeline, hop=LINK, collective=LINK, memory_bytes=memory_bytes)
    options = PlanOptions(
        placements=(placement,),
        # Megatron's interleaved order has joint backwards.
        split_backward=None if placement == "zbv" else False,
        recompute=False,
        data_parallel=1,
        pipeline=by_hand.pipeline,
        chunks=2 if placement == "zbv" else by_hand.chunks,
        by_hand=by_hand if placement == by_hand.placement else None,
        what_if=False,
    )
    return find_plan(
        profile,
        Job(cluster=cluster, optimizer=OPTIMIZERS["adam-mixed"], global_batch=MICRO_BATCHES),
        options=options,
        budget=SearchBudget(work_limit=work, time_limit_s=LONGEST_S),
    )


def gains(by_hand: StepEstimate, found: PlanResult) -> str:
    """Return how much faster a plan is, its order, and how much faster any could be."""
    return (
        f"{signed(by_hand.step_us / found.best.estimate.step_us - 1)} | {found.best.order} "
        f"| {signed(by_hand.step_us / found.lower_bound_us - 1)}"
    )

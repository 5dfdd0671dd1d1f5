"""Say why a plan is as it is: what it is bound by, what comes next, and what planning again would give.

The sentences read figures of the step that was found; the changes are plans of their own, made with a part
of the budget and begun from the plan's own layout, so that an easier problem never seems to cost more. What
they find is offered to the plan itself: where it keeps the limits given, it becomes the plan.
Checked in tests/tessel/planning/test_explanation.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from tessel.planning.candidates.bounded_families import BoundedFamilies
from tessel.planning.cluster import Cluster, Link
from tessel.planning.job import Job
from tessel.planning.layout import Layout
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import Baseline, Change, PlannedStep, SearchCounts
from tessel.schedule.overlap import saved_steps

MORE_MEMORY = 1.25
FASTER_LINKS = 2.0
"""Factors by which a change has more memory and bandwidth."""

GIB = 2.0**30


def explain(
    best: PlannedStep,
    lower_bound_us: float,
    alternatives: Sequence[PlannedStep],
    baselines: Sequence[Baseline],
) -> tuple[str, ...]:
    """Return sentences about the best step: bound, busiest device, memory, next best, strongest baseline.

    Args:
        best: the plan's.
        lower_bound_us: over all layouts.
        alternatives: of other families, fastest first.
        baselines: rows to compare with.
    """
    step_us = best.estimate.step_us
    found = [_distance(best, lower_bound_us), _busiest(best), _memory(best), _resharding(best)]
    if alternatives:
        next_us = alternatives[0].estimate.step_us
        found.append(
            f"The next best plan is {alternatives[0].name}: {next_us / 1e3:.1f} ms, "
            f"{abs(next_us / step_us - 1):.1%} {'less' if next_us < step_us else 'more'}."
        )
    planned = [row for row in baselines if row.planned is not None]
    if planned:
        strongest = min(planned, key=lambda row: row.planned.estimate.step_us if row.planned else 0.0)
        assert strongest.planned is not None  # only such rows were kept
        us = strongest.planned.estimate.step_us
        found.append(
            f"The strongest baseline is {strongest.name} ({strongest.planned.name}): {us / 1e3:.1f} ms, "
            f"{us / step_us:.3f} times as long."
        )
    return tuple(sentence for sentence in found if sentence)


def _distance(best: PlannedStep, lower_bound_us: float) -> str:
    step_us = best.estimate.step_us
    gap = step_us / lower_bound_us - 1 if lower_bound_us else 0.0
    if gap <= 1e-9:
        return f"{step_us / 1e3:.1f} ms is proven optimal over all layouts, cuts and orders allowed."
    share = "0.1%" if gap < 5e-4 else f"{gap:.1%}"
    return (
        f"{step_us / 1e3:.1f} ms is within {share} of {lower_bound_us / 1e3:.1f} ms, a lower bound for all "
        "layouts, cuts and orders allowed."
    )


def _busiest(best: PlannedStep) -> str:
    figures, estimate = best.step.figures, best.estimate
    work = figures.device_work_us() * best.step.micro_batches + _tower_us(best) - _saved_us(best)
    device = int(np.argmax(work))
    stages = [stage for stage, other in enumerate(figures.devices) if other == device]
    cuts = best.layout.cuts
    layers = " and ".join(
        f"{first}-{last}" if last > first else f"{first}"
        for first, last in sorted({cuts[stage % len(cuts)] for stage in stages})
    )
    waits = estimate.step_us - float(work[device])
    sentence = (
        f"The busiest device ({best.layout.device_names[device]}), with layers {layers}, computes "
        f"{work[device] / estimate.step_us:.0%} of the step ({estimate.busy_ratio:.0%} on average), and "
        f"{waits / 1e3:.1f} ms are "
        "warm-up, cool-down, hops, synchronisation and the optimizer."
    )
    exposed = estimate.step_us - estimate.pipeline_us - estimate.update_us
    if estimate.synchronisation_us > 0:
        sentence += (
            f" Of {estimate.synchronisation_us / 1e3:.1f} ms of synchronisation, "
            f"{max(0.0, exposed) / 1e3:.1f} ms come after the last block."
        )
    return sentence


def _tower_us(best: PlannedStep) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the microseconds that each device runs a tower in bubbles."""
    tower, schedule = best.step.figures.tower, best.schedule
    found = np.zeros(len(best.step.figures.static_bytes))
    if tower is not None and schedule is not None:
        for start in schedule.starts:
            if start.block.startswith("tower"):
                us = tower.backward_us if "back" in start.block else tower.forward_us
                found[int(start.block.rpartition("_")[2])] += us
    return found


def _saved_us(best: PlannedStep) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the microseconds that each device is busy less where blocks run together."""
    found = np.zeros(len(best.step.figures.static_bytes))
    schedule = best.schedule
    if schedule is not None and schedule.overlap_factor is not None:
        spans, placement = schedule.pair_spans(), schedule.placement
        for pair in schedule.pairs:
            (device,) = placement.blocks[pair[0].block_index].devices
            found[device] += saved_steps(placement, spans, [pair]) * best.step.step_us
    return found


def _memory(best: PlannedStep) -> str:
    limits = best.step.figures.memory_bytes
    held = best.estimate.memory_bytes
    recomputed = sum(best.layout.recompute)
    tail = f" {recomputed} of {len(best.layout.cuts)} stages recompute to fit." if recomputed else ""
    if limits is None:
        return f"The fullest device holds {max(held) / GIB:.1f} GiB; memory is not limited."
    device = max(range(len(held)), key=lambda device: held[device] / limits[device])
    name = best.layout.device_names[device]
    return (
        f"The fullest device, {name}, holds {held[device] / GIB:.1f} of {limits[device] / GIB:.1f} GiB.{tail}"
    )


def _resharding(best: PlannedStep) -> str:
    degrees, figures = best.layout.tensor_degrees, best.step.figures
    hops = [
        f"{float(figures.hop_us[stage]) / 1e3:.2g} ms from {one} to {other} devices behind stage {stage}"
        for stage, (one, other) in enumerate(pairwise(degrees))
        if one != other
    ]
    return (
        f"Where the tensor-parallel degree changes, a hop cuts its tensor anew: {', '.join(hops)}."
        if hops
        else ""
    )


PlanAgain = Callable[[Job, PlanOptions, float], PlannedStep | None]
"""From a job, options and a share of the budget to the best step then; None where there is none."""


OTHER_MICRO_BATCHES = "micro-batches"
"""Beginning of the names of changes that make a plan no easier."""


def restrictions(families: BoundedFamilies) -> tuple[str, ...]:
    """Return sentences on what was not looked at one by one, though the bound holds for it."""
    problem, found = families.pool.problem, []
    if problem.is_grouped:
        found.append(
            f"Stages begin at {problem.num_layers} of the {len(problem.profile.layers)} layers; the bound "
            "holds for every cut."
        )
    if problem.cluster.is_uneven and math.isfinite(families.untried_us):
        found.append(
            "Of the orders of unequal devices a few were tried, and swaps in the best; the bound holds for "
            "every order."
        )
    alike = [
        each
        for each in families.pool.by_family.values()
        if each.order and not each.family.stage_tensor_parallel
    ]
    best = families.pool.best
    if alike and best is not None and best.family.stage_tensor_parallel:
        fastest = min(alike, key=lambda each: each.step_us).planned()
        us = fastest.estimate.step_us
        found.append(
            f"With one tensor-parallel degree for all stages, {us / 1e3:.1f} ms were found, "
            f"{us / best.step_us:.3f} times as long ({fastest.name})."
        )
    if problem.options.tensor_parallel == "own" and not families.stems:
        found.append(
            "No stages of unequal tensor-parallel degrees make up the devices with the degrees of the table; "
            "equal ones were tried."
        )
    if not all(stem.is_every for stem in families.stems):
        found.append(
            "Of the tensor-parallel degrees of many stages, two neighbouring ones were tried, and moves in "
            "the best; the bound holds for all degrees."
        )
    return tuple(found)


def counts_of(families: BoundedFamilies) -> SearchCounts:
    """Return how many families and layouts were looked at, and what became of them."""
    best_us = families.pool.best_us
    return SearchCounts(
        families=len(families.bounds),
        families_not_fitting=sum(math.isinf(bound.step_us) for bound in families.bounds.values()),
        families_cut_off=sum(best_us <= bound.step_us < math.inf for bound in families.bounds.values()),
        layouts=families.pool.layouts,
        orders=families.pool.orders,
    )


def plan_changed(
    layout: Layout, job: Job, options: PlanOptions, sizes: Sequence[int], plan_again: PlanAgain
) -> dict[str, PlannedStep]:
    """Return what planning again finds if one thing were different, by what would be.

    Args:
        layout: the plan's.
        job: what it was made for.
        sizes: micro-batch sizes of the profile.
        plan_again: plans for another cluster or other options.
    """
    wanted = list(_changed_problems(layout, job, options, sizes))
    found = {}
    for done, (text, changed, allowed) in enumerate(wanted):
        again = plan_again(changed, allowed, 1 / (len(wanted) - done))
        if again is not None:
            found[text] = again
    return found


def changes_of(best: PlannedStep, found: Mapping[str, PlannedStep]) -> tuple[Change, ...]:
    """Return what each change saves, the most first.

    Where devices, links or memory are better, the plan itself is there, too: a later change may have improved
    it beyond what an earlier one found.

    Args:
        best: the plan's step.
        found: as `plan_changed` returns them.
    """
    best_us = best.estimate.step_us
    changes = []
    for text, again in found.items():
        is_easier = not text.startswith(OTHER_MICRO_BATCHES)
        own = best if is_easier and best_us < again.estimate.step_us else again
        own_us = own.estimate.step_us
        changes.append(Change(change=text, step_us=own_us, saves_us=best_us - own_us, name=own.name))
    return tuple(sorted(changes, key=lambda change: -change.saves_us))


def _changed_problems(
    layout: Layout, job: Job, options: PlanOptions, sizes: Sequence[int]
) -> Iterator[tuple[str, Job, PlanOptions]]:
    options = replace(options, what_if=False, baselines=False, by_hand=None)
    for text, changed in _changed_clusters(layout, job.cluster):
        yield text, replace(job, cluster=changed), options
    if job.mixture is not None:
        yield f"{OTHER_MICRO_BATCHES} that take equally long", replace(job, mixture=None), options
    if options.micro_batch is None:
        for size in sizes:
            if size != layout.micro_batch:
                yield f"{OTHER_MICRO_BATCHES} of {size}", job, replace(options, micro_batch=size)


def _changed_clusters(layout: Layout, cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    if cluster.memory_bytes is not None or cluster.device_memory_bytes:
        yield f"{MORE_MEMORY - 1:.0%} more memory", _with_memory(cluster, MORE_MEMORY)
        yield "unlimited memory", _with_memory(cluster, None)
    if len(set(cluster.device_speed)) > 1:
        fastest = (max(cluster.device_speed),) * cluster.devices
        yield "all devices as fast as the fastest", msgspec.structs.replace(cluster, device_speed=fastest)
    if layout.pipeline > 1:
        hop = _faster(cluster.hop)
        intra = None if cluster.intra_node is None else _faster(cluster.intra_node)
        faster = msgspec.structs.replace(cluster, hop=hop, intra_node=intra)
        yield f"hops {FASTER_LINKS:g} times as fast", faster
    if layout.data_parallel > 1:
        faster = msgspec.structs.replace(cluster, collective=_faster(cluster.collective))
        yield f"collectives {FASTER_LINKS:g} times as fast", faster


def _faster(link: Link) -> Link:
    return Link(bytes_per_s=link.bytes_per_s * FASTER_LINKS, latency_us=link.latency_us / FASTER_LINKS)


def _with_memory(cluster: Cluster, factor: float | None) -> Cluster:
    if factor is None:
        return msgspec.structs.replace(cluster, memory_bytes=None, device_memory_bytes=())
    limit = cluster.memory_bytes
    return msgspec.structs.replace(
        cluster,
        memory_bytes=None if limit is None else int(limit * factor),
        device_memory_bytes=tuple(int(each * factor) for each in cluster.device_memory_bytes),
    )

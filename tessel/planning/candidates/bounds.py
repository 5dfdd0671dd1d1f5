"""Step times that no layout of a family can beat, whatever its cuts, recomputation and order.

Each number is a proof by itself; the largest counts.

- Sharing: the devices together do all the work of all micro-batches. Device d cannot begin before the layers
  of the stages ahead of it have run once, nor end its blocks later than what must follow them allows.
- One layer: whichever device holds it runs it for every micro-batch, behind all earlier layers.
- What forwards save for the hosts takes its way there and back beside the work; see `tessel.planning.job`.
- Path: a micro-batch goes all the way through and back.
- Where first and last layer are divided over all devices, each device runs its part of both for every
  micro-batch, and all devices together the layers between.
- Where two branches run side by side, each device runs its part of what joins them for every micro-batch, and
  the devices of a branch together its layers, each behind those ahead of it in the branch.
- Where stages have tensor-parallel degrees of their own, figures of other stages are the least of all, and
  the devices together do the work of each layer at the degree where it takes least of them.
- Cuts, for one stage a device: a dynamic programme over all cuts for the least longest stage, where a run of
  layers on stage s takes its head, its work for all micro-batches, its memory (a device's room times the time
  is at least what its activations take up), and its own all-reduce and update.

      head of s |  micro-batches × work of its layers  | all-reduce, update      <= step

Recomputation counts where a run does not fit without it. Spans are rounded up to whole steps when an order is
searched, which only adds to a step. Checked in tests/tessel/planning/candidates/test_bounds.py against
exhaustive search over all layouts, cuts and orders of small models.

Source: the bound by cuts is the dynamic programme of PipeDream (SOSP 2019) with ramps and memory added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from tessel.planning.candidates.bound_terms import BoundTerms, terms_of
from tessel.planning.candidates.families import Family
from tessel.planning.costs.stage_costs import FloatArray, LayerSums
from tessel.planning.cutting.cut import Section
from tessel.planning.cutting.run_prices import RunPrices
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamilyBound:
    """What is known of a family before any cut.

    Attributes:
        step_us: no step of the family is shorter; infinite where nothing of it fits.
        reason: why nothing of it fits, empty where something may.
    """

    step_us: float
    reason: str = ""


@dataclass(slots=True, eq=False)
class FamilyBounds:
    """Bounds of the families of one plan; those of the same degrees share tables.

    Attributes:
        options: whether stages may recompute.
    """

    job: Job
    options: PlanOptions
    _terms: dict[object, BoundTerms] = field(default_factory=dict)

    def quick(self, family: Family, sums: LayerSums, prices: RunPrices) -> FamilyBound:
        """Return a step time that no layout of a family can beat, without looking at cuts; O(layers).

        Args:
            family: degrees, micro-batch size and placement.
        """
        terms = self._terms_of(family, sums)
        reason = _why_nothing_fits(terms, prices, self.options)
        if reason:
            return FamilyBound(step_us=np.inf, reason=reason)
        return FamilyBound(step_us=self.of_every_cut(family, sums))

    def of_every_cut(self, family: Family, sums: LayerSums, *, any_order: bool = False) -> float:
        """Return a step time that no layout of a family can beat, whether or not it keeps memory; O(layers).

        Args:
            family: degrees, micro-batch size and placement.
            any_order: whether the bound is to hold for every order of its devices; they then stand by speed,
                the fastest first, so that groups are as fast as they can be.
        """
        terms = self._terms_of(family, sums)
        if family.placement == "mshape":
            return max(_divided_ends(terms), _path(family, terms))
        if family.branches is None:
            sharing = _sharing(family, terms, any_order=any_order)
            return max(sharing, _one_layer(terms), _path(family, terms))
        if not any_order:
            return _branched(family, terms)
        first, second, _ = family.sections(sums.num_layers)
        return max(_path_of(branch, terms) for branch in (first, second))

    def by_cuts(self, family: Family, sums: LayerSums, prices: Sequence[RunPrices]) -> FamilyBound:
        """Return the bound over all cuts of a family with one stage a device; O(stages × layers²) in arrays.

        Of other families it is 0, as nothing more is known of them.

        Args:
            family: degrees, micro-batch size and placement.
            prices: of its runs of layers: of each stage, or one for all.
        """
        if family.placement != "vshape":
            return FamilyBound(step_us=0.0)
        every = prices if len(prices) > 1 else tuple(prices) * family.pipeline
        own = dict(sums.of_degrees)
        stages = [
            (own.get(degree, sums), each) for degree, each in zip(family.tensor_degrees, every, strict=True)
        ]
        step_us = _by_cuts(self._terms_of(family, sums), stages, self.options)
        reason = "" if np.isfinite(step_us) else "no cut keeps the memory of every device"
        return FamilyBound(step_us=step_us, reason=reason)

    def of_every_degree(self, family: Family, sums: LayerSums) -> float:
        """Return a step time that no number of stages, degrees and order of devices can beat; O(layers).

        Args:
            family: micro-batches, replicas and parts of a sequence.
            sums: the least of all degrees that stages may have.
        """
        cluster = self.job.cluster
        speeds = [cluster.speed_of(device) for device in range(cluster.devices)]
        # Of the exchange and the update at the end nothing is known, and any device may be the fastest.
        job = replace(
            self.job,
            cluster=msgspec.structs.replace(cluster, device_speed=(max(speeds),) * cluster.devices),
            optimizer=msgspec.structs.replace(self.job.optimizer, gradient_ratio=0.0, updates=False),
        )
        splits = sums.is_splittable and self.options.split_backward is not False
        two = replace(family, pipeline=2, num_stages=2, tensor_parallel=1, split_backward=splits)
        terms = terms_of(two, 1, sums, job, self.options)
        shared = terms.micro_batches * terms.shared_us * family.data_parallel * family.context_parallel
        return max(shared / sum(speeds), _one_layer(terms), _path(two, terms))

    def _terms_of(self, family: Family, sums: LayerSums) -> BoundTerms:
        copies = 2 if family.placement == "xshape" else 1
        degrees = replace(
            family,
            placement="vshape",
            num_stages=family.pipeline,
            stage_devices=(),
            branch_devices=0,
            branches=None,
            tower=msgspec.UNSET,
            tower_stages=0,
        )
        key = degrees, copies, family.table_key
        if key not in self._terms:
            self._terms[key] = terms_of(degrees, copies, sums, self.job, self.options)
        return self._terms[key]


def _why_nothing_fits(terms: BoundTerms, prices: RunPrices, options: PlanOptions) -> str:
    """Return why the family cannot fit, by all devices together and by the largest layer; or nothing."""
    if terms.limits is None:
        return ""
    layers = np.arange(terms.sums.num_layers)
    alone = prices.static[layers, layers + 1] + prices.saved[layers, layers + 1]
    if options.recompute:
        alone = np.minimum(
            alone, prices.recomputed_static[layers, layers + 1] + prices.kept[layers, layers + 1]
        )
    ample = max(terms.limits)
    gib = 2.0**30
    if alone.max() > ample:
        layer = int(alone.argmax())
        return f"layer {layer} alone needs {alone[layer] / gib:.2f} GiB of the {ample / gib:.2f} of a device"
    shared = sum(tensor.num_bytes * (len(tensor.layers) - 1) for tensor in terms.sums.tied)
    trained_shared = sum(tensor.trained_bytes * (len(tensor.layers) - 1) for tensor in terms.sums.tied)
    needed = terms.copies * terms.shares.held(
        float(terms.sums.weights[-1]) - shared,
        float(terms.sums.trained[-1]) - trained_shared,
        float(terms.sums.expert_weights[-1]),
        float(terms.sums.expert_trained[-1]),
    )
    if needed > sum(terms.limits):
        return (
            f"weights, gradients and optimizer state need {needed / gib:.2f} GiB of the "
            f"{sum(terms.limits) / gib:.2f} of the pipeline's devices"
        )
    return ""


def _ramps(family: Family, terms: BoundTerms) -> tuple[FloatArray, FloatArray]:
    """Return by device the least time ahead of its first block, and behind its last one where others wait."""
    first_stage = np.full(family.pipeline, family.num_stages)
    chain = family.chain
    for stage, device in enumerate(chain):
        for held_by in (device, family.pipeline - 1 - device)[: terms.copies]:
            first_stage[held_by] = min(first_stage[held_by], stage)
    hops = _hops_before(chain)[first_stage] * terms.hop_us
    fastest = terms.speeds.max()
    heads = terms.sums.forward[first_stage] / fastest + hops
    if terms.sums.has_backward:
        return heads, terms.gradients[first_stage] / fastest + hops
    if terms.copies > 1:
        return heads, 0.0 * hops
    last_stage = np.zeros(family.pipeline, dtype=np.int64)
    for stage, device in enumerate(chain):
        last_stage[device] = max(last_stage[device], stage)
    hops_ahead = _hops_before(chain)
    after = terms.sums.num_layers - (family.num_stages - 1 - last_stage)
    tails = (terms.sums.forward[-1] - terms.sums.forward[after]) / fastest
    return heads, tails + (hops_ahead[-1] - hops_ahead[last_stage]) * terms.hop_us


def _hops_before(chain: Sequence[int]) -> FloatArray:
    """Return how often the chain has changed devices before each stage; a `zbv` turns round on one."""
    return np.concatenate(([0.0], np.cumsum(np.diff(np.array(chain)) != 0)))


def _last_synchronisation(terms: BoundTerms) -> float:
    """Return the least time from a stage's last weight gradient to the end of its all-reduce."""
    return float(terms.exchange_us(np.diff(terms.sums.reduced), np.diff(terms.sums.expert_reduced)).min())


def _sharing(family: Family, terms: BoundTerms, *, any_order: bool = False) -> float:
    """Return the least step by the work of all devices.

    Args:
        family: the way to use them.
        terms: of the family.
        any_order: whether the fastest device may stand wherever most time is idle; the least sum of products
            is that of one list ascending and the other descending.
    """
    heads, tails = _ramps(family, terms)
    work = terms.copies * max(
        float(terms.work_us(terms.times[-1], terms.sums.forward[-1])),
        terms.micro_batches * terms.weighed_us,
    )
    own_end = _last_synchronisation(terms)
    total_speed = terms.speeds.sum()

    def idle(us: FloatArray) -> float:
        return float(
            (np.sort(terms.speeds)[::-1] * np.sort(us)).sum() if any_order else (terms.speeds * us).sum()
        )

    # The update is a device's own, at the profile's speed where all are alike.
    alone = (work + idle(heads + own_end) + terms.update_us * terms.speeds[0]) / total_speed
    ahead_and_behind = heads + tails + own_end if terms.is_waited_for else heads + own_end
    if terms.shared_us and not any_order:
        weights = terms.widths * terms.speeds
        busy = terms.micro_batches * terms.shared_us + (weights * ahead_and_behind).sum()
        alone = max(alone, busy / weights.sum())
    if not terms.is_waited_for:
        return float(alone)
    return float(max(alone, (work + idle(ahead_and_behind)) / total_speed))


def _one_layer(terms: BoundTerms) -> float:
    fastest = terms.speeds.max()
    work = terms.work_us(np.diff(terms.times), np.diff(terms.sums.forward)) / fastest
    work = np.maximum(work, terms.micro_batches * np.diff(terms.copies_us))
    behind: FloatArray | float = 0.0
    if terms.ends_with_gradient:
        behind = terms.gradients[:-1] / fastest
    elif terms.is_waited_for:
        behind = (terms.sums.forward[-1] - terms.sums.forward[1:]) / fastest
    return float((terms.sums.forward[:-1] / fastest + work + behind).max()) + _last_synchronisation(terms)


def _divided_ends(terms: BoundTerms) -> float:
    """Return the least step where each device runs its part of first and last layer beside others' share.

    A device runs a layer between, too, and all of them the sum.
    """
    times, forward = np.diff(terms.times), np.diff(terms.sums.forward)
    ends = terms.micro_batches * (times[0] + times[-1]) / terms.speeds.min()
    shared = terms.work_us(times[1:-1].sum(), forward[1:-1].sum()) / terms.speeds.sum()
    longest = terms.work_us(times[1:-1], forward[1:-1]).max() / terms.speeds.max()
    return float(ends + max(shared, longest)) + _last_synchronisation(terms)


def _branched(family: Family, terms: BoundTerms) -> float:
    """Return the least step of two branches on devices of their own, and what joins them divided over all.

    On a device of a branch the first block is the branch's, and, of joint backwards, the last one too.
    """
    first, second, joined = family.sections(terms.sums.num_layers)
    forward, fastest = terms.sums.forward, terms.speeds.max()
    gradients = terms.gradients if terms.ends_with_gradient else 0.0 * terms.gradients
    slowest = float(terms.speeds.min())
    together = float(terms.times[-1] - terms.times[joined.first]) / slowest
    there_and_back = forward + terms.gradients
    beyond = float(there_and_back[-1] - there_and_back[joined.first]) / slowest
    ahead = 0
    longest = 0.0
    for branch in (first, second):
        speeds = terms.speeds[ahead : ahead + branch.num_stages]
        ahead += branch.num_stages
        layers = branch.first + np.arange(branch.num_stages)
        ways = 2.0 if terms.ends_with_gradient else 1.0
        ramps = (forward[layers] - forward[branch.first]) + (gradients[layers] - gradients[branch.first])
        idle = ramps / fastest + ways * terms.hop_us * np.arange(branch.num_stages)
        times, own_forward = (
            np.diff(each[branch.first : branch.after + 1]) for each in (terms.times, forward)
        )
        work = terms.work_us(times, own_forward)
        every = float(terms.work_us(times.sum(), own_forward.sum()))
        shared = float((every + (speeds * idle).sum()) / speeds.sum())
        own = terms.micro_batches * together + max(shared, float(work.max() / speeds.max()))
        longest = max(longest, own, _path_of(branch, terms) + beyond)
    return longest + _last_synchronisation(terms)


def _path_of(branch: Section, terms: BoundTerms) -> float:
    """Return the least time of a micro-batch through a branch and back, with the hops up to what joins it."""
    ways = 2 if terms.sums.has_backward else 1
    sums = terms.sums.forward + terms.gradients
    path = float(sums[branch.after] - sums[branch.first]) / float(terms.speeds.max())
    return path + ways * terms.hop_us * branch.num_stages


def _path(family: Family, terms: BoundTerms) -> float:
    hops = terms.hop_us * float(_hops_before(family.chain)[-1])
    ways = 2 if terms.sums.has_backward else 1
    path = (terms.sums.forward[-1] + terms.gradients[-1]) / terms.speeds.max()
    return float(path + ways * hops) + _last_synchronisation(terms)


def _by_cuts(terms: BoundTerms, stages: Sequence[tuple[LayerSums, RunPrices]], options: PlanOptions) -> float:
    """Return the least, over all cuts into one stage a device, of the longest stage's bound."""
    size = terms.sums.num_layers + 1
    best = np.full(size, np.inf)
    best[0] = 0.0
    num_stages = len(terms.speeds)
    for stage, speed in enumerate(terms.speeds):
        limit = None if terms.limits is None else terms.limits[stage]
        cost = _stage_bound(terms, *stages[stage], options, stage, num_stages, float(speed), limit)
        best = np.maximum(best[:, None], cost).min(axis=0)
    return float(best[-1])


def _stage_bound(
    terms: BoundTerms,
    own: LayerSums,
    prices: RunPrices,
    options: PlanOptions,
    stage: int,
    num_stages: int,
    speed: float,
    limit: int | None,
) -> FloatArray:
    """Return what a step takes at least if a stage is layers i..j-1; shape (num_layers + 1,) twice."""
    sums = terms.sums
    fastest = terms.speeds.max()
    ahead = (sums.forward / fastest + stage * terms.hop_us)[:, None]
    behind = (terms.gradients / fastest + stage * terms.hop_us)[:, None]
    if not sums.has_backward:
        stages_after = num_stages - 1 - stage
        behind = ((sums.forward[-1] - sums.forward) / fastest + stages_after * terms.hop_us)[None, :]
    # From the end of a forward to the start of its backward, through all later stages.
    beyond = (
        (sums.forward[-1] - sums.forward + terms.gradients[-1] - terms.gradients) / fastest
        + 2 * (num_stages - 1 - stage) * terms.hop_us
    )[None, :]
    own_end = terms.exchange_us(
        *(each[None, :] - each[:, None] for each in (own.reduced, own.expert_reduced))
    )
    forward = own.forward[None, :] - own.forward[:, None]
    if terms.update_us:
        updates = terms.updates
        own_end = own_end + terms.update_us * (updates[None, :] - updates[:, None]) / updates[-1]
    first = _last_synchronisation(terms)

    def bound(extra: FloatArray | float, static: FloatArray, held: FloatArray) -> FloatArray:
        work = terms.work_us(prices.time + extra, forward) / speed
        least: FloatArray = ahead + work + own_end
        if terms.is_waited_for:
            least = np.maximum(least, ahead + work + behind + first)
        if limit is None:
            return least
        room = limit - static
        if not sums.has_backward:
            kept: FloatArray = np.where(terms.micro_batches * held <= room, least, np.inf)
            return kept
        alive = (prices.time + extra) / speed + beyond
        if not terms.ends_with_gradient:
            alive = forward / speed + beyond
        fits = (held <= room) & np.isfinite(alive)
        by_room = np.zeros_like(room)
        np.divide(terms.micro_batches * held * np.where(fits, alive, 0.0), room, out=by_room, where=room > 0)
        found: FloatArray = np.where(fits, np.maximum(least, ahead + by_room), np.inf)
        return found

    without = bound(0.0, prices.static, prices.saved)
    if limit is None or not options.recompute or not sums.has_backward:
        return without
    return np.minimum(without, bound(prices.recompute, prices.recomputed_static, prices.kept))

"""Families whose stages have tensor-parallel degrees of their own, and what of all such ways is not tried.

Stage s has D × C × T_s devices: replicas and parts of a sequence are the same throughout, so that a
micro-batch stays whole. Of few ways to share out the devices each is a family; of many those with two
neighbouring degrees, the larger on the first or on the last stages, and the search moves degrees of the best
(`moved_degrees`). A bound for all of them, tried or not, takes each layer at the degree where it takes least
(`FamilyBounds.of_every_degree`). Checked in
tests/tessel/planning/test_own_degrees.py against all cuts and degrees of small models.

Source: Zheng et al., Alpa (OSDI 2022), section 5, whose stages have meshes of any shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from tessel.errors import ScheduleError
from tessel.planning.candidates.families import Family, variants, within_nodes
from tessel.planning.cluster import Cluster
from tessel.planning.costs.stage_costs import TableKey
from tessel.planning.options import PlanOptions
from tessel.profiles.profile import Profile

MAX_ASSIGNMENTS = 32
"""Ways to share out the devices of one pipeline among its stages up to which each is a family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stem:
    """What ways to use the devices have in common that differ in cuts and in the degrees of stages alone.

    Attributes:
        family: one of them, of a single stage.
        degrees: that stages may have, ascending.
        devices: of one part of a sequence in one replica, which the degrees of its stages add up to.
        families: those of the ways that are tried.
        is_every: whether these are all ways, in every order of unequal devices.
    """

    family: Family
    degrees: tuple[int, ...]
    devices: int
    families: tuple[Family, ...] = ()
    is_every: bool = True

    @property
    def keys(self) -> tuple[TableKey, ...]:
        """Which figures of the profile each degree runs with."""
        return tuple(self.family.table_key._replace(tensor_parallel=each) for each in self.degrees)

    def is_of(self, family: Family) -> bool:
        """Whether a family differs from others of the stem in degrees, cuts and halves of backwards alone."""
        own, key = self.family, family.table_key._replace(tensor_parallel=1)
        return (family.data_parallel, key) == (own.data_parallel, own.table_key)

    def of(self, way: tuple[int, ...]) -> Family:
        """Return the family whose stages have these degrees, which differ."""
        return replace(
            self.family,
            pipeline=len(way),
            num_stages=len(way),
            tensor_parallel=max(way),
            stage_tensor_parallel=way,
        )


def stems(profile: Profile, cluster: Cluster, *, global_batch: int, options: PlanOptions) -> tuple[Stem, ...]:
    """Return the families whose stages differ in their degrees, by what they have in common.

    Args:
        profile: micro-batch sizes and degrees are those that it has.
        cluster: how many devices there are; each family uses all of them.
        global_batch: samples of a training step.
        options: what may be chosen from; there are no such families unless it says so.

    Raises:
        ScheduleError: degrees were asked for that the profile does not have.
    """
    if not isinstance(options.tensor_parallel, tuple) and options.tensor_parallel != "own":
        return ()
    found = (
        _with_families(stem, profile, cluster, options)
        for stem in _stems(profile, cluster, global_batch, options)
    )
    return tuple(stem for stem in found if stem.families or not stem.is_every)


def _with_families(stem: Stem, profile: Profile, cluster: Cluster, options: PlanOptions) -> Stem:
    """Return a stem with the families of the ways that are tried."""
    given = options.tensor_parallel
    found: list[Family] = []
    is_every = not cluster.is_uneven
    for pipeline in range(2, min(stem.devices, len(profile.layers)) + 1):
        if options.pipeline not in (None, pipeline):
            continue
        if isinstance(given, tuple):
            ways = [given] if (len(given), sum(given)) == (pipeline, stem.devices) else []
        elif _are_few(stem.devices, pipeline, stem.degrees):
            ways = list(_ways(stem.devices, pipeline, stem.degrees))
        else:
            ways, is_every = list(_in_two_groups(stem.devices, pipeline, stem.degrees)), False
        for way in ways:
            if len(set(way)) > 1:
                found += variants(stem.of(way), profile, cluster, options)
    return replace(stem, families=tuple(found), is_every=is_every)


def _stems(profile: Profile, cluster: Cluster, global_batch: int, options: PlanOptions) -> Iterator[Stem]:
    """Yield the stems that options, devices, profile and batch allow."""
    if "vshape" not in options.placements or options.chunks not in (None, 1) or len(profile.layers) < 2:
        return
    known: dict[TableKey, list[int]] = {}
    for degrees in (table.degrees for table in profile.tables):
        if options.allows_but_for_tensor(degrees):
            known.setdefault(TableKey(**degrees._replace(tensor_parallel=1)._asdict()), []).append(
                degrees.tensor_parallel
            )
    given = options.tensor_parallel if isinstance(options.tensor_parallel, tuple) else ()
    usable = {key: own for key, own in known.items() if len(own) > 1 and set(given) <= set(own)}
    if given and not usable:
        has = ", ".join(map(str, sorted({each for own in known.values() for each in own})))
        raise ScheduleError(
            f"stages are to have tensor-parallel degrees {','.join(map(str, given))}, and {profile.name} has "
            f"rows of {has or 'none'} with the micro-batch size and other degrees given; add the other rows"
        )
    for key, own in sorted(usable.items()):
        for data_parallel in range(1, cluster.devices + 1):
            devices, rest = divmod(cluster.devices, data_parallel * key.context_parallel)
            micro_batches, left = divmod(global_batch, data_parallel * key.micro_batch)
            if (
                rest
                or left
                or not micro_batches
                or options.data_parallel not in (None, data_parallel)
                or data_parallel * key.context_parallel % key.expert_parallel
            ):
                continue
            family = Family(
                data_parallel=data_parallel,
                pipeline=1,
                tensor_parallel=1,
                context_parallel=key.context_parallel,
                expert_parallel=key.expert_parallel,
                micro_batch=key.micro_batch,
                micro_batches=micro_batches,
                placement="vshape",
                num_stages=1,
                split_backward=False,
            )
            usable_here = tuple(sorted(set(given) or {each for each in own if each < devices}))
            if len(usable_here) > 1:
                yield Stem(family=family, degrees=usable_here, devices=devices)


def _are_few(devices: int, pipeline: int, degrees: tuple[int, ...]) -> bool:
    """Whether all ways are tried; stages in another order are another way, so that many stages have many."""
    return pipeline <= MAX_ASSIGNMENTS and num_ways(devices, pipeline, degrees) <= MAX_ASSIGNMENTS


@cache
def num_ways(devices: int, pipeline: int, degrees: tuple[int, ...]) -> int:
    """Return in how many ways so many stages have degrees that add up to the devices."""
    if pipeline == 0 or devices < pipeline * degrees[0] or devices > pipeline * degrees[-1]:
        return int(devices == pipeline == 0)
    return sum(num_ways(devices - each, pipeline - 1, degrees) for each in degrees)


def _ways(devices: int, pipeline: int, degrees: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield these ways."""
    if pipeline == 0:
        yield ()
        return
    for each in degrees:
        if num_ways(devices - each, pipeline - 1, degrees):
            for rest in _ways(devices - each, pipeline - 1, degrees):
                yield (each, *rest)


def _in_two_groups(devices: int, pipeline: int, degrees: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the ways that have two neighbouring degrees, the larger on the first or on the last stages."""
    for less, more in pairwise(degrees):
        large, rest = divmod(devices - pipeline * less, more - less)
        if not rest and 0 < large < pipeline:
            small = pipeline - large
            yield (*(more,) * large, *(less,) * small)
            yield (*(less,) * small, *(more,) * large)


def moved_degrees(family: Family, degrees: Sequence[int], cluster: Cluster) -> Iterator[Family]:
    """Yield the families in which two stages share their devices in another way.

    Args:
        family: one stage a device of the pipeline.
        degrees: that stages may have.
        cluster: the devices, which stand as they do in the family where they are unequal.
    """
    own = family.tensor_degrees
    for one in range(family.pipeline):
        for other in range(one + 1, family.pipeline):
            for degree in degrees:
                rest = own[one] + own[other] - degree
                if degree == own[one] or rest not in degrees:
                    continue
                way = (*own[:one], degree, *own[one + 1 : other], rest, *own[other + 1 :])
                moved = replace(
                    family,
                    tensor_parallel=max(way),
                    stage_tensor_parallel=way if len(set(way)) > 1 else (),
                )
                order = family.device_order if cluster.is_uneven else within_nodes(cluster, moved.widths)
                yield replace(moved, device_order=order)

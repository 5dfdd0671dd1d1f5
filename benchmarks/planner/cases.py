"""Cases: a profile on so many devices under a memory limit, its plan, and each hand-written schedule."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from tessel.errors import ScheduleError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanResult
from tessel.profiles.profile import Profile
from tessel.search import SearchBudget

LINK = Link(bytes_per_s=25e9, latency_us=10.0)
"""Hops and collectives of the cases: 200 Gbit/s."""

HEAVY_HEAD = 1.5
"""Forwards of a block that a heavy head's forward takes at least."""

ROUNDING = 1e-9


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was found in one case.

    Attributes:
        profile: its name.
        devices: of the pipeline.
        share: the memory limit as a part of what 1F1B takes without limits; None for no limit.
        work: units of work of the plan.
        head: forwards of a block that the head's forward takes.
        memory_bytes: the limit; None for none.
        step_us: of the plan.
        bound_us: no plan is faster.
        order: placement and order of the plan.
        baselines_us: steps of the hand-written schedules that fit, by name.
        processor_s: time of the processor that planning took.
        failure: why there is no plan; empty where there is one.
    """

    profile: str
    devices: int
    share: float | None
    work: float
    head: float
    memory_bytes: int | None = None
    step_us: float = 0.0
    bound_us: float = 0.0
    order: str = ""
    baselines_us: dict[str, float] = {}
    processor_s: float = 0.0
    failure: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from other rows."""
        return self.profile, self.devices, self.share, self.work

    @property
    def is_hard(self) -> bool:
        """Whether less memory is there than 1F1B takes, or the head is heavy."""
        return self.head >= HEAVY_HEAD or (self.share is not None and self.share < 1)

    def ratio(self, name: str) -> float | None:
        """Return a schedule's step over the plan's: above 1, the plan is faster. None where it does not fit.

        Args:
            name: of a baseline; `interleaved` is the best of all numbers of chunks, `best` of all baselines.
        """
        known = [us for each, us in self.baselines_us.items() if name == "best" or each.startswith(name)]
        return min(known) / self.step_us if known else None


def run_cases(
    profiles: Iterable[Profile],
    *,
    devices: Sequence[int],
    shares: Sequence[float | None],
    micro_batches: int,
    work: float,
    known: Iterable[Row] = (),
) -> Iterator[Row]:
    """Yield a row for each case that is not known yet.

    Args:
        profiles: of one micro-batch size each.
        devices: pipelines over so many devices.
        shares: memory limits as parts of what the fullest device holds in 1F1B with its best cut, all
            activations kept; None for no limit.
        micro_batches: of a step, for each device.
        work: units of work of each plan.
        known: rows of an earlier run.
    """
    done = {row.key for row in known}
    for profile in profiles:
        for count in devices:
            wanted = [share for share in shares if (profile.name, count, share, work) not in done]
            if wanted:
                samples = micro_batches * count * profile.micro_batches[0]
                yield from _rows(profile, count, wanted, samples, work)


def _rows(
    profile: Profile, devices: int, shares: Sequence[float | None], samples: int, work: float
) -> Iterator[Row]:
    costs = profile.tables[0].costs
    head = costs[-1].forward_us / costs[len(costs) // 2].forward_us
    options = PlanOptions(what_if=False, pipeline=devices)
    needed = _bytes_of_1f1b(profile, devices, options, samples)
    for share in shares:
        row = Row(
            profile=profile.name,
            devices=devices,
            share=share,
            work=work,
            head=head,
            memory_bytes=None if share is None else int(share * needed),
        )
        began = time.process_time()
        try:
            found = find_plan(
                profile,
                Job(
                    optimizer=OPTIMIZERS["adam-mixed"],
                    cluster=cluster_of(devices, row.memory_bytes),
                    global_batch=samples,
                ),
                options=options,
                budget=SearchBudget(work_limit=work),
            )
        except ScheduleError as error:
            yield msgspec.structs.replace(row, failure=str(error))
            continue
        yield msgspec.structs.replace(
            row,
            step_us=found.best.estimate.step_us,
            bound_us=found.lower_bound_us,
            order=f"{found.best.layout.placement} {found.best.order}",
            baselines_us=_steps_us(found),
            processor_s=time.process_time() - began,
        )


def _bytes_of_1f1b(profile: Profile, devices: int, options: PlanOptions, samples: int) -> int:
    """Return what the fullest device of 1F1B with its best cut holds, nothing recomputed."""
    found = find_plan(
        profile,
        Job(optimizer=OPTIMIZERS["adam-mixed"], cluster=cluster_of(devices, None), global_batch=samples),
        options=replace(options, placements=("vshape",), split_backward=False),
        budget=SearchBudget(work_limit=0.5),
    )
    planned = next(row.planned for row in found.baselines if row.name == "1f1b")
    assert planned is not None  # without limits 1F1B always has a step
    return max(planned.estimate.memory_bytes)


def cluster_of(devices: int, memory_bytes: int | None) -> Cluster:
    """Return equal devices."""
    return Cluster(devices=devices, hop=LINK, collective=LINK, memory_bytes=memory_bytes)


def _steps_us(found: PlanResult) -> dict[str, float]:
    return {row.name: row.planned.estimate.step_us for row in found.baselines if row.planned is not None}


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, not a number of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan

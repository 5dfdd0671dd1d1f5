"""Traces of steps made up: workers that follow 1F1B, timed event by event, written as rows.

    python -m tests.samples.batches.trace_samples > examples/checking/steps.csv

Nothing here is shared with the replay: workers look for the next operation that has its input until none is
left.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HEADER = "dp_rank,stage,step,optype,start_ts,duration,seq_id,mb_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A made-up job.

    Attributes:
        steps: how many.
        replicas: how many.
        stages: how many, one a worker.
        micro_batches: of a replica.
        spread: of lengths: 0 for equal ones.
        slow: replica and stage of a worker that takes `factor` times as long; None for none.
        factor: see `slow`.
        lag_s: seconds of a transfer.
        seed: of what is random.
    """

    steps: int = 3
    replicas: int = 2
    stages: int = 2
    micro_batches: int = 4
    spread: float = 0.0
    slow: tuple[int, int] | None = None
    factor: float = 2.0
    lag_s: float = 0.001
    seed: int = 0


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the order of a worker."""
    warm_up = min(stages - stage, micro_batches)
    order = [("forward", each) for each in range(warm_up)]
    for each in range(micro_batches):
        order.append(("backward", each))
        if each + warm_up < micro_batches:
            order.append(("forward", each + warm_up))
    return order


def durations(job: Job) -> npt.NDArray[np.float64]:
    """Return seconds of a forward; float64, shape (steps, replicas, micro-batches, stages)."""
    rng = np.random.default_rng(job.seed)
    lengths = np.exp(job.spread * rng.standard_normal((job.steps, job.replicas, job.micro_batches)))
    found = 0.1 * np.repeat(lengths[..., None], job.stages, axis=3)
    if job.slow is not None:
        replica, stage = job.slow
        found[:, replica, :, stage] *= job.factor
    return np.round(found, 6)


def run(job: Job, forward_s: npt.NDArray[np.float64]) -> dict[tuple[str, int, int], tuple[float, float]]:
    """Return start and end of (kind, stage, micro-batch) in one step of one replica.

    Args:
        job: whose orders and transfers count.
        forward_s: by micro-batch and stage; a backward takes twice as long.
    """
    orders = [one_f_one_b(stage, job.stages, job.micro_batches) for stage in range(job.stages)]
    free = [0.0] * job.stages
    done: dict[tuple[str, int, int], tuple[float, float]] = {}
    while any(orders):
        for stage, order in enumerate(orders):
            if not order:
                continue
            kind, micro_batch = order[0]
            ready = _ready(job, done, kind, stage, micro_batch)
            if ready is None:
                continue
            begin = max(free[stage], ready)
            free[stage] = begin + float(forward_s[micro_batch, stage]) * (1 if kind == "forward" else 2)
            done[kind, stage, micro_batch] = (begin, free[stage])
            order.pop(0)
    return done


def _ready(
    job: Job,
    done: dict[tuple[str, int, int], tuple[float, float]],
    kind: str,
    stage: int,
    micro_batch: int,
) -> float | None:
    if kind == "forward":
        source = None if stage == 0 else ("forward", stage - 1, micro_batch)
    elif stage == job.stages - 1:
        source = ("forward", stage, micro_batch)
    else:
        source = ("backward", stage + 1, micro_batch)
    if source is None:
        return 0.0
    if source not in done:
        return None
    return done[source][1] + (job.lag_s if source[1] != stage else 0.0)


def rows_of(job: Job) -> list[str]:
    """Return the rows of a trace, the header first."""
    forward_s = durations(job)
    rows = [HEADER]
    for step in range(job.steps):
        for replica in range(job.replicas):
            done = run(job, forward_s[step, replica])
            base = 100.0 * step + 1.0
            last = max(end for _, end in done.values())
            seen: dict[tuple[str, int], int] = {}

            def add(optype: str, stage: int, start: float, end: float, micro_batch: int) -> None:
                number = seen.get((optype, stage), 0)  # noqa: B023  # called within this turn alone
                seen[optype, stage] = number + 1  # noqa: B023
                rows.append(
                    f"{replica},{stage},{10 + step},{optype},{base + start:.6f},{end - start:.6f},"  # noqa: B023
                    f"{number},{micro_batch}"
                )

            for (kind, stage, micro_batch), (start, end) in sorted(done.items(), key=lambda item: item[1][0]):
                add(f"{kind}-compute", stage, start, end, micro_batch)
                target = stage + 1 if kind == "forward" else stage - 1
                if 0 <= target < job.stages:
                    add(f"{kind}-send", stage, end, end + job.lag_s, -1)
                    add(f"{kind}-recv", target, max(0.0, end - 0.05), end + job.lag_s, -1)
            for stage in range(job.stages):
                add("optimizer", stage, last + 0.01, last + 0.03, -1)
    return rows


if __name__ == "__main__":
    sys.stdout.write("\n".join(rows_of(Job(spread=0.4, slow=(1, 1), factor=1.5, micro_batches=6))) + "\n")

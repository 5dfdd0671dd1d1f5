"""Replays tuning over trials that were measured before: of those of a kernel, each contestant chooses a batch
at a time, as if they were not measured yet.

It measures nothing, so that the form of the model of schedules is chosen with it. It leaves out the evolution
of schedules, and whose scores steer it; and where earlier runs left many good schedules, as they do where one
of them converged, choosing at random does better here than in tuning. Contestants:

- `random`: any.
- `own trials`: at random first, then by the model of the kernel's own trials.
- `one by one`: by the model of all kernels' trials, each schedule by its own score.
- `records`: the same, but of schedules that are alike all but the best get less, as in tuning.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cost_model.schedule_batch import PENALTY, ScheduleBatch
from cost_model.schedule_model import MIN_TRIALS, Trials, rows_of, train_schedule_model

BATCH = 16
_ROUNDS = 3

_CONTESTANTS = ("random", "own trials", "one by one", "records")


def replay_table(
    pools: Mapping[str, Trials], known: Mapping[str, Trials], seeds: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a table of best chosen over best there is, medians over seeds.

    Args:
        pools: of each kernel, the trials to choose among.
        known: of each kernel, the trials that teach the choice on the others.
        seeds: of random choices, and of the model.
    """
    counts = [BATCH * number for number in range(1, _ROUNDS + 1)]
    yield "| kernel | trials | chosen by | " + " | ".join(f"after {n}" for n in counts) + " |"
    yield "|---|---|---|" + "---|" * len(counts)
    curves: dict[str, list[list[float]]] = {contestant: [] for contestant in _CONTESTANTS}
    for name, pool in pools.items():
        others = [trials for other, trials in known.items() if other != name]
        for contestant in _CONTESTANTS:
            runs = [list(replay(pool, others, contestant, seed)) for seed in seeds]
            curve = [statistics.median(each) for each in zip(*runs, strict=True)]
            curves[contestant].append(curve)
            cells = " | ".join(f"{ratio:.2f}" for ratio in curve)
            yield f"| {name} | {len(pool.latencies_us)} | {contestant} | {cells} |"
    for contestant, found in curves.items():
        means = (statistics.geometric_mean(column) for column in zip(*found, strict=True))
        cells = " | ".join(f"**{mean:.2f}**" for mean in means)
        yield f"| geometric mean of {len(found)} | | {contestant} | {cells} |"


def replay(pool: Trials, others: Sequence[Trials], contestant: str, seed: int) -> Iterator[float]:
    """Yield best of what was chosen over best of all, after each batch.

    Args:
        pool: trials to choose among.
        others: trials of other kernels.
        contestant: who chooses.
        seed: of random choices, and of the model.
    """
    rng = np.random.default_rng(seed)
    known = others if contestant in ("one by one", "records") else []
    penalty = PENALTY if contestant == "records" else 0.0
    chosen: list[int] = []
    for _ in range(_ROUNDS):
        rest = [index for index in range(len(pool.latencies_us)) if index not in chosen]
        tasks = [*known, part_of(pool, chosen)]
        if contestant == "random" or sum(len(each.latencies_us) for each in tasks) < MIN_TRIALS:
            scores = rng.random(len(rest))
        else:
            rows = rows_of([pool.features[index] for index in rest])
            model = train_schedule_model(tasks, current=pool.task, seed=seed)
            batch = ScheduleBatch(size=BATCH, penalty=penalty)
            scores = batch.lower([str(index) for index in rest], rows, model.score_rows(rows))
        chosen += [rest[index] for index in np.argsort(-scores, kind="stable")[:BATCH]]
        yield min(pool.latencies_us[index] for index in chosen) / min(pool.latencies_us)


def part_of(trials: Trials, indices: Sequence[int]) -> Trials:
    """Return some of a kernel's trials."""
    return Trials(
        trials.task,
        tuple(trials.features[index] for index in indices),
        tuple(trials.latencies_us[index] for index in indices),
    )


def merged(found: Sequence[Trials]) -> Trials:
    """Return the trials of one kernel by several runs as one."""
    return Trials(
        found[0].task,
        tuple(each for trials in found for each in trials.features),
        tuple(each for trials in found for each in trials.latencies_us),
    )

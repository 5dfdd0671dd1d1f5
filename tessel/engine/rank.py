"""One rank as a process of its own: build its stages, run each schedule, write what happened.

Started by `tessel.engine.launch` with the job's file and its rank. Stages come from a provider, a name
`module:function` that takes the job's specification and stage numbers and returns programs. The process ends
with its parent: its standard input is a pipe that nobody writes to, and its end is the parent's.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from tessel.engine.actions import RankActions, actions_from_csv
from tessel.engine.errors import EngineError
from tessel.engine.executor import Event, Executor
from tessel.engine.program import StageProgram

WARM_UP_STEPS = 1
"""Steps that are run before those that count: the first one connects peers and touches memory."""


class RunSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One schedule to run: its name and every rank's actions, as lines of cells."""

    name: str
    actions: tuple[str, ...]


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every rank is told.

    Attributes:
        num_ranks: processes in the group.
        ranks_by_stage: ranks of each stage.
        micro_batches: micro-batches of one step.
        provider: `module:function` that builds programs.
        provider_spec: what the provider is given, as JSON text.
        runs: schedules, run in turn.
        repeats: counted steps of each schedule.
        num_threads: threads of each rank's programs.
        timeout_s: longest wait for another rank.
        write_gradients: whether gradients of each schedule's last step are written.
    """

    num_ranks: int
    ranks_by_stage: tuple[tuple[int, ...], ...]
    micro_batches: int
    provider: str
    provider_spec: str
    runs: tuple[RunSpec, ...]
    repeats: int
    num_threads: int
    timeout_s: float
    write_gradients: bool = True


class RankResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one rank reports: the events of every counted step of each schedule, and its losses."""

    rank: int
    events: dict[str, tuple[tuple[Event, ...], ...]]
    losses: dict[str, dict[int, float]]


def run_rank(job: JobSpec, rank: int, folder: Path) -> RankResult:
    """Run every schedule of the job on this rank.

    Args:
        job: what to run.
        rank: this rank.
        folder: where the ranks meet, and where gradients are written.
    """
    torch.set_num_threads(job.num_threads)
    own_stages = [number for number, ranks in enumerate(job.ranks_by_stage) if rank in ranks]
    programs = _provider(job.provider)(job.provider_spec, own_stages)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=job.num_ranks,
        timeout=timedelta(seconds=job.timeout_s),
    )
    executor = Executor(rank, job.ranks_by_stage, programs)
    actions_by_run = {run.name: actions_from_csv("\n".join(run.actions)) for run in job.runs}
    events: dict[str, list[tuple[Event, ...]]] = {run.name: [] for run in job.runs}
    losses: dict[str, dict[int, float]] = {}
    # In turn, so that a change of the machine's load meets every schedule alike.
    for repeat in range(WARM_UP_STEPS + job.repeats):
        for name, actions in actions_by_run.items():
            dist.barrier()
            done = executor.run_step(actions[rank], job.micro_batches)
            if repeat >= WARM_UP_STEPS:
                events[name].append(tuple(done))
            losses[name] = {m: loss for program in programs.values() for m, loss in program.losses().items()}
            if job.write_gradients and repeat == WARM_UP_STEPS + job.repeats - 1:
                _write_gradients(folder / f"gradients-{name}-{rank}.npz", programs)
    dist.barrier()
    dist.destroy_process_group()
    return RankResult(rank=rank, events={name: tuple(steps) for name, steps in events.items()}, losses=losses)


def actions_as_lines(actions: RankActions) -> tuple[str, ...]:
    """Return every rank's actions as one line of cells each."""
    return tuple(",".join(map(str, own)) for own in actions)


def _provider(name: str) -> Callable[[str, Sequence[int]], Mapping[int, StageProgram]]:
    module_name, _, function_name = name.partition(":")
    try:
        provider: Any = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise EngineError(
            f"stage provider {name!r} cannot be imported ({error}); give module:function, with the module on "
            "the Python path"
        ) from error
    found: Callable[[str, Sequence[int]], Mapping[int, StageProgram]] = provider
    return found


def _write_gradients(path: Path, programs: Mapping[int, StageProgram]) -> None:
    arrays: dict[str, np.ndarray] = {}
    for number, program in programs.items():
        for name, gradient in program.gradients().items():
            arrays[f"{number}/{name}"] = gradient.numpy()
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are data, and none is `allow_pickle`


def _end_with_parent() -> None:
    """End this process when the parent's end of the pipe on standard input is closed."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _main(job_path: Path, rank: int) -> None:
    _end_with_parent()
    job = msgspec.json.decode(job_path.read_bytes(), type=JobSpec)
    result = run_rank(job, rank, job_path.parent)
    partial = job_path.parent / f"result-{rank}.partial"
    partial.write_bytes(msgspec.json.encode(result))
    partial.rename(job_path.parent / f"result-{rank}.json")


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))

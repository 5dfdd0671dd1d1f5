"""Train by exported arguments in Megatron-Core's schedules with its timers on, on one rank of several.

Every rank's times are printed by Megatron's timers after each step, behind the arguments as Megatron lists
them. Stopwatches are around its functions that run a chunk.

Usage: RANK=0 WORLD_SIZE=2 python record_megatron.py STORE STEPS FILE
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules
from megatron.core.timers import Timers

from benchmarks.frameworks.jobs import megatron_job
from benchmarks.frameworks.jobs.one_process import run_job
from benchmarks.frameworks.jobs.stopwatches import Stopwatches


def main() -> None:
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_: None
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)  # which Megatron's timers log to
    with megatron_job.OnCpu():
        run_job(lambda file, steps: _record(Path(file), steps))


def _record(file: Path, steps: int) -> dict[str, Any]:
    given = megatron_job.arguments_of(file)
    if dist.get_rank() == dist.get_world_size() - 1:
        _list_arguments(given)
    watches, timers = Stopwatches(), Timers(2, "all")
    for name in ("forward_step", "backward_step"):
        setattr(schedules, name, watches.around(getattr(schedules, name), lambda *_, name=name, **__: name))
    megatron_job.train_by(given, steps, timers)
    return {"taken_ms": watches.taken_ms}


def _list_arguments(given: dict[str, str]) -> None:
    """Print the arguments in the form of Megatron's `print_args`, by its names."""
    names = {flag[2:].replace("-", "_"): value or "True" for flag, value in given.items()}
    names |= {"data_parallel_size": "1", "tensor_model_parallel_size": "1"}
    print("------------------------ arguments ------------------------")
    for name, value in sorted(names.items()):
        print(f"  {name} {'.' * (48 - len(name))} {value}")
    print("-------------------- end of arguments ---------------------", flush=True)


if __name__ == "__main__":
    main()

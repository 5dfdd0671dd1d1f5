"""The main program of one rank: rendezvous, build its stages, run each schedule in turn, report.

Stages come from a provider, a name `module:function` that takes the job's specification and stage numbers and
returns programs.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # public, unlisted

from tessel.engine.actions import Action, actions_from_csv
from tessel.engine.devices import Devices
from tessel.engine.job import Event, JobSpec, RankResult, Rendezvous
from tessel.engine.memory import predict_held_bytes
from tessel.engine.outputs_check import outputs_path, write_outputs
from tessel.engine.program import OutputsProgram, StageProgram
from tessel.engine.ranks.executor import Executor, Step
from tessel.engine.ranks.gathering import gather_files, on_first_clock, read_first_clock
from tessel.engine.ranks.gradient_sums import time_sums
from tessel.engine.ranks.held_memory import (
    mmap_large_tensors,
    peak_bytes,
    release_free_memory,
    reset_peak,
    resident_bytes,
)
from tessel.engine.ranks.progress import Progress
from tessel.engine.ranks.transport import OrderedTransport, TaggedTransport, Transport, open_channels
from tuner.host_array import host_array
from tuner.plan import StageMemory

WARM_UP_STEPS = 1
"""Steps that are run before those that count: the first one connects peers and touches memory."""

_NO_TIMEOUT = timedelta(days=1)
"""How long a rank waits for others. `tessel.engine.ranks.launch` has the one clock that ends a run: it can
tell a rank that hangs from one that waits for it."""

Provider: TypeAlias = Callable[[str, Sequence[int]], Mapping[int, StageProgram]]


def run_rank(job: JobSpec, rank: int, provider: Provider, folder: Path) -> None:
    """Run every schedule of the job on this rank, and write what it reports.

    Args:
        provider: builds programs.
        folder: where the ranks of one machine meet, and where progress, gradients and the result are written;
            on several machines rank 0's folder gets the files of all.
    """
    progress = Progress(folder, rank)
    progress.start_heartbeat()
    torch.set_num_threads(job.num_threads)
    mmap_large_tensors()
    device = _take_device(job.devices, rank)
    progress.wait("joining the other ranks")
    dist.init_process_group(
        # With NCCL, what is on the host still goes over gloo.
        "gloo" if job.devices.backend == "gloo" else "cpu:gloo,cuda:nccl",
        **_rendezvous_of(job.rendezvous, folder),
        rank=rank,
        world_size=job.num_ranks,
        timeout=_NO_TIMEOUT,
    )
    on_host = dist.new_group(backend="gloo", timeout=_NO_TIMEOUT)
    warm_up, counted = _transports(job, rank, device)
    progress.work("building its stages")
    own_stages = [number for number, ranks in enumerate(job.ranks_by_stage) if rank in ranks]
    programs = provider(job.provider_spec, own_stages)
    executor = Executor(rank, job.ranks_by_stage, programs, progress, device)
    steps = {run.name: executor.prepare(actions_from_csv("\n".join(run.actions) + "\n")) for run in job.runs}
    predicted_bytes, weight_bytes = _predict_memory(programs, [step.actions for step in steps.values()])
    events: dict[str, list[tuple[Event, ...]]] = {run.name: [] for run in job.runs}
    losses: dict[str, dict[int, float]] = {}
    gradient_types: set[str] = set()
    gc.disable()  # A collection in the midst of a step would be timed as an action's.
    gc.freeze()  # What has been imported lives on; looking through it takes a tenth of a second.
    # In turn, so that a change of the machine's load affects every schedule alike.
    release_free_memory()
    resident_before, peak_before = resident_bytes(), 0
    counts_peak = reset_peak()
    clocks = []
    for repeat in range(WARM_UP_STEPS + job.repeats):
        if repeat == WARM_UP_STEPS and job.rendezvous is not None:
            clocks.append(read_first_clock(on_host))
        for name, step in steps.items():
            gc.collect()
            progress.wait("waiting for all ranks before a step")
            dist.barrier(on_host)
            transport = warm_up if repeat < WARM_UP_STEPS else counted
            done = executor.run_step(step, job.micro_batches, transport)
            # What a rank does after its last action would take a core from those that are still in the step.
            progress.wait("waiting for all ranks after a step")
            dist.barrier(on_host)
            peak_before = max(peak_before, peak_bytes() or 0)
            if repeat >= WARM_UP_STEPS:
                events[name].append(tuple(done))
            losses[name] = {m: loss for program in programs.values() for m, loss in program.losses().items()}
            if job.write_gradients and repeat == WARM_UP_STEPS + job.repeats - 1:
                progress.work("writing gradients")
                gradient_types |= _write_gradients(folder / f"gradients-{name}-{rank}.npz", programs)
                release_free_memory()
                reset_peak()
    if job.write_outputs:
        for name, step in steps.items():
            progress.wait("waiting for all ranks before a step whose outputs are kept")
            dist.barrier(on_host)
            # After the steps that count: keeping outputs takes time and memory.
            found = _outputs_of_step(executor, step, job.micro_batches, programs, counted)
            progress.work("writing outputs")
            write_outputs(outputs_path(folder, name, rank), found)
    progress.wait("summing gradients with the other ranks")
    sums_s = time_sums(job.sums, rank, device, repeats=job.repeats, on_host=on_host)
    progress.wait("waiting for all ranks at the end")
    dist.barrier(on_host)
    if job.rendezvous is not None:
        clocks.append(read_first_clock(on_host))
        events = {name: list(on_first_clock(steps, *clocks)) for name, steps in events.items()}
    result = RankResult(
        rank=rank,
        events={name: tuple(steps) for name, steps in events.items()},
        losses=losses,
        gradient_types=tuple(sorted(gradient_types)),
        predicted_bytes=predicted_bytes,
        held_bytes=peak_before - resident_before + weight_bytes
        if predicted_bytes is not None and resident_before is not None and counts_peak
        else None,
        clock_error_s=max((reading.error_s for reading in clocks), default=0.0),
        sums_s=sums_s,
    )
    # MessagePack, since JSON has no word for a loss that is not a number.
    (folder / f"result-{rank}.msgpack").write_bytes(msgspec.msgpack.encode(result))
    if job.rendezvous is not None:
        progress.wait("gathering what the ranks wrote")
        sys.stdout.flush()
        sys.stderr.flush()
        gather_files(folder, sorted(path.name for path in folder.glob(f"*-{rank}.*")), on_host)
        dist.barrier(on_host)
    dist.destroy_process_group()


def _rendezvous_of(rendezvous: Rendezvous | None, folder: Path) -> dict[str, Any]:
    """Return what tells torch where the ranks meet."""
    if rendezvous is None:
        return {"init_method": f"file://{folder / 'rendezvous'}"}
    store = TCPStore(rendezvous.host, rendezvous.port, is_master=False, wait_for_workers=False)
    return {"store": PrefixStore(rendezvous.prefix, store)}


def _predict_memory(
    programs: Mapping[int, StageProgram], orders: Sequence[Sequence[Action]]
) -> tuple[int | None, int]:
    """Return what the process is predicted to hold in steps, and the bytes of its weights."""
    found = {number: getattr(program, "memory", None) for number, program in programs.items()}
    stages = {number: memory for number, memory in found.items() if isinstance(memory, StageMemory)}
    if not stages or len(stages) < len(found):
        return None, 0
    weights = {name: num_bytes for memory in stages.values() for name, num_bytes in memory.weights.items()}
    return predict_held_bytes(orders, stages), sum(weights.values())


def _take_device(devices: Devices, rank: int) -> torch.device:
    """Return this rank's device; its GPU becomes torch's current one, where programs find it."""
    if not devices.gpus:
        return torch.device("cpu")
    torch.cuda.set_device(devices.gpus[rank])
    return torch.device("cuda", devices.gpus[rank])


def _transports(job: JobSpec, rank: int, device: torch.device) -> tuple[Transport, Transport]:
    """Return what carries tensors while the ranks warm up, and in the steps that count."""
    tagged = TaggedTransport(len(job.ranks_by_stage), device, farthest=job.farthest)
    if job.devices.is_tagged:
        return tagged, tagged
    channels = open_channels(
        rank, job.ranks_by_stage, job.before, backend=job.devices.backend, device=device, timeout=_NO_TIMEOUT
    )
    return tagged, OrderedTransport(rank, channels, device)


def _write_gradients(path: Path, programs: Mapping[int, StageProgram]) -> set[str]:
    """Write every gradient, and return the data types that they were computed in."""
    arrays: dict[str, np.ndarray] = {}
    types: set[str] = set()
    for number in sorted(programs):  # Alike on all ranks: a stage on several may gather its parts here.
        for name, gradient in programs[number].gradients().items():
            types.add(str(gradient.dtype).removeprefix("torch."))
            arrays[f"{number}/{name}"] = host_array(gradient)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are data, and none is `allow_pickle`
    return types


def _outputs_of_step(
    executor: Executor,
    step: Step,
    micro_batches: int,
    programs: Mapping[int, StageProgram],
    transport: Transport,
) -> list[tuple[int, int, str, np.ndarray]]:
    """Run a step, and return the outputs that stages of this rank made in it; see `write_outputs`."""
    keeping = {number: each for number, each in programs.items() if isinstance(each, OutputsProgram)}
    for program in keeping.values():
        program.keep_outputs()
    executor.run_step(step, micro_batches, transport)
    return [
        (number, micro_batch, name, host_array(tensor))
        for number in sorted(keeping)  # Alike on all ranks, as with gradients.
        for micro_batch, outputs in sorted(keeping[number].outputs().items())
        for name, tensor in outputs.items()
    ]

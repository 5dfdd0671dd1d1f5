"""Megatron's timers in the log of a job, as the costs of its stages.

    times across ranks (ms):
      forward-compute:
         rank  0: 812.40
         rank  1: 798.15

Megatron writes them with `--timing-log-level 2 --timing-log-option all`: of each rank, one iteration's mean
over the logged interval, in which a timer waits for the device before and after each micro-batch's work.
Sends and receives have timers of their own. The arguments that Megatron lists at its start say how many
micro-batches and chunks share a rank's time. Ranks are numbered with the pipeline outermost, Megatron's
default. Layers are told apart where all stages have equally many and one holds neither embedding nor head:
what the first and the last take beyond it is the embedding's and the head's.
Checked in tests/tessel/profiles/traces/test_megatron_log.py, and beside it in test_recorded.py on what
Megatron-Core 0.16.1 logged.

Source: Megatron-LM, `megatron/core/timers.py` and `print_args` of `megatron/training/arguments.py`.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessel.errors import ScheduleError
from tessel.names import name_of_path
from tessel.profiles.figures import make_cost, read_count, read_number, refusal
from tessel.profiles.profile import MAX_LAYERS, CostTable, Layer, Profile, StageCosts
from tessel.profiles.reading import Reading
from tessel.profiles.traces.trace_profile import NO_BYTES

_REMEDY = "log with --timing-log-level 2 --timing-log-option all, from the job's start"
_BEGIN = re.compile(r"times across ranks \(ms\):")
_TIMER = re.compile(r"(?:^|\s)([a-z][a-z-]{1,60}):\s*$")
_RANK = re.compile(r"\brank\s+([0-9]{1,6}):\s*([0-9][0-9.eE+-]{0,30})\s*$")
_ARGUMENT = re.compile(r"\b([a-z][a-z0-9_]{1,80}) \.{2,} (\S{1,80})\s*$")
_FORWARD, _BACKWARD, _UPDATE = "forward-compute", "backward-compute", "optimizer"
_UNEVEN = (
    "pipeline_model_parallel_layout",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "mtp_num_layers",
)
"""Arguments that give stages unequal layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What the listed arguments say."""

    pipeline: int
    chunks: int
    micro_batches: int
    micro_batch: int
    tensor_parallel: int
    num_layers: int
    is_even: bool
    recomputes: str


def is_megatron_log(text: str) -> bool:
    """Whether a text has timers as Megatron writes them, of all ranks or of their extremes."""
    return "across ranks (ms):" in text


def read_megatron_log(path: Path, text: str) -> Reading:
    """Read the timers of a log.

    Raises:
        DocumentError: it has no timers of single ranks, or does not list its arguments.
    """
    timers, arguments = _parsed(text, path)
    forwards, backwards = timers.get(_FORWARD), timers.get(_BACKWARD)
    if forwards is None or backwards is None:
        raise refusal(path, "", f"it has no {_FORWARD} and {_BACKWARD} of each rank", _REMEDY)
    job = _job(arguments, path)
    share = job.micro_batches * job.chunks
    stages = tuple(_stage_cost(path, stage, job, timers, share) for stage in range(job.pipeline))
    names, costs, told = _layers(stages, job, path)
    notes = [
        f"times are medians over {_num_intervals(forwards)} logged intervals after the first, and over a "
        "stage's ranks",
        NO_BYTES,
        *told,
    ]
    if job.recomputes == "full":
        notes.append("it recomputes in full: a forward is taken off each backward")
    elif job.recomputes:
        notes.append(f"backwards contain what it recomputes ({name_of_path(job.recomputes)})")
    try:
        profile = Profile(
            name=name_of_path(path.stem),
            layers=tuple(map(Layer, names)),
            tables=(
                CostTable(
                    micro_batch=job.micro_batch, tensor_parallel=job.tensor_parallel, costs=tuple(costs)
                ),
            ),
            notes=tuple(notes),
        )
    except ScheduleError as error:
        raise refusal(path, "", error, _REMEDY) from error
    return Reading(profile)


_Timers = Mapping[str, Mapping[int, Sequence[float]]]


def _parsed(text: str, path: Path) -> tuple[_Timers, dict[str, str]]:
    """Return the milliseconds of each timer and rank, one an interval, and the listed arguments."""
    timers: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    arguments: dict[str, str] = {}
    timer: str | None = None
    is_inside = False
    for number, line in enumerate(text.splitlines(), 1):
        if found := _ARGUMENT.search(line):
            arguments.setdefault(found[1], found[2])
        elif _BEGIN.search(line):
            is_inside, timer = True, None
        elif is_inside and (found := _RANK.search(line)) and timer is not None:
            timers[timer][int(found[1])].append(
                read_number(found[2].rstrip("."), path, f"line {number}, {timer}")
            )
        elif is_inside and (found := _TIMER.search(line)):
            timer = found[1]
        else:
            is_inside = False
    return timers, arguments


def _num_intervals(forwards: Mapping[int, Sequence[float]]) -> int:
    return max(1, min(map(len, forwards.values())) - 1)


def _job(arguments: Mapping[str, str], path: Path) -> _Job:
    def count(name: str, default: int | None = None) -> int:
        value = arguments.get(name)
        if value is None or value == "None":
            if default is not None:
                return default
            raise refusal(path, "", f"it does not list the argument {name}", _REMEDY)
        return read_count(value, path, name)

    pipeline, data = count("pipeline_model_parallel_size"), count("data_parallel_size")
    micro_batch, batch = count("micro_batch_size"), count("global_batch_size")
    if batch % (micro_batch * data):
        raise refusal(
            path,
            "",
            f"its global batch of {batch} is no multiple of {micro_batch} samples on {data} replicas",
            _REMEDY,
        )
    recomputes = arguments.get("recompute_granularity", "None")
    return _Job(
        pipeline=pipeline,
        chunks=count("virtual_pipeline_model_parallel_size", 1),
        micro_batches=batch // (micro_batch * data),
        micro_batch=micro_batch,
        tensor_parallel=count("tensor_model_parallel_size", 1),
        num_layers=min(count("num_layers", 1), MAX_LAYERS),
        is_even=all(arguments.get(name, "None") in ("None", "False") for name in _UNEVEN),
        recomputes="" if recomputes == "None" else recomputes,
    )


def _stage_cost(path: Path, stage: int, job: _Job, timers: _Timers, share: int) -> StageCosts:
    """Return what one chunk of a pipeline's rank costs."""

    def taken_us(timer: str) -> float | None:
        ranks = timers.get(timer, {})
        world = 1 + max((rank for each in timers.values() for rank in each), default=0)
        own = [rank for rank in ranks if rank * job.pipeline // world == stage]
        # The first interval holds compilation and the first allocations.
        times = [time for rank in own for time in (ranks[rank][1:] or ranks[rank])]
        return statistics.median(times) * 1e3 if times else None

    forward, backward, update = map(taken_us, (_FORWARD, _BACKWARD, _UPDATE))
    if forward is None or backward is None:
        raise refusal(path, "", f"stage {stage} of {job.pipeline} has no times", _REMEDY)
    recompute = forward if job.recomputes == "full" else 0.0
    return make_cost(
        {
            "forward_us": forward / share,
            "backward_us": max(0.0, backward - recompute) / share,
            "update_us": None if update is None else update / job.chunks,
        },
        path,
        f"stage {stage}",
    )


def _layers(
    stages: Sequence[StageCosts], job: _Job, path: Path
) -> tuple[list[str], list[StageCosts], list[str]]:
    """Return layers where they can be told apart, else the chunks of each rank, in model order."""
    num_stages = job.pipeline * job.chunks
    if job.pipeline < 3 or not job.is_even or job.num_layers % num_stages:
        told = ["a row is a stage: its layers could not be told apart"]
        if job.chunks > 1:
            told.append(f"the {job.chunks} chunks of a rank share its time equally")
        costs = list(stages) * job.chunks
        return [f"stage{number}" for number in range(num_stages)], costs, told
    each = job.num_layers // num_stages
    middle = stages[1:-1]

    def block(name: str) -> float:
        return statistics.median(getattr(cost, name) or 0.0 for cost in middle) / each

    def rest(cost: StageCosts, name: str) -> float:
        # A rank's chunks share its time, of which one holds the embedding or the head.
        return max(0.0, (getattr(cost, name) or 0.0) - each * block(name)) * job.chunks

    names = ("forward_us", "backward_us", "update_us")
    embedding, head = (
        make_cost({name: rest(cost, name) for name in names}, path, title)
        for cost, title in ((stages[0], "embedding"), (stages[-1], "head"))
    )
    blocks = [make_cost({name: block(name) for name in names}, path, "block")] * job.num_layers
    told = [
        f"each stage has {each} of {job.num_layers} layers: a layer is what the stages between the first and "
        "the last take, embedding and head what those two take beyond it"
    ]
    return (
        ["embedding", *(f"layer{number}" for number in range(job.num_layers)), "head"],
        [embedding, *blocks, head],
        told,
    )

"""DeepSpeed's `wall_clock_breakdown` in the log of a job: what its engine's rank 0 took for a micro-batch.

    [Rank 0] time (ms) | fwd_microstep: 11.02 | bwd_microstep: 21.90 | … | step_microstep: 4.10
    [Rank 0] time (ms) | fwd: 44.10 | bwd: 87.55 | bwd_inner: 87.50 | bwd_allreduce: 0.02 | step: 4.15

DeepSpeed prints rank 0's times alone, and of a whole model in one: the profile has one row, which serves to
plan replicas. A log of its `PipelineEngine` shows one stage of several and is refused; the trace of torch's
profiler shows all. Checked in tests/tessel/profiles/traces/test_recorded.py, on a log of DeepSpeed 0.19.8.

Source: DeepSpeed, `deepspeed/utils/timer.py` and `deepspeed/runtime/engine.py`.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from pathlib import Path

from tessel.names import name_of_path
from tessel.profiles.figures import make_cost, read_number, refusal
from tessel.profiles.profile import CostTable, Layer, Profile
from tessel.profiles.reading import Reading
from tessel.profiles.traces.trace_profile import NO_BYTES

_TIME = re.compile(r"\| ([a-z_]{2,40}): ([0-9.]{1,30})")
_FORWARD, _BACKWARD, _UPDATE = "fwd_microstep", "bwd_inner_microstep", "step"


def is_deepspeed_log(text: str) -> bool:
    """Whether a text has lines of DeepSpeed's timers."""
    return "time (ms) |" in text


def read_deepspeed_log(path: Path, text: str) -> Reading:
    """Read the timers of a log.

    Raises:
        DocumentError: it has none of forwards and backwards, or is one of a pipeline.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    for number, line in enumerate(text.splitlines(), 1):
        if "time (ms) |" in line:
            for name, value in _TIME.findall(line):
                taken[name].append(read_number(value, path, f"line {number}, {name}"))
    if any(name.startswith(("pipe_", "batch_input")) for name in taken):
        raise refusal(
            path,
            "",
            "it is of a pipeline, of which DeepSpeed prints the first rank's times alone",
            "trace each rank with torch.profiler and give the folder of traces",
        )
    if not taken[_FORWARD] or not taken[_BACKWARD]:
        raise refusal(
            path,
            "",
            f"it has no {_FORWARD} and {_BACKWARD}",
            'set "wall_clock_breakdown": true in DeepSpeed\'s configuration',
        )
    medians = {
        # The first micro-batch and update hold compilation and the first allocations.
        name: statistics.median(times[1:] or times) * 1e3
        for name, times in taken.items()
        if times
    }
    cost = make_cost(
        {
            "forward_us": medians[_FORWARD],
            "backward_us": medians[_BACKWARD],
            "update_us": medians.get(_UPDATE),
        },
        path,
        "the model",
    )
    profile = Profile(
        name=name_of_path(path.stem),
        layers=(Layer("model"),),
        tables=(CostTable(micro_batch=1, tensor_parallel=1, costs=(cost,)),),
        notes=(
            f"times are medians of {len(taken[_FORWARD])} micro-batches of rank 0, the first left out, and "
            "of the whole model in one row, which no pipeline can be cut from",
            NO_BYTES,
        ),
    )
    return Reading(profile, says_micro_batch=False)

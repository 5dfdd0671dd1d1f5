"""The schedulers of sail-sg's zero-bubble project on placements of this one: a rival, run from a checkout.

CHECKOUT is a folder with that project's public code, which this repository does not contain. Its schedulers
for a V of two chunks are asked in a process of their own, and their orders are timed here: every task as soon
as its device and what it waits for allow, so that unequal stages count though they know only equal ones.
They are given the spans of the stages in the middle.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tessel.orders import Task, earliest_starts
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule

SCHEDULERS = ("zbv", "v-half", "v-min")
"""By their names here; the first keeps a limit on memory, the others have their own."""

MAX_SECONDS = 120.0
"""Wall-clock seconds that one of them may take."""

ASK = """
import contextlib, json, sys, types
from pathlib import Path
root, name, asked = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
package = "megatron.core.pipeline_parallel.zerobubble.scheduler"
for end in range(1, 1 + len(package.split("."))):
    part = ".".join(package.split(".")[:end])
    sys.modules[part] = types.ModuleType(part)  # its own would import the whole framework
    sys.modules[part].__path__ = [str(root.joinpath(*part.split(".")))]
with contextlib.redirect_stdout(sys.stderr):
    costs = [asked[key] for key in ("forward", "input", "weight", "hop")]
    if name == "zbv":
        from megatron.core.pipeline_parallel.zerobubble.scheduler import zbv
        graph = zbv.PipelineGraph(asked["devices"], asked["micro_batches"], *costs, 2, -1, -1, asked["limit"])
    else:
        from megatron.core.pipeline_parallel.zerobubble.scheduler import zbv_greedy
        graph = zbv_greedy.PipelineGraph(asked["devices"], asked["micro_batches"], name[2:], *costs)
    config = types.SimpleNamespace(n_stages=asked["devices"], max_chunks=2)
    orders = graph.create_schedule(config)
rows = [[(str(node.type), node.layer_group_idx, node.microbatch) for node in each] for each in orders]
print(json.dumps(rows))
"""


@dataclass(frozen=True, slots=True)
class Rival:
    """What a scheduler's order comes to on the placement.

    Attributes:
        name: of the scheduler.
        schedule: its order, timed; None where it has none.
        failure: why it has none.
    """

    name: str
    schedule: Schedule | None
    failure: str = ""


def ask_sail_sg(checkout: Path, name: str, placement: Placement, micro_batches: int, limit: int) -> Rival:
    """Return what one scheduler's order takes on a V with split backwards.

    Args:
        checkout: folder of their code.
        name: one of `SCHEDULERS`.
        placement: a V of two chunks with split backwards, forwards of two units.
        micro_batches: how many are run.
        limit: units a device, which only `zbv` reads.
    """
    middle = placement.devices // 2
    asked = {
        "devices": placement.devices,
        "micro_batches": micro_batches,
        "forward": placement.block(f"f{middle}").span,
        "input": placement.block(f"b{middle}_input").span,
        "weight": placement.block(f"b{middle}_weight").span,
        "hop": max(edge.lag for edge in placement.edges),
        "limit": limit,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK, str(checkout), name, json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Rival(name, None, f"not done in {MAX_SECONDS:g} s")
    if done.returncode:
        return Rival(name, None, done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
    index = placement.index_by_name
    kinds = {"F": "f{}", "B": "b{}_input", "W": "b{}_weight"}
    orders = [
        [Task(index[kinds[kind].format(stage)], micro_batch) for kind, stage, micro_batch in each]
        for each in json.loads(done.stdout)
    ]
    starts = earliest_starts(placement, orders)
    return Rival(name, Schedule.of(placement, starts, micro_batches=micro_batches, found_by=name))

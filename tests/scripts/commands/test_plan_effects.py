"""Whatever a table or an option of `tessel plan` says changes the plan, or is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.commands.plan.options import ConfigCommandOptions, PlanCommandOptions
from scripts.options.tuning_options import MeasuringOptions
from tessel.profiles.table import COLUMNS, WRITTEN

BASE = {
    "forward_ms": 1.0,
    "backward_ms": 2.2,
    "backward_input_ms": 1.0,
    "backward_weight_ms": 1.0,
    "recompute_ms": 1.5,
    "update_ms": 0.3,
    "gradient_pass_ms": 0.1,
    "weights_mib": 10.0,
    "trained_mib": 8.0,
    "reduced_mib": 6.0,
    "expert_mib": 4.0,
    "saved_mib": 100.0,
    "saved_for_weight_mib": 50.0,
    "peak_mib": 7.0,
    "boundary_mib": 3.0,
}
CHANGED = {"saved_for_weight_mib": 5.0, "trained_mib": 9.0, "reduced_mib": 7.0, "backward_ms": 1.9}
RUN = ("--devices", "4", "--data-parallel", "2", "--pipeline", "2", "--placement", "vshape", "--work", "0.05")

JOINT = ("--joint-backward", "--memory", "600MiB")
"""Orders of joint backwards that have to recompute."""


def write(path: Path, *, expert_parallel: int = 1, **changed: float) -> Path:
    rows = [",".join(("layer", "expert_parallel", *BASE, "tie"))]
    for layer in range(4):
        # A device holds more micro-batches where each of its layers keeps less of them.
        values = {**BASE, **(changed if layer == 1 or "saved_for_weight_mib" in changed else {})}
        rows.append(",".join((f"l{layer}", str(expert_parallel), *map(str, values.values()), "")))
    path.write_text("\n".join(rows) + "\n")
    return path


Tessel = Callable[..., Any]


def document(tessel: Tessel, table: Path, *arguments: str) -> dict[str, Any]:
    outcome = tessel("plan", table, *arguments, "--json", "--quiet")
    assert outcome.status in (0, 1), outcome.stderr
    found: dict[str, Any] = json.loads(outcome.stdout)
    for key in ("search_seconds", "explanation", "plan"):
        found.pop(key, None)
    return found


@pytest.mark.parametrize("column", WRITTEN)
def test_every_column_of_figures_changes_the_plan(tessel: Tessel, tmp_path: Path, column: str) -> None:
    value = CHANGED.get(column, BASE[column] * 1.5)
    extra = JOINT if column in ("backward_ms", "recompute_ms") else ("--no-recompute",)
    if column == "saved_for_weight_mib":
        extra = ("--no-recompute", "--memory", "500MiB")
    one, other = (
        document(tessel, write(tmp_path / f"{number}.csv", expert_parallel=2, **changed), *RUN, *extra)
        for number, changed in enumerate(({}, {column: value}))
    )
    one["model"] = other["model"]
    assert one != other
    assert set(WRITTEN) == set(BASE)
    assert {attribute for attribute, _ in COLUMNS.values()} == {COLUMNS[name][0] for name in WRITTEN}


def test_ties_sizes_and_degrees_change_the_plan(tessel: Tessel, tmp_path: Path) -> None:
    table = write(tmp_path / "table.csv")
    header, *rows = table.read_text().splitlines()
    run = (*RUN[:2], *RUN[4:], "--global-batch", "8")
    found = [document(tessel, table, *run)]
    for text in (
        [header, *(row + "word" if row.startswith(("l0", "l3")) else row for row in rows)],
        [f"micro_batch,{header}", *(f"2,{row}" for row in rows)],
        [f"tensor_parallel,{header}", *(f"2,{row}" for row in rows)],
        [f"context_parallel,{header}", *(f"2,{row}" for row in rows)],
    ):
        table.write_text("\n".join(text) + "\n")
        found.append(document(tessel, table, *run))
    assert all(one != other for number, one in enumerate(found) for other in found[:number])


FREE = ("--devices", "4", "--work", "0.05")

OPTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    # What is given beside, and two values of the option.
    "devices": (("--work", "0.05"), ("--devices", "2"), ("--devices", "4")),
    "memory": (FREE, (), ("--memory", "500MiB")),
    "device_memory": (FREE, (), ("--device-memory", "500MiB,1GiB,1GiB,1GiB")),
    "device_speed": (RUN, ("--device-speed", "1,1,0.5,0.5"), ("--device-speed", "0.5,0.5,1,1")),
    "link": (RUN, (), ("--link", "1GB/s")),
    "hop_us": (RUN, (), ("--hop-us", "500")),
    "collective_link": (RUN, (), ("--collective-link", "1GB/s")),
    "node_devices": ((*RUN, "--node-link", "1TB/s"), (), ("--node-devices", "2")),
    "node_link": ((*RUN, "--node-devices", "2"), ("--node-link", "500GB/s"), ("--node-link", "1TB/s")),
    "optimizer": (RUN, (), ("--optimizer", "sgd")),
    "runtime": (RUN, (), ("--runtime", "deepspeed")),
    "sharding": (RUN, ("--sharding", "optimizer"), ("--sharding", "parameters")),
    "offload": ((*RUN, "--host-link", "50GB/s", "--offload", "optimizer"), (), ("--offload", "activations")),
    "host_link": ((*RUN, "--offload", "optimizer"), ("--host-link", "50GB/s"), ("--host-link", "5GB/s")),
    "global_batch": (RUN, ("--global-batch", "8"), ("--global-batch", "16")),
    "micro_batches": (RUN, ("--micro-batches", "8"), ("--micro-batches", "16")),
    "placement": (FREE, ("--placement", "vshape"), ("--placement", "zbv")),
    "data_parallel": (FREE, ("--data-parallel", "1"), ("--data-parallel", "2")),
    "pipeline": (FREE, ("--pipeline", "2"), ("--pipeline", "4")),
    "tensor_parallel": (FREE, ("--tensor-parallel", "1"), ("--tensor-parallel", "2")),
    "context_parallel": (FREE, ("--context-parallel", "1"), ("--context-parallel", "2")),
    "expert_parallel": (FREE, ("--expert-parallel", "1"), ("--expert-parallel", "2")),
    "micro_batch": (RUN, (), ("--micro-batch", "3")),
    "chunks": (("--devices", "2", "--work", "0.05"), ("--chunks", "1"), ("--chunks", "2")),
    "by_hand": (RUN, (), ("--by-hand", "0-0,1-3")),
    "no_recompute": ((*RUN, "--memory", "450MiB"), (), ("--no-recompute",)),
    "joint_backward": (RUN, (), ("--joint-backward",)),
    "overlap_factor": ((*RUN, "--joint-backward"), (), ("--overlap-factor", "0.6")),
    "num_layers": (RUN, (), ("--num-layers", "7")),
    "spread": (RUN, (), ("--spread", "uniform:0.2")),
    "robust": ((*RUN, "--spread", "lognormal:0.5"), (), ("--robust", "p99")),
}

NOT_OF_THE_PLAN = {
    "format_name",  # how a file is read that says the same
    "work", "time_limit", "jobs",  # how long is searched
    "save", "save_table", "out", "json",  # where it goes
    # of a config, looked at in tests/tessel/jobs/test_described_model.py
    *(field.name for field in dataclasses.fields(ConfigCommandOptions)),
    "batch", "shape", "value", "price", "cost_model",  # of a model, or of a table with classes
    *(field.name for field in dataclasses.fields(MeasuringOptions)),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_the_plan_or_is_refused(tessel: Tessel, tmp_path: Path, name: str) -> None:
    given, one, other = OPTIONS[name]
    table = write(tmp_path / "table.csv")
    found = []
    for arguments in (one, other):
        outcome = tessel("plan", table, *given, *arguments, "--json", "--quiet")
        if outcome.status == 2:
            found.append(outcome.stderr)
            continue
        printed = json.loads(outcome.stdout) if outcome.stdout else {"refused": outcome.stderr}
        found.append({key: value for key, value in printed.items() if key != "search_seconds"})
    assert found[0] != found[1]


def test_every_option_is_looked_at() -> None:
    names = {field.name for field in dataclasses.fields(PlanCommandOptions)}
    assert names == set(OPTIONS) | NOT_OF_THE_PLAN

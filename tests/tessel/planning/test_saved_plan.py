"""Plans of layers come back as they were saved, and are refused where they contradict themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tessel.documents import DocumentKind, detect_kind, load_placement, load_schedule, save
from tessel.errors import DocumentError
from tessel.planning.cluster import Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.job import Job
from tessel.planning.options import PlanOptions
from tessel.planning.saved_plan import SavedPlan, load_saved_plan
from tessel.profiles import CostTable, Layer, Profile, StageCosts, load_profile
from tessel.search import SearchBudget

PROFILE = Profile(
    name="four layers",
    layers=tuple(Layer(f"layer{index}") for index in range(4)),
    tables=(
        CostTable(
            micro_batch=1,
            tensor_parallel=1,
            costs=(
                StageCosts(
                    forward_us=100, backward_us=200, weight_bytes=10, saved_bytes=5, boundary_bytes=1000
                ),
            )
            * 4,
        ),
    ),
)


@pytest.fixture(scope="module")
def plan() -> SavedPlan:
    link = Link(bytes_per_s=1e9, latency_us=1.0)
    cluster = Cluster(devices=2, hop=link, collective=link, memory_bytes=10**6)
    job = Job(cluster=cluster, global_batch=4)
    result = find_plan(
        PROFILE,
        job,
        options=PlanOptions(pipeline=2, what_if=False),
        budget=SearchBudget(work_limit=0.02, time_limit_s=None),
    )
    return SavedPlan.of(result, PROFILE, job)


def test_plans_come_back_as_they_were(plan: SavedPlan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save(plan, path)
    assert load_saved_plan(path) == plan
    assert detect_kind(path) is DocumentKind.LAYOUT
    assert load_schedule(path) == plan.schedule
    assert load_placement(path) == plan.schedule.placement
    assert load_profile(path) == PROFILE
    assert plan.baselines
    assert plan.lower_bound_us <= plan.training_step_us
    assert plan.schedule.makespan * plan.step_us <= plan.training_step_us + 1e-6
    assert len(plan.memory_bytes) == len(plan.static_bytes) == 2


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("schema_version", 7, "schema_version 7"),
        ("optimizer", "lion", "there is no optimizer"),
        ("step_us", 0.0, "step_us is 0.0"),
        ("training_step_us", -1.0, "training_step_us is -1.0"),
        ("static_bytes", [1], "static_bytes is not one number"),
        ("memory_bytes", [1, -1], "memory_bytes is not one number"),
        ("order", "a\u0007b", "cannot be printed"),
        ("colour", 1, "colour"),
        ("layout.cuts", [[0, 1], [2, 2]], "cuts do not cover"),
        ("layout.cuts", [[0, 1], [3, 3]], "does not begin at layer 2"),
        ("layout.pipeline", 1, "pipeline"),
        ("step_us", 1e300, "was measured to take"),
        ("training_step_us", 1.0, "training_step_us is 1"),
        ("lower_bound_us", 1e9, "above the"),
        ("static_bytes", [1, 1], "memory_bytes are"),
        ("memory_bytes", [1, 1], "memory_bytes are"),
        ("profile.tables", "slower", "block f"),
        ("profile.tables", "heavier", "static_bytes are"),
        ("cluster.hop", {"bytes_per_s": 1e4, "latency_us": 1.0}, "the hop from"),
        ("runtime", "deepspeed", "was measured to take"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(
    plan: SavedPlan, tmp_path: Path, key: str, value: object, problem: str
) -> None:
    document: dict[str, Any] = json.loads(plan.to_json())
    *folders, last = key.split(".")
    inner = document
    for name in folders:
        inner = inner[name]
    if value in ("slower", "heavier"):
        for cost in inner[last][0]["costs"]:
            cost |= {"forward_us": 1e6} if value == "slower" else {"weight_bytes": 10**5}
    else:
        inner[last] = value
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(DocumentError) as caught:
        load_saved_plan(tmp_path / "plan.json")
    assert problem in str(caught.value) or key == "layout.pipeline"
    assert str(tmp_path / "plan.json") in str(caught.value)

"""Placements, schedules, Tessel's own files and plans of the tuner."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import TEXT_COUNT, change_by_suffix
from benchmarks.fuzz.formats.exported import export_all
from benchmarks.fuzz.formats.written import write_all


def scheduler_errors() -> tuple[type[Exception], ...]:
    from tessel.errors import ScheduleError

    return (ScheduleError, ValueError)


def sample_placements() -> list[Any]:
    from tessel.shapes import make_shape

    return [
        make_shape("vshape", 3),
        make_shape("mshape", 2),
        make_shape("vshape", 2, choose_backward=True, lag=1),
    ]


def sample_schedules() -> list[Any]:
    import matplotlib.font_manager  # noqa: F401 - it lists fonts once by another program, which no reader starts

    from tessel.handwritten.construction.greedy import read_flow, run_greedily
    from tessel.schedule import Schedule

    found = []
    for placement in sample_placements()[:2]:  # the third leaves choices open, which no rule takes
        flow = read_flow(placement)
        starts = run_greedily(flow, micro_batches=3, in_flight=flow.depth)
        limits = (8,) * placement.devices
        found.append(Schedule.of(placement, starts, micro_batches=3, memory=limits, found_by="a rule"))
    return found


def placement_format() -> Format:
    from tessel.documents import load_placement

    return Format(
        name="placement",
        count=TEXT_COUNT,
        samples=lambda: [{"placement.json": each.to_json()} for each in sample_placements()],
        change=change_by_suffix(json=mutation.changed_text_file),
        read=lambda folder: _draw_placement(load_placement(folder / "placement.json")),
        own_errors=scheduler_errors(),
    )


def _draw_placement(placement: Any) -> None:
    """Read what a placement means, as a command does before it searches."""
    from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline

    with contextlib.suppress(NotAPipelineError):
        read_pipeline(placement)


def schedule_format() -> Format:
    from tessel.documents import load_schedule

    return Format(
        name="schedule",
        count=TEXT_COUNT,
        samples=lambda: [{"schedule.json": each.to_json()} for each in sample_schedules()],
        change=change_by_suffix(json=mutation.changed_text_file),
        read=lambda folder: write_all(load_schedule(folder / "schedule.json"), None, folder),
        own_errors=scheduler_errors(),
    )


def tessel_file_format() -> Format:
    from tessel.schedule.schedplan import SchedPlan

    def samples() -> list[Files]:
        saved: list[Files] = []
        for schedule in sample_schedules()[:2]:
            with tempfile.TemporaryDirectory() as root:
                SchedPlan.of_schedule(schedule).save(Path(root) / "plan.json")
                saved.append({"plan.json": (Path(root) / "plan.json").read_bytes()})
        block = {"mid": 0, "span": 1, "memory": 1.0, "btype": "FW", "gid": 0}
        saved.append(
            {"plan.json": json.dumps({"ndevs": 1, "blocks": [block | {"step": 0, "device": [0]}]}).encode()}
        )
        return saved

    def read(folder: Path) -> None:
        SchedPlan.load(folder / "plan.json")

    return Format(
        name="tessel-file",
        count=TEXT_COUNT,
        samples=samples,
        change=change_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=scheduler_errors(),
    )


def plan_format() -> Format:
    from tessel.errors import ScheduleError
    from tessel.exports.recipe import recipe_of_plan
    from tessel.jobs.plan import Plan
    from tessel.loading import load_plan

    def read(folder: Path) -> None:
        plan = load_plan(folder / "plan.json")
        write_all(plan.schedule, Plan(tuned=plan), folder)
        with contextlib.suppress(ScheduleError):  # its stages are no chain
            export_all(recipe_of_plan(plan))

    return Format(
        name="plan",
        count=TEXT_COUNT,
        samples=_plans,
        change=change_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=scheduler_errors(),
    )


def _plans() -> list[Files]:
    import msgspec

    from tessel.pipeline import build_plan
    from tessel.search import SearchBudget
    from tuner.plan import Figure, ModelPlan, PartitionPlan, StagePlan, TensorInfo

    measured = Figure(latency_us=7.5, source="measured", record_ids=(1, 2), interval_us=(7.0, 8.0))
    boundary = TensorInfo(name="x", shape=(4, 8), dtype="float32", num_bytes=128)
    stages = tuple(
        StagePlan(
            name=f"stage{number}",
            layers=(f"h.{number}",),
            inputs=(boundary,),
            outputs=(boundary,),
            relayed=(),
            parameters=(f"h.{number}.weight",),
            forward=measured,
            backward=measured,
            backward_input=measured if number else None,
            backward_weight=measured,
            weight_bytes=4000,
            saved_bytes=600,
            saved_for_weight_bytes=500,
            boundary_bytes=128,
        )
        for number in range(3)
    )
    part = PartitionPlan(
        operators=("matmul", "add"),
        backend="tvm",
        figure=measured,
        occurrences=3,
        workload_fingerprint="0" * 32,
        functions=("stage0.forward", "stage1.backward"),
        runner_up=("blas", 9.0),
    )
    tuned = ModelPlan(
        model="gpt2:tiny",
        model_fingerprint="0" * 32,
        training=True,
        target='{"kind":"llvm"}',
        device_model="a processor",
        num_threads=1,
        partition=(part,),
        end_to_end={"mix": measured, "tvm": measured},
        sum_of_parts=measured,
        launch_penalty_us=0.5,
        max_relative_error=1e-6,
        max_gradient_error=1e-6,
        stages=stages,
        tied=(),
        hop_latency_us=(5.0, 5.0),
        hop_source="given",
        new_measurements=0,
        reused_measurements=2,
    )
    budget = SearchBudget(work_limit=0.01, time_limit_s=None)
    plan = build_plan(tuned, micro_batches=3, memory_limit_bytes=10_000, recompute=False, budget=budget)
    return [{"plan.json": msgspec.json.encode(plan, order="sorted")}]

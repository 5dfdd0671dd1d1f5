"""Plans of `tessel plan`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import ROOT, TEXT_COUNT, change_by_suffix
from benchmarks.fuzz.formats.exported import export_all
from benchmarks.fuzz.formats.schedules import sample_schedules, scheduler_errors
from benchmarks.fuzz.formats.written import write_all


def saved_plan_format() -> Format:
    from tessel.errors import ScheduleError
    from tessel.exports.recipe import recipe_of_saved_plan
    from tessel.planning.saved_plan import load_saved_plan

    def read(folder: Path) -> None:
        plan = load_saved_plan(folder / "plan.json")
        write_all(plan.schedule, None, folder)
        with contextlib.suppress(ScheduleError):  # its stages are no chain
            export_all(recipe_of_saved_plan(plan))

    return Format(
        name="saved-plan",
        count=TEXT_COUNT,
        samples=_saved_plans,
        change=change_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=scheduler_errors(),
    )


def _saved_plans() -> list[Files]:
    from tessel.planning.cluster import Cluster, Link
    from tessel.planning.layout import Layout
    from tessel.planning.saved_plan import SavedBaseline, SavedPlan
    from tessel.profiles import load_profile

    schedule = sample_schedules()[0]
    link = Link(bytes_per_s=1e11, latency_us=10.0)
    plan = SavedPlan(
        profile=load_profile(ROOT / "examples" / "profiles" / "eight_layers.csv"),
        cluster=Cluster(devices=3, hop=link, collective=link, memory_bytes=2**34),
        optimizer="adam",
        layout=Layout(
            data_parallel=1, pipeline=3, micro_batch=1, micro_batches=3, cuts=((0, 2), (3, 5), (6, 7))
        ),
        schedule=schedule,
        order="1f1b",
        step_us=2.5,
        training_step_us=100.0,
        lower_bound_us=90.0,
        static_bytes=(5, 6, 7),
        memory_bytes=(8, 9, 10),
        baselines=(SavedBaseline(name="gpipe", step_ms=0.2, fits=True),),
    )
    return [{"plan.json": plan.to_json()}]

"""Plans of `tessel plan`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format
from benchmarks.fuzz.formats.changes import ROOT, TEXT_COUNT, change_by_suffix
from benchmarks.fuzz.formats.exported import export_all
from benchmarks.fuzz.formats.schedules import scheduler_errors
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
    from tessel.planning.find_plan import find_plan
    from tessel.planning.job import Job
    from tessel.planning.options import PlanOptions
    from tessel.planning.saved_plan import SavedPlan
    from tessel.profiles import load_profile
    from tessel.search import SearchBudget

    link = Link(bytes_per_s=1e11, latency_us=10.0)
    profile = load_profile(ROOT / "examples" / "profiles" / "eight_layers.csv")
    cluster = Cluster(devices=3, hop=link, collective=link, memory_bytes=2**34)
    job = Job(cluster=cluster, global_batch=3)
    found = find_plan(
        profile,
        job,
        options=PlanOptions(pipeline=3, placements=("vshape",), what_if=False),
        budget=SearchBudget(work_limit=0.01, time_limit_s=None),
    )
    plan = SavedPlan.of(found, profile, job)
    return [{"plan.json": plan.to_json()}]

"""A plan: where and when each block of a step runs, why, and what can be done with it.

    >>> plan = tessel.load_plan("plan.json")  # doctest: +SKIP
    >>> plan.compare(); plan.draw("plan.svg"); plan.export("torchtitan", "titan.py")  # doctest: +SKIP

A plan is made by `tessel.plan` from a table of timings, or by `tessel.tune` from a model; the latter also
knows the program of each stage, so it can be run. Both kinds are documents of their own, whose fields are
attributes here. Checked in tests/tessel/jobs/test_plan.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessel.errors import DocumentError

if TYPE_CHECKING:
    from tessel.comparison import Comparison
    from tessel.engine.run import RunReport
    from tessel.exports.recipe import Recipe
    from tessel.jobs.shown.sections import Sections
    from tessel.planning.plan_result import PlanResult
    from tessel.planning.saved_plan import SavedPlan
    from tessel.schedule import Schedule
    from tessel.search.budget import StoppedBy
    from tessel.tuned_plan import TunedPlan


@dataclass(frozen=True, slots=True, eq=False, repr=False, kw_only=True)
class Plan:
    """A way to run a step on several devices.

    Attributes:
        tuned: what is saved of a tuned model; None of a table's plan.
        planned: what is saved of a table's plan; None of a tuned model's.
        found: what the planner weighed, where this plan was just planned from a table.
        stopped_by: what ended the search that made it; None of a plan that was loaded.
        fits: whether every device keeps its memory limit.
        shortfall: why nothing fits, where this is the plan that comes nearest to it.
    """

    tuned: TunedPlan | None = None
    planned: SavedPlan | None = None
    found: PlanResult | None = None
    stopped_by: StoppedBy | None = None
    fits: bool = True
    shortfall: str = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.document, name)

    @property
    def document(self) -> TunedPlan | SavedPlan:
        """What is saved."""
        found = self.tuned or self.planned
        assert found is not None, "a plan is of a model or of a table"
        return found

    @property
    def schedule(self) -> Schedule:
        """When each block of every micro-batch starts; of one pipeline."""
        return self.document.schedule

    @property
    def step_us(self) -> float:
        """Microseconds of one step of the schedule."""
        return self.document.step_us

    @property
    def static_bytes(self) -> tuple[int, ...]:
        """Bytes that each device of the pipeline holds throughout."""
        return self.document.static_bytes

    @property
    def title(self) -> str:
        """The model, and what it runs on."""
        if self.planned is not None:
            return self.planned.title
        assert self.tuned is not None, "a plan is of a model or of a table"
        return f"{self.tuned.model} on {self.tuned.device_model}"

    @property
    def step_ms(self) -> float:
        """Milliseconds of a training step; of a tuned model, to the end of the last block."""
        if self.planned is not None:
            return self.planned.training_step_us / 1e3
        return self.schedule.makespan * self.step_us / 1e3

    @property
    def lower_bound_ms(self) -> float:
        """Milliseconds that no plan of the table beats, or no order of the tuned stages."""
        if self.planned is not None:
            return self.planned.lower_bound_us / 1e3
        return self.schedule.lower_bound * self.step_us / 1e3

    @property
    def proof(self) -> str:
        """How near `step_ms` is to `lower_bound_ms`, in words."""
        if self.planned is not None:
            return self.planned.proof
        if self.schedule.optimal:
            return "its order proven optimal on these stages"
        return f"its order within {self.schedule.gap:.1%} of optimal on these stages"

    @property
    def step_interval_us(self) -> tuple[float, float] | None:
        """What the step takes at both ends of its layers' intervals; None where layers were measured."""
        if self.found is None or self.planned is None:
            return None
        from tessel.planning.step_interval import step_interval_us

        return step_interval_us(self.found.best, self.planned.profile, self.planned.job)

    def compare(self, schedules: Sequence[str] | None = None) -> Comparison:
        """Compare its order with the hand-written ones on its own stages and limits.

        Args:
            schedules: names of those to compare with; all that apply if None.

        Raises:
            ValueError: there is no such hand-written schedule; says which comes near.
        """
        from tessel.jobs.shown.pictures import build_comparison

        return build_comparison(self.schedule, self, schedules)

    def draw(
        self,
        out: str | os.PathLike[str],
        *,
        compare: bool = False,
        gains: bool = False,
        critical_path: bool = False,
        schedules: Sequence[str] | None = None,
        width: str | float | None = None,
        style: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Draw it: `.svg .png .pdf` a picture, `.html` a page, `.json` a Perfetto trace, `.txt`, `.md`.

        Args:
            out: the file; its suffix says what is drawn.
            compare: whether hand-written schedules stand on the same time axis.
            gains: whether the picture is a bar chart of the gains over 1F1B.
            critical_path: whether critical paths are drawn.
            schedules: names of the hand-written schedules; all that apply if None.
            width: `column`, `page`, `screen`, or inches.
            style: a file with the looks of what a picture is made of.

        Returns:
            Where it was written.

        Raises:
            UsageError: the suffix or the width is none.
            DocumentError: the style cannot be read, or the file not be written.
        """
        from tessel.jobs.shown.pictures import PictureOptions, write_picture

        options = PictureOptions(
            compare=compare,
            gains=gains,
            critical_path=critical_path,
            names=None if schedules is None else tuple(schedules),
            style=None if style is None else Path(style),
            width=width,
        )
        write_picture(self.schedule, self, Path(out), title=self.title, options=options)
        return Path(out)

    def export(
        self,
        to: str,
        out: str | os.PathLike[str] | None = None,
        *,
        roles: str | None = None,
        keep_names: bool = False,
        version: str | None = None,
    ) -> Mapping[str, str]:
        """Write it for `torch`, `torchtitan`, `megatron`, `primus` or `deepspeed`, or as `markdown`.

        Args:
            to: the framework.
            out: the file; nothing is written if None.
            roles: what each row of the table is, such as `Et*12nL`; told from the names if None.
            keep_names: whether names of modules stay as the table has them.
            version: release of torchtitan, `0.2.2`, `0.3.0` or `main`; if None the one installed, else
                the newest whose file ends as `out` does.

        Returns:
            The text of each file, by its path.

        Raises:
            ScheduleError: the framework cannot run it, or is not known; says why.
            DocumentError: a file cannot be written.
        """
        from tessel.jobs.exporting import export_recipe

        return export_recipe(self.recipe(), to, out, roles=roles, keep_names=keep_names, version=version)

    def recipe(self) -> Recipe:
        """Return what frameworks are told of it.

        Raises:
            ScheduleError: its stages are no chain with each stage on one device.
        """
        from tessel.exports.recipe import recipe_of_plan, recipe_of_saved_plan

        if self.planned is not None:
            return recipe_of_saved_plan(self.planned)
        assert self.tuned is not None, "a plan is of a model or of a table"
        return recipe_of_plan(self.tuned)

    def run(self, **options: Any) -> RunReport:
        """Run its schedule and 1F1B in turn on real ranks, check what they compute, and time them.

        A table's plan runs with stages that sleep as long as its blocks take. In a script, call it below
        `if __name__ == "__main__":`, since each rank is a process of its own.

        Args:
            options: those of `tessel run`, such as `stages="torch"`, `repeats=3`, `trust_model=True`.

        Raises:
            EngineError: a rank failed, or results are wrong; names them.
        """
        from tessel.jobs.running.run import run_plan

        return run_plan(self, **options)

    def explain(self) -> Sections:
        """Return what it consists of and why, as tables and sentences; `print` or a notebook shows it."""
        from tessel.jobs.shown.explanation import explain_plan

        return explain_plan(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it; the file appears whole or stays as it was.

        Raises:
            DocumentError: the folder is missing or cannot be written, or the disk is full.
        """
        from tessel.documents import save

        save(self.document, path)
        return Path(path)

    def save_table(self, path: str | os.PathLike[str]) -> Path:
        """Write the layers' costs that it was planned from as a table, CSV or JSON, to edit and to plan from.

        Raises:
            UsageError: the plan is of a tuned model, which has no such table.
            DocumentError: the file cannot be written.
        """
        from tessel.errors import UsageError
        from tessel.profiles import save_table

        if self.planned is None:
            raise UsageError(f"{self!r} is of a tuned model, which has no table; save the plan")
        save_table(self.planned.profile, Path(path))
        return Path(path)

    def to_json(self) -> bytes:
        """Return its document's bytes."""
        return self.document.to_json()

    def __repr__(self) -> str:
        return f"Plan({self.title!r}, {self.step_ms:.4g} ms a step, {self.proof})"

    def _repr_html_(self) -> str:
        """Return its tables, for a notebook."""
        return self.explain()._repr_html_()


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan that `tessel plan` or `tessel tune` wrote; every figure in it is computed again.

    Raises:
        DocumentError: the file cannot be read, is no plan, or contradicts itself; names the key.
    """
    schedule, plan = load_planned(path)
    if plan is None:
        raise DocumentError(
            f"{path} is a schedule without a plan; `tessel.load_schedule` reads it"
            if schedule.starts
            else f"{path} is no plan"
        )
    return plan


def load_planned(path: str | os.PathLike[str]) -> tuple[Schedule, Plan | None]:
    """Return the schedule that a file holds, and the plan that it is part of, if it is.

    Raises:
        DocumentError: the file cannot be read, or holds no schedule.
    """
    from records.own_files import other_files_named
    from tessel.documents import DocumentKind, detect_kind, load_schedule
    from tessel.loading import load_plan as load_tuned_plan
    from tessel.planning.saved_plan import load_saved_plan

    file = Path(path)
    with other_files_named(file, "a plan or a schedule", DocumentError):
        kind = detect_kind(file)
    match kind:
        case DocumentKind.PLAN:
            plan = Plan(tuned=load_tuned_plan(file))
        case DocumentKind.LAYOUT:
            plan = Plan(planned=load_saved_plan(file))
        case _:
            return load_schedule(file), None
    return plan.schedule, plan

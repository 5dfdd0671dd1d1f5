"""The options of `tessel schedule`: of a shape's blocks, and of the search and what becomes of its answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.options.search_options import (
    OUTPUT_PANEL,
    SEARCH_PANEL,
    JsonOption,
    TimeLimitOption,
    work_option,
)
from scripts.reports.picture_options import style_option, width_option
from tessel.jobs.inputs.arguments import check_counts
from tessel.jobs.inputs.limits import check_overlap_factor, make_budget
from tessel.jobs.shown.pictures import load_look, parse_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scripts.documents.searches import PrintedSpread
    from tessel.picture.style import PictureStyle
    from tessel.schedule import Schedule
    from tessel.search.budget import SearchBudget

_SHAPE = "Shape options"

DEFAULT_MICRO_BATCHES = 8
"""Micro-batches of a schedule unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """What a shape is made of; a placement file says all of it itself."""

    devices: Annotated[
        int | None, typer.Option(help="Number of devices.", rich_help_panel=_SHAPE, show_default=False)
    ] = None
    infer: Annotated[
        bool, typer.Option("--infer", help="Leave out the backward and all memory.", rich_help_panel=_SHAPE)
    ] = False
    split_backward: Annotated[
        bool,
        typer.Option(
            "--split-backward",
            help="Split each backward into its input and weight halves.",
            rich_help_panel=_SHAPE,
        ),
    ] = False
    choose_backward: Annotated[
        bool,
        typer.Option(
            "--choose-backward",
            help="Let the search choose joint or split, block by block.",
            rich_help_panel=_SHAPE,
        ),
    ] = False
    recompute: Annotated[
        bool,
        typer.Option("--recompute", help="Recompute before each backward.", rich_help_panel=_SHAPE),
    ] = False
    forward_span: Annotated[
        str | None,
        typer.Option(help="Steps of a forward block; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None
    backward_span: Annotated[
        str | None,
        typer.Option(help="Steps of a joint backward; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None
    backward_input_span: Annotated[
        str | None,
        typer.Option(help="Steps of the input half; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None
    backward_weight_span: Annotated[
        str | None,
        typer.Option(help="Steps of the weight half; one, or one per stage.", rich_help_panel=_SHAPE),
    ] = None
    forward_memory: Annotated[
        str | None,
        typer.Option(
            help="Units that a forward block adds and its backward frees; one, or one per stage.",
            rich_help_panel=_SHAPE,
        ),
    ] = None
    recompute_memory: Annotated[
        str | None,
        typer.Option(
            help="Units that a recomputation adds and its backward frees; one, or one per stage.",
            rich_help_panel=_SHAPE,
        ),
    ] = None
    tensor_parallel_span: Annotated[
        int | None, typer.Option(help="Steps of a tensor-parallel block.", rich_help_panel=_SHAPE)
    ] = None
    chunks: Annotated[
        int | None,
        typer.Option(help="Stages per device, for `interleaved` and `zbv`.", rich_help_panel=_SHAPE),
    ] = None
    lag: Annotated[
        str | None, typer.Option(help="Steps between devices; one, or one per hop.", rich_help_panel=_SHAPE)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """What is searched for on a placement, for how long, and where the answer goes."""

    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches of one step.  [default: 8]", show_default=False)
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(
            help="Micro-batches that differ: factors of spans and how many, `1x6,2.5x2`, or a .json file.",
            show_default=False,
        ),
    ] = None
    replicas: Annotated[
        int | None,
        typer.Option(help="Share out the batch to so many replicas of the pipeline.", show_default=False),
    ] = None
    keep_order: Annotated[
        bool,
        typer.Option("--keep-order", help="Give each replica consecutive micro-batches of the batch."),
    ] = False
    memory: Annotated[
        str | None, typer.Option(help="Limit in units: one number, or one per device (`6,6,4,4`).")
    ] = None
    overlap_factor: Annotated[
        float | None,
        typer.Option(
            help="Share of their sum that a forward and a backward take that run together on a device: 0.6.",
            show_default=False,
        ),
    ] = None
    spread: Annotated[
        str | None,
        typer.Option(
            help="How the duration of each block varies: lognormal:0.1, uniform:0.2, or as recorded steps "
            "(.csv) or records (.jsonl) do; the makespan gets quantiles.",
            show_default=False,
        ),
    ] = None
    period_only: Annotated[
        bool,
        typer.Option(
            "--period-only",
            help="Find only the repetend, without warm-up and cool-down.",
            rich_help_panel=SEARCH_PANEL,
        ),
    ] = False
    frontier: Annotated[
        bool,
        typer.Option(
            "--frontier",
            help="Show the optimal period for each memory limit; with --micro-batches, the optimal makespan.",
            rich_help_panel=SEARCH_PANEL,
        ),
    ] = False
    work: Annotated[float | None, work_option("10, unless --time-limit is given")] = None
    time_limit: TimeLimitOption = None
    seed: Annotated[int, typer.Option(help="Seed of the search.", rich_help_panel=SEARCH_PANEL)] = 0
    save: Annotated[
        Path | None, typer.Option(help="Write the schedule to this file.", rich_help_panel=OUTPUT_PANEL)
    ] = None
    width: Annotated[str | None, width_option(OUTPUT_PANEL)] = None
    style: Annotated[Path | None, style_option(OUTPUT_PANEL)] = None
    json: JsonOption = False

    def check(self) -> None:
        """Refuse a number of micro-batches that is none, and a share.

        Raises:
            typer.BadParameter: a number is less than 1.
            UsageError: a pair takes no share of its sum, or durations vary in no way that there is.
        """
        check_counts(self, ("micro_batches", "replicas"))
        check_overlap_factor(self.overlap_factor)
        if self.spread is not None:
            from tessel.jobs.inputs.spreads import spread_of

            spread_of(self.spread)

    def spread_of(self, schedules: Sequence[Schedule]) -> PrintedSpread | None:
        """Return what the makespan of replicas is where durations vary; None where that was not asked for.

        Raises:
            UsageError: it is no distribution.
            DocumentError: a file of recorded steps cannot be read.
            RecordFileError: a file of records cannot be read.
        """
        if self.spread is None:
            return None
        from scripts.documents.searches import PrintedSpread
        from tessel.batches.spread import QUANTILES
        from tessel.jobs.inputs.spreads import spread_of
        from tessel.search.batches.sampled import spread_of_makespan

        distribution = spread_of(self.spread)
        found = spread_of_makespan(schedules, distribution, seed=self.seed)
        return PrintedSpread(
            distribution=str(distribution),
            mean=found.mean,
            quantiles={f"p{each}": steps for each, steps in zip(QUANTILES, found.quantiles, strict=True)},
            greedy_ratio=found.greedy_ratio,
        )

    def check_looks(self) -> None:
        """Refuse looks that no picture has; to be called after the search is compiled, which pictures import.

        Raises:
            typer.BadParameter: a width is none.
            DocumentError: the style cannot be read.
        """
        if self.width is not None:
            self.picture_width()
        if self.style is not None:
            self.picture_style()

    def picture_width(self) -> float | None:
        """Return the width of a frontier's picture in inches; None where it is as for half a screen."""
        return None if self.width is None else parse_width(self.width)

    def picture_style(self) -> PictureStyle:
        """Return how a frontier's picture looks, over the defaults."""
        return load_look(self.style)

    def make_budget(self) -> SearchBudget:
        """Return what `--work` and `--time-limit` allow."""
        return make_budget(self.work, self.time_limit)

"""A session opened from the options of a search, which are checked first.

Checked in tests/scripts/options/test_tuning_options.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cost_model.kernel_model import load_kernel_model
from cost_model.stage_model import MANIFEST, StageModel, load_stage_model
from records import Match
from records.backend_names import CURRENT_NAMES
from tuner.partition.assignment import Assignment
from tuner.pricing.protocol import Pricing
from tuner.tuning.search.options import SearchOptions
from tuner.tuning.session import Report, Session, SessionSettings, start_session

_FEW_TRIALS = 32
"""Below this, MetaSchedule's evolution is not used unless asked for; equal to the backend's own number."""


@contextmanager
def open_search(options: SearchOptions, report: Report) -> Iterator[Session]:
    """Open what measuring needs; finished measurements are kept on any exit.

    Raises:
        ValueError: a number is out of range, or a text is none that the option takes; names it.
        UnknownNameError: there is no such target or backend.
        TunerError: the target is not the device that is here, or a backend cannot run here.
    """
    for name, least in (("trials", 0), ("jobs", 1), ("threads", 1)):
        value = getattr(options, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; it is at least {least}")
    is_default = options.proposer is None
    if 0 < options.trials < _FEW_TRIALS and is_default and not options.target.startswith("cpu"):
        report.on_note(
            f"{options.trials} trials are too few for evolution to learn from, so schedules are drawn at "
            "random"
        )
    settings = SessionSettings(
        backend_names=backend_references(options, report),
        trials=options.trials,
        database=None if options.tvm_database is None else str(options.tvm_database),
        proposer=options.proposer,
        language_model=None if options.language_model is None else str(options.language_model),
        num_threads=options.threads,
        jobs=options.jobs,
        seed=options.seed,
        match=Match(options.match),
        fleet=options.fleet,
        assignments=assignments_of(options),
    )
    with start_session(
        options.target,
        settings,
        records_url=options.records,
        pricing=_pricing(options),
        on_progress=report.on_progress,
    ) as session:
        yield session


def assignments_of(options: SearchOptions) -> tuple[Assignment, ...]:
    """Return what `assign` says.

    Raises:
        ValueError: a text is no assignment.
    """
    return tuple(map(Assignment.parse, options.assign))


def backend_references(options: SearchOptions, report: Report) -> tuple[str, ...] | None:
    """Return what `backends` names; a backend's old name is noted."""
    for reference in options.backends or ():
        name, _, _ = reference.partition("?")
        if name in CURRENT_NAMES:
            report.on_note(
                f"backend {name} is now {CURRENT_NAMES[name]}; the old name goes with the next version"
            )
    return None if options.backends is None else tuple(options.backends)


def _pricing(options: SearchOptions) -> Pricing:
    if not 0 <= options.regret < 1 or (options.budget is not None and options.budget < 0):
        raise ValueError("regret is a share from 0 to below 1, and budget a number >= 0")
    return Pricing(
        mode=options.price,
        budget=options.budget,
        regret=options.regret,
        prune=options.prune,
        model=None if options.cost_model is None else load_kernel_model(options.cost_model),
        stage_model=_stage_model(options.cost_model),
        num_threads=options.threads,
    )


def _stage_model(folder: Path | None) -> StageModel | None:
    """Load the correction of stages that stands beside a kernel model, where one does."""
    return None if folder is None or not (folder / MANIFEST).exists() else load_stage_model(folder)

"""The options that `tune`, `partition` and `stages` share, and the tuner's session they turn into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from scripts import completion, console
from scripts.arguments import check_choice, parse_names, parse_shapes

if TYPE_CHECKING:
    from cost_model import StageModel
    from tuner.frontend import Model
    from tuner.pricing import PriceMode
    from tuner.session import Session

MODEL_HELP = "A name of the zoo (`gpt2`, `gpt2:tiny`, …), an .onnx or .pt2 file, or `module:function`."
SCHEDULE_COST_MODELS = ("tvm", "records")
PRICES = ("measured", "active", "model")
DEFAULT_RECORDS = "sqlite:///out/records.db"

_TUNING = "Tuning options"

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=completion.models)
]
TargetOption = Annotated[
    str,
    typer.Option(
        help="`cpu`, `cuda`, a TVM tag, or rpc://host:port/key?target=….", autocompletion=completion.targets
    ),
]
RecordsOption = Annotated[str, typer.Option(help="Where records are kept; an SQLAlchemy URL or a path.")]
BackendsOption = Annotated[
    str | None,
    typer.Option(
        help="Backends to choose among, by commas; all that are here if left out.",
        rich_help_panel=_TUNING,
        autocompletion=completion.backends,
    ),
]
TrialsOption = Annotated[
    int, typer.Option(help="MetaSchedule trials a kernel; 0 leaves tuning out.", rich_help_panel=_TUNING)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="Threads each measurement uses; every core a device can have if left out.",
        rich_help_panel=_TUNING,
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(help="Programs built at once; measuring is always one at a time.", rich_help_panel=_TUNING),
]
PriceOption = Annotated[
    str,
    typer.Option(
        help="`measured`: measure all candidates; `active`: where the decision needs it; `model`: none.",
        rich_help_panel=_TUNING,
        autocompletion=completion.one_of(*PRICES),
        callback=lambda text: check_choice("--price", text, PRICES),
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option(help="Most candidates that `--price active` measures.", rich_help_panel=_TUNING),
]
RegretOption = Annotated[
    float,
    typer.Option(help="Share of the cost that `--price active` may miss.", rich_help_panel=_TUNING),
]
CostModelOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a trained cost model; trained from the records if left out.", rich_help_panel=_TUNING
    ),
]
PruneOption = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Price only the largest sub-graphs of each backend, and what they leave over.",
        rich_help_panel=_TUNING,
    ),
]
MatchName = Literal["exact", "compatible", "any"]
MatchOption = Annotated[
    MatchName,
    typer.Option(
        help="Records used again: of equal versions and threads, of equal threads, or of the same device.",
        rich_help_panel=_TUNING,
    ),
]
SecondLevelOption = Annotated[
    int,
    typer.Option(
        help="Whole programs that an evolutionary search may measure after the first answer.",
        rich_help_panel=_TUNING,
    ),
]
CoalesceOption = Annotated[
    bool,
    typer.Option(
        "--coalesce",
        help="Try larger sub-graphs, and fewer backends; used where the whole model is measured faster.",
        rich_help_panel=_TUNING,
    ),
]
DatabaseOption = Annotated[
    Path | None,
    typer.Option(
        "--tvm-database",
        help="Folder of a MetaSchedule database that TVM wrote; read, and added to with --trials.",
        rich_help_panel=_TUNING,
    ),
]
ScheduleCostModelOption = Annotated[
    str,
    typer.Option(
        "--schedule-cost-model",
        help="Who orders MetaSchedule's trials: TVM's own model (`tvm`), or one of all trials in the records "
        "(`records`).",
        rich_help_panel=_TUNING,
        autocompletion=completion.one_of(*SCHEDULE_COST_MODELS),
        callback=lambda text: check_choice("--schedule-cost-model", text, SCHEDULE_COST_MODELS),
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Bind a symbolic shape: input_ids=1,128; may be repeated.")
]
BatchOption = Annotated[int, typer.Option(help="Batch size of one micro-batch, for zoo models.")]
SeedOption = Annotated[int, typer.Option(help="Seed of inputs and searches.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def load_model(name: str, *, shapes: list[str] | None, batch: int, training: bool) -> Model:
    """Load the model that the command line names."""
    from tuner import frontend

    if batch < 1:
        raise typer.BadParameter(f"--batch is {batch}; a micro-batch has at least one sample")
    with console.progress_bar(f"loading {name}"):
        return frontend.load_model(name, shapes=parse_shapes(shapes or []), batch=batch, training=training)


def threads_of_device(devices: int) -> int:
    """Return the threads each of so many pipeline devices can have on this machine, at least one."""
    import os

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // devices)


@contextmanager
def open_session(
    *,
    target: str,
    records: str,
    backends: str | None,
    trials: int,
    threads: int | None,
    jobs: int,
    seed: int,
    match: MatchName = "exact",
    price: str = "measured",
    budget: int | None = None,
    regret: float = 0.02,
    cost_model: Path | None = None,
    prune: bool = False,
    database: Path | None = None,
    schedule_cost_model: str = "tvm",
) -> Iterator[Session]:
    """Open what measuring needs, with progress on stderr; finished measurements are kept on any exit."""
    from cost_model import load_kernel_model
    from records import Match
    from tuner.pricing import Pricing
    from tuner.session import start_session

    if not 0 <= regret < 1 or (budget is not None and budget < 0):
        raise typer.BadParameter("--regret is a share from 0 to below 1, and --budget a number >= 0")
    for name, value, least in (("--trials", trials, 0), ("--jobs", jobs, 1), ("--threads", threads, 1)):
        if value is not None and value < least:
            raise typer.BadParameter(f"{name} is {value}; it is at least {least}")
    with (
        console.progress_bar("starting") as update,
        start_session(
            target,
            records_url=records,
            backend_names=parse_names(backends),
            trials=trials,
            database=None if database is None else str(database),
            schedule_cost_model=schedule_cost_model,
            num_threads=threads,
            jobs=jobs,
            seed=seed,
            match=Match(match),
            pricing=Pricing(
                mode=cast("PriceMode", price),  # checked above
                budget=budget,
                regret=regret,
                prune=prune,
                model=None if cost_model is None else load_kernel_model(cost_model),
                stage_model=_stage_model(cost_model),
            ),
            on_progress=lambda progress: update(progress.text, progress.completed, progress.total),
        ) as session,
    ):
        yield session


def _stage_model(folder: Path | None) -> StageModel | None:
    """Load the correction of stages that stands beside a kernel model, where one does."""
    from cost_model import load_stage_model
    from cost_model.stage_model import MANIFEST

    return None if folder is None or not (folder / MANIFEST).exists() else load_stage_model(folder)


def check_writable_folder(folder: Path) -> None:
    """Refuse an output folder before anything is measured, not after.

    Raises:
        typer.BadParameter: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".tessel-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise typer.BadParameter(
            f"--out {folder} cannot be written ({error.strerror or error}); name a folder that can"
        ) from error

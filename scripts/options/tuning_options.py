"""The options that commands share which measure, and the tuner's session they turn into.

They are fields of one class, so that a new one is declared once; `takes_options` makes them a command's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from scripts.options import completion
from scripts.options.arguments import (
    check_choice,
    check_remote_target,
    check_target,
    parse_names,
    parse_shapes,
    parse_values,
)
from scripts.terminal import console

if TYPE_CHECKING:
    from cost_model import StageModel
    from tuner.frontend import Model
    from tuner.partition.assignment import Assignment
    from tuner.pricing.protocol import PriceMode, Pricing
    from tuner.tuning.session import Session

MODEL_HELP = "A name of the zoo (`gpt2`, `gpt2:tiny`, …), an .onnx or .pt2 file, or `module:function`."
PROPOSERS = ("language", "draft", "neighbour", "evolutionary", "random")
_FEW_TRIALS = 32
"""Below this, MetaSchedule's evolution is not used unless asked for; equal to the backend's own number."""
PRICES = ("measured", "active", "model")
DEFAULT_RECORDS = "sqlite:///out/records.db"

_TUNING = "Tuning options"

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=completion.models)
]
TargetOption = Annotated[
    str,
    typer.Option(
        help="`cpu`, `cuda`, or a TVM tag that names this machine's own device; others cannot be measured.",
        autocompletion=completion.targets,
        callback=check_target,
    ),
]
RemoteTargetOption = Annotated[
    str,
    typer.Option(
        help="`cpu`, `cuda`, a TVM tag that names this machine's own device, or "
        "`rpc://HOST:PORT/KEY?target=TAG` for a device behind TVM's RPC tracker.",
        autocompletion=completion.targets,
        callback=check_remote_target,
    ),
]
RecordsOption = Annotated[str, typer.Option(help="Where records are kept; an SQLAlchemy URL or a path.")]
BackendsOption = Annotated[
    str | None,
    typer.Option(
        help="Backends to choose among, separated by commas; default: all available.",
        rich_help_panel=_TUNING,
        autocompletion=completion.backends,
    ),
]
AssignOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assign",
        help="Let only these backends run some operators, by name or path of their layer: "
        "nn.softmax=tvm,torch or '*.attn.*=torch'; may be repeated.",
        rich_help_panel=_TUNING,
    ),
]
TrialsOption = Annotated[
    int,
    typer.Option(help="MetaSchedule trials of each kernel; 0 tunes none.", rich_help_panel=_TUNING),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="Threads of each measurement and of cost-model training; if left out, measurements use "
        "every core available to a device, and training every idle one.",
        rich_help_panel=_TUNING,
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(
        help="Programs built, and placements searched, at once; one is measured at a time.",
        rich_help_panel=_TUNING,
    ),
]
PriceOption = Annotated[
    str,
    typer.Option(
        help="Latencies: `measured`; `active`, measured where decisions depend on them; `model`, predicted.",
        rich_help_panel=_TUNING,
        autocompletion=completion.one_of(*PRICES),
        callback=lambda text: check_choice("--price", text, PRICES),
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option(help="Maximum number of candidates to measure.", rich_help_panel=_TUNING),
]
RegretOption = Annotated[
    float,
    typer.Option(help="Optimality gap that `--price active` accepts.", rich_help_panel=_TUNING),
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
        help="Price only the largest sub-graphs of each backend, and the remainders.",
        rich_help_panel=_TUNING,
    ),
]
MatchName = Literal["exact", "compatible", "any"]
MatchOption = Annotated[
    MatchName,
    typer.Option(
        help="Which records to reuse: of the same versions and threads, of the same threads, or of the "
        "same device.",
        rich_help_panel=_TUNING,
    ),
]
GraphLevelSearchOption = Annotated[
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
        help="Try larger sub-graphs, and fewer backends; used if the model is measured faster end to end.",
        rich_help_panel=_TUNING,
    ),
]
DatabaseOption = Annotated[
    Path | None,
    typer.Option(
        "--tvm-database",
        help="Folder of a MetaSchedule database in TVM's format; with --trials, new trials are added to it.",
        rich_help_panel=_TUNING,
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        help="Address of a fleet's scheduler, whose machines measure instead of this one.",
        rich_help_panel=_TUNING,
    ),
]
ProposerOption = Annotated[
    str | None,
    typer.Option(
        help="Who proposes MetaSchedule's trials: a model of decisions (`draft`), the language model ranked "
        "by that (`language`), similar kernels in the records (`neighbour`), TVM's search (`evolutionary`), "
        "or random sampling (`random`); "
        "default: `draft`; on a GPU `evolutionary` from 32 trials on, else `random`.",
        rich_help_panel=_TUNING,
        autocompletion=completion.one_of(*PROPOSERS),
        callback=lambda text: None if text is None else check_choice("--proposer", text, PROPOSERS),
    ),
]
LanguageModelOption = Annotated[
    Path | None,
    typer.Option(
        "--language-model",
        help="Folder of the language model that proposes; default: out/language.",
        rich_help_panel=_TUNING,
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Bind a symbolic shape: input_ids=1,128; may be repeated.")
]
ValueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        help="Fix an input of an ONNX file to a constant: use_cache_branch=false; may be repeated.",
    ),
]
BatchOption = Annotated[int, typer.Option(help="Batch size of one micro-batch, for zoo models.")]
SeedOption = Annotated[int, typer.Option(help="Seed of inputs and searches.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def load_model(
    name: str,
    *,
    shapes: list[str] | Mapping[str, tuple[int, ...]] | None,
    values: list[str] | None = None,
    batch: int,
    training: bool,
) -> Model:
    """Load the model that the command line names, for the shapes that it gives or that were read from it."""
    from tuner import frontend

    if batch < 1:
        raise typer.BadParameter(f"--batch is {batch}; a micro-batch has at least one sample")
    with console.progress_bar(f"loading {name}"):
        given = shapes if isinstance(shapes, Mapping) else parse_shapes(shapes or [])
        fixed = parse_values(values or [])
        loaded = frontend.load_model(name, shapes=given, values=fixed, batch=batch, training=training)
    for note in loaded.notes:
        console.print_note(note)
    return loaded


def threads_of_device(devices: int) -> int:
    """Return how many threads each pipeline device gets if they share this machine, at least one."""
    from records.cores import num_usable_cores

    return max(1, num_usable_cores() // devices)


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions:
    """What any command takes that measures."""

    target: TargetOption = "cpu"
    records: RecordsOption = DEFAULT_RECORDS
    backends: BackendsOption = None
    trials: TrialsOption = 0
    threads: ThreadsOption = None
    jobs: JobsOption = 1
    seed: SeedOption = 0


@dataclass(frozen=True, kw_only=True)
class TuningOptions(MeasuringOptions):
    """What a command takes besides that chooses among backends."""

    price: PriceOption = "measured"
    budget: BudgetOption = None
    regret: RegretOption = 0.02
    cost_model: CostModelOption = None
    assign: AssignOption = None
    prune: PruneOption = False
    match: MatchOption = "exact"
    database: DatabaseOption = None
    fleet: FleetOption = None
    proposer: ProposerOption = None
    language_model: LanguageModelOption = None


@contextmanager
def open_session(options: MeasuringOptions) -> Iterator[Session]:
    """Open what measuring needs, with progress on stderr; finished measurements are kept on any exit."""
    from records import Match
    from tuner.tuning.session import SessionSettings, start_session

    tuning = options if isinstance(options, TuningOptions) else _as_tuning(options)
    for name, least in (("trials", 0), ("jobs", 1), ("threads", 1)):
        value = getattr(tuning, name)
        if value is not None and value < least:
            raise typer.BadParameter(f"--{name} is {value}; it is at least {least}")
    if 0 < tuning.trials < _FEW_TRIALS and tuning.proposer is None and not tuning.target.startswith("cpu"):
        console.print_note(
            f"{tuning.trials} trials are too few for evolution to learn from, so schedules are drawn at "
            "random"
        )
    with (
        console.progress_bar("starting") as update,
        start_session(
            tuning.target,
            SessionSettings(
                backend_names=_backend_references(tuning.backends),
                trials=tuning.trials,
                database=None if tuning.database is None else str(tuning.database),
                proposer=tuning.proposer,
                language_model=None if tuning.language_model is None else str(tuning.language_model),
                num_threads=tuning.threads,
                jobs=tuning.jobs,
                seed=tuning.seed,
                match=Match(tuning.match),
                fleet=tuning.fleet,
                assignments=assignments_of(tuning),
            ),
            records_url=tuning.records,
            pricing=_pricing(tuning),
            on_progress=lambda progress: update(progress.text, progress.completed, progress.total),
        ) as session,
    ):
        yield session


def _as_tuning(options: MeasuringOptions) -> TuningOptions:
    """Return the options of a session; those that the command lacks have their defaults."""
    names = [field.name for field in fields(TuningOptions)]
    return TuningOptions(**{name: getattr(options, name) for name in names if hasattr(options, name)})


def assignments_of(options: TuningOptions) -> tuple[Assignment, ...]:
    """Return what `--assign` says."""
    from tuner.partition.assignment import Assignment

    try:
        return tuple(Assignment.parse(text) for text in options.assign or ())
    except ValueError as error:
        raise typer.BadParameter(f"--assign: {error}") from error


def _backend_references(text: str | None) -> tuple[str, ...] | None:
    """Return what `--backends` names; a backend's old name is noted on stderr, once."""
    from records.backend_names import CURRENT_NAMES

    references = parse_names(text)
    for reference in references or ():
        name, _, _ = reference.partition("?")
        if name in CURRENT_NAMES:
            console.print_note(
                f"backend {name} is now {CURRENT_NAMES[name]}; the old name goes with the next version"
            )
    return references


def _pricing(options: TuningOptions) -> Pricing:
    from cost_model import load_kernel_model
    from tuner.pricing.protocol import Pricing

    if not 0 <= options.regret < 1 or (options.budget is not None and options.budget < 0):
        raise typer.BadParameter("--regret is a share from 0 to below 1, and --budget a number >= 0")
    return Pricing(
        mode=cast("PriceMode", options.price),  # its option's callback checked it
        budget=options.budget,
        regret=options.regret,
        prune=options.prune,
        model=None if options.cost_model is None else load_kernel_model(options.cost_model),
        stage_model=_stage_model(options.cost_model),
        num_threads=options.threads,
    )


def _stage_model(folder: Path | None) -> StageModel | None:
    """Load the correction of stages that stands beside a kernel model, where one does."""
    from cost_model import load_stage_model
    from cost_model.stage_model import MANIFEST

    return None if folder is None or not (folder / MANIFEST).exists() else load_stage_model(folder)


def check_writable_folder(folder: Path, *, option: str = "--out") -> None:
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
            f"{option} {folder} cannot be written ({error.strerror or error}); name a folder that can"
        ) from error

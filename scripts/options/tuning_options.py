"""The options that commands share which measure, and the tuner's session they turn into.

They are fields of one class, so that a new one is declared once; `takes_options` makes them a command's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from scripts.options import completion
from tessel.jobs import sessions, sources
from tessel.jobs.inputs.arguments import (
    check_choice,
    check_remote_target,
    check_target,
    parse_names,
    parse_shape_choices,
    parse_shapes,
    parse_values,
)
from tessel.progress import messages
from tuner.tuning.search.options import MatchName, SearchOptions

if TYPE_CHECKING:
    from tuner.frontend import Model
    from tuner.tuning.session import Session

MODEL_HELP = "A name of the zoo (`gpt2`, `gpt2:tiny`, …), an .onnx or .pt2 file, or `module:function`."
PROPOSERS = ("language", "draft", "neighbour", "evolutionary", "random")
PRICES = ("measured", "active", "model")


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=MODEL_HELP,
        autocompletion=completion.models,
        callback=sources.check_model,
    ),
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
RecordsOption = Annotated[str, "Where records are kept; an SQLAlchemy URL or a path."]
BackendsOption = Annotated[
    str | None,
    typer.Option(
        help="Backends to choose among, such as tvm,blas; default: all available.",
        autocompletion=completion.backends,
    ),
]
AssignOption = Annotated[
    list[str] | None,
    "Let only these backends run some operators, by name or path of their layer: "
    "nn.softmax=tvm,torch or '*.attn.*=torch'; may be repeated.",
]
TrialsOption = Annotated[int, "MetaSchedule trials of each kernel; 0 tunes none."]
ThreadsOption = Annotated[
    int | None,
    "Threads of each measurement and of cost-model training, such as 1; if left out, measurements use "
    "every core available to a device, and training every idle one.",
]
JobsOption = Annotated[int, "Programs built, and placements searched, at once; one is measured at a time."]
PriceOption = Annotated[
    str,
    typer.Option(
        help="Latencies: `measured`; `active`, measured where decisions depend on them; `model`, predicted.",
        autocompletion=completion.one_of(*PRICES),
        callback=lambda text: check_choice("--price", text, PRICES),
    ),
]
BudgetOption = Annotated[int | None, "Maximum number of candidates to measure."]
RegretOption = Annotated[float, "Optimality gap that `--price active` accepts."]
CostModelOption = Annotated[
    Path | None, "Folder of a trained cost model; trained from the records if left out."
]
PruneOption = Annotated[bool, "Price only the largest sub-graphs of each backend, and the remainders."]
MatchOption = Annotated[
    MatchName,
    "Which records to reuse: of the same versions and threads, of the same threads, or of the same device.",
]
GraphLevelSearchOption = Annotated[
    int, "Whole programs that an evolutionary search may measure after the first answer."
]
CoalesceOption = Annotated[
    bool, "Try larger sub-graphs, and fewer backends; used if the model is measured faster end to end."
]
DatabaseOption = Annotated[
    Path | None,
    typer.Option(
        "--tvm-database",
        help="Folder of a MetaSchedule database in TVM's format; with --trials, new trials are added to it.",
    ),
]
FleetOption = Annotated[
    str | None, "Address of a fleet's scheduler, whose machines measure instead of this one."
]
ProposerOption = Annotated[
    str | None,
    typer.Option(
        help="Who proposes MetaSchedule's trials: a model of decisions (`draft`), the language model ranked "
        "by that (`language`), similar kernels in the records (`neighbour`), TVM's search (`evolutionary`), "
        "or random sampling (`random`); "
        "default: `draft`; on a GPU `evolutionary` from 32 trials on, else `random`.",
        autocompletion=completion.one_of(*PROPOSERS),
        callback=lambda text: None if text is None else check_choice("--proposer", text, PROPOSERS),
    ),
]
LanguageModelOption = Annotated[
    Path | None, "Folder of the language model that proposes; default: out/language."
]
ShapeOption = Annotated[
    list[str] | None,
    "Bind a symbolic shape, which is asked for if left out: input_ids=1,128; may be repeated.",
]
ValueOption = Annotated[
    list[str] | None,
    "Fix an input of an ONNX file to a constant, such as use_cache_branch=false; none if left out.",
]
BatchOption = Annotated[int, "Batch size of one micro-batch, for zoo models."]
SeedOption = Annotated[int, "Seed of inputs and searches."]
JsonOption = Annotated[bool, "Print one JSON document on stdout."]


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
    with messages.bar(f"loading {name}"):
        given = shapes if isinstance(shapes, Mapping) else parse_shapes(shapes or [])
        fixed = parse_values(values or [])
        loaded = frontend.load_model(name, shapes=given, values=fixed, batch=batch, training=training)
    for note in loaded.notes:
        messages.note(note)
    return loaded


@dataclass(frozen=True, kw_only=True)
class MeasuringOptions:
    """What any command takes that measures."""

    target: TargetOption = SearchOptions.target
    records: RecordsOption = SearchOptions.records
    backends: BackendsOption = None
    trials: TrialsOption = SearchOptions.trials
    threads: ThreadsOption = SearchOptions.threads
    jobs: JobsOption = SearchOptions.jobs
    seed: SeedOption = SearchOptions.seed


@dataclass(frozen=True, kw_only=True)
class TuningOptions(MeasuringOptions):
    """What a command takes besides that chooses among backends."""

    price: PriceOption = SearchOptions.price
    budget: BudgetOption = SearchOptions.budget
    regret: RegretOption = SearchOptions.regret
    cost_model: CostModelOption = SearchOptions.cost_model
    assign: AssignOption = None
    prune: PruneOption = SearchOptions.prune
    match: MatchOption = SearchOptions.match
    database: DatabaseOption = SearchOptions.tvm_database
    fleet: FleetOption = SearchOptions.fleet
    proposer: ProposerOption = SearchOptions.proposer
    language_model: LanguageModelOption = SearchOptions.language_model


_Job = TypeVar("_Job")


@contextmanager
def open_session(options: MeasuringOptions) -> Iterator[Session]:
    """Open what measuring needs, with progress on stderr; finished measurements are kept on any exit."""
    with sessions.open_session(search_options(options)) as session:
        yield session


def search_options(options: MeasuringOptions) -> SearchOptions:
    """Return what the command line says of the search; options that a command lacks have their defaults."""
    return job_options(SearchOptions, options)


def job_options(kind: type[_Job], options: object) -> _Job:
    """Return a job's options of the same names; only how lists are written down differs.

    Args:
        options: as the command line gave them.
    """
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # dataclasses, as all options are
    given = {name: getattr(options, name) for name in names if hasattr(options, name)}
    for name, read in _LISTS.items():
        if name in given:
            given[name] = read(given[name])
    for name, own in (("tvm_database", "database"), ("format", "format_name")):
        if name in names and hasattr(options, own):
            given[name] = getattr(options, own)
    return kind(**given)


def _shapes(texts: list[str] | None) -> Mapping[str, tuple[int, ...]] | list[dict[str, tuple[int, ...]]]:
    """Return one set of shapes, or several where an input has several."""
    found = parse_shape_choices(texts or [])
    return found if len(found) > 1 else found[0]


_LISTS: Mapping[str, Callable[[Any], Any]] = {
    "backends": parse_names,
    "assign": lambda texts: tuple(texts or ()),
    "shape": _shapes,
    "value": lambda texts: parse_values(texts or []),
}
"""How options that stand for several values are read."""


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

"""The options that commands share which measure, and the tuner's session they turn into.

They are fields of one class, so that a new one is declared once; `takes_options` makes them a command's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, cast

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
    from cost_model.language.network import Network
    from tuner.frontend import Model
    from tuner.graph.node_set import NodeSet
    from tuner.partition.assignment import Assignment
    from tuner.pricing.protocol import PriceMode, Pricing
    from tuner.targets.target import Target
    from tuner.tuning.session import Session

MODEL_HELP = "A name of the zoo (`gpt2`, `gpt2:tiny`, …), an .onnx or .pt2 file, or `module:function`."
SCHEDULE_COST_MODELS = ("tvm", "records", "draft")
PROPOSERS = ("language", "draft", "neighbour", "evolutionary", "random")
_FEW_TRIALS = 32
"""Below this, MetaSchedule's evolution is not used unless asked for; equal to the backend's own number."""
PRICES = ("measured", "active", "model")
DEFAULT_RECORDS = "sqlite:///out/records.db"

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
        autocompletion=completion.backends,
    ),
]
AssignOption = Annotated[
    list[str] | None,
    typer.Option(
        "--assign",
        help="Let only these backends run some operators, by name or path of their layer: "
        "nn.softmax=tvm,torch or '*.attn.*=torch'; may be repeated.",
    ),
]
TrialsOption = Annotated[
    int,
    typer.Option(help="Trials of each kernel, built-in and MetaSchedule's; 0 tunes none."),
]
TrialBudgetOption = Annotated[
    int | None,
    typer.Option(
        help="Trials of all kernels of the model together, built-in and MetaSchedule's, allocated in rounds "
        "to those that gain most end to end; proposed by --proposer, `draft` if left out.",
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        help="Threads of each measurement and of cost-model training; if left out, measurements use "
        "every core available to a device, and training every idle one.",
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(
        help="Programs built, and placements searched, at once; one is measured at a time.",
    ),
]
PriceOption = Annotated[
    str,
    typer.Option(
        help="Latencies: `measured`; `active`, measured where decisions depend on them; `model`, predicted.",
        autocompletion=completion.one_of(*PRICES),
        callback=lambda text: check_choice("--price", text, PRICES),
    ),
]
BudgetOption = Annotated[
    int | None,
    typer.Option(help="Maximum number of candidates to measure."),
]
RegretOption = Annotated[
    float,
    typer.Option(help="Optimality gap that `--price active` accepts."),
]
CostModelOption = Annotated[
    Path | None,
    typer.Option(help="Folder of a trained cost model; trained from the records if left out."),
]
PruneOption = Annotated[
    bool,
    typer.Option(
        "--prune",
        help="Price only the largest sub-graphs of each backend, and the remainders.",
    ),
]
MatchName = Literal["exact", "compatible", "any"]
MatchOption = Annotated[
    MatchName,
    typer.Option(
        help="Which records to reuse: of the same versions and threads, of the same threads, or of the "
        "same device.",
    ),
]
GraphLevelSearchOption = Annotated[
    int,
    typer.Option(
        help="Whole programs that an evolutionary search may measure after the first answer.",
    ),
]
CoalesceOption = Annotated[
    bool,
    typer.Option(
        "--coalesce",
        help="Try larger sub-graphs, and fewer backends; used if the model is measured faster end to end.",
    ),
]
DatabaseOption = Annotated[
    Path | None,
    typer.Option(
        "--tvm-database",
        help="Folder of a MetaSchedule database in TVM's format; with --trials, new trials are added to it.",
    ),
]
ScheduleCostModelOption = Annotated[
    str,
    typer.Option(
        "--schedule-cost-model",
        help="Model that ranks MetaSchedule's candidates: TVM's own (`tvm`), or one trained on all trials in "
        "the records, by loops (`records`) or by decisions (`draft`).",
        autocompletion=completion.one_of(*SCHEDULE_COST_MODELS),
        callback=lambda text: check_choice("--schedule-cost-model", text, SCHEDULE_COST_MODELS),
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        help="Address of a fleet's scheduler, whose machines measure instead of this one.",
    ),
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
    Path | None,
    typer.Option(
        "--language-model",
        help="Folder of the language model that proposes; default: out/language.",
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
    schedule_cost_model: ScheduleCostModelOption = "tvm"
    fleet: FleetOption = None
    proposer: ProposerOption = None
    language_model: LanguageModelOption = None


_Options = TypeVar("_Options", bound=TuningOptions)


def spend_trials(options: _Options, model: Model, budget: int | None) -> _Options:
    """Tune a model's kernels before anything is priced; return options that build with what was found.

    Built-in kernels get `--trials` each, or most of the budget; MetaSchedule's, which no built-in one runs,
    get the rest of the budget here, or `--trials` each when they are priced. What the records hold of
    built-in kernels counts without either option.
    """
    if budget is not None and budget < 1:
        raise typer.BadParameter(f"--trial-budget is {budget}; it is at least 1")
    is_here = options.target.startswith("cpu") and options.fleet is None and options.price != "model"
    if not is_here:
        return options if budget is None else _spend_on_metaschedule(options, model, budget, None)
    own = _tune_own_kernels(options, model, budget)
    if own.backends != options.backends:
        options = replace(options, backends=own.backends)
    if budget is None or not own.has_metaschedule:
        return options
    return _spend_on_metaschedule(options, model, budget - own.spent, own)


@dataclass(frozen=True, slots=True)
class _Own:
    """What came of tuning built-in kernels.

    Attributes:
        backends: what `--backends` is from then on.
        spent: trials of the budget that these kernels have had.
        covered: nodes of the model's graph that they compute.
        has_metaschedule: whether that backend takes part, if it has trials or a database.
    """

    backends: str | None
    spent: int
    covered: NodeSet
    has_metaschedule: bool


def _packed_network(options: _Options, target: Target) -> Network | None:
    """Return the language model if it has learnt built-in kernels."""
    from cost_model.language.model_files import load_network
    from tuner.backends.metaschedule.backend import DEFAULT_LANGUAGE_MODEL

    folder = options.language_model or Path(DEFAULT_LANGUAGE_MODEL)
    network, manifest = load_network(folder, target.text, target.num_threads)
    return network if manifest.num_packed else None


def _tune_own_kernels(options: _Options, model: Model, budget: int | None) -> _Own:
    from records import open_store
    from tuner.backends.metaschedule.proposers import DRAFT, EVOLUTIONARY, LANGUAGE
    from tuner.backends.registry import available_backends, backends_for
    from tuner.targets.resolution import resolve_target
    from tuner.tuning.own_kernels import OwnTrials, tune_model

    target = resolve_target(options.target, num_threads=options.threads)
    names = _backend_references(options.backends)
    known = None if names is None else [name for name in names if name.partition("?")[0] != "metaschedule"]
    backends = available_backends(target) if known is None else backends_for(known, target)
    proposer = DRAFT if options.proposer in (None, EVOLUTIONARY) else options.proposer
    trials = OwnTrials(
        budget=budget,
        each=options.trials or None,
        proposer=proposer,
        network=_packed_network(options, target) if proposer == LANGUAGE else None,
    )
    with console.progress_bar("tuning built-in kernels") as update, open_store(options.records) as store:
        found = tune_model(
            model,
            backends,
            trials if budget or options.trials else None,
            store,
            target,
            on_batch=lambda num_trials: update("tuning built-in kernels", num_trials, budget),
        )
    for each in found.kernels:
        if each.trials:
            console.print_note(
                f"{each.name} runs {each.count} times: {each.trials} trials, {each.rule_us:.1f} us by its "
                f"rule, {each.best_us:.1f} us now"
            )
    takes_part = names is None or any(name.partition("?")[0] == "metaschedule" for name in names)
    text = options.backends
    if found.chosen:
        references = [each.reference for each in found.backends if each.name != "metaschedule"]
        is_asked_for = names is not None or options.trials or options.database is not None or budget
        if takes_part and is_asked_for:
            references.append("metaschedule")
        text = ",".join(references)
    return _Own(text, found.spent, found.covered, takes_part)


def _spend_on_metaschedule(options: _Options, model: Model, budget: int, own: _Own | None) -> _Options:
    """Tune what no built-in kernel runs; return options that read it from its database."""
    from tuner.backends.metaschedule.backend import DEFAULT_FOLDER, MetaSchedule
    from tuner.backends.metaschedule.proposers import DRAFT
    from tuner.graph.node_set import NodeSet
    from tuner.language.trial_worker import builder_and_runner
    from tuner.targets.resolution import resolve_target
    from tuner.tuning.model_kernels import tune_model_kernels

    backend = MetaSchedule(
        trials=max(1, budget),
        database=DEFAULT_FOLDER if options.database is None else str(options.database),
        records=options.records,
        proposer=options.proposer or DRAFT,
        language_model="" if options.language_model is None else str(options.language_model),
    )
    target = resolve_target(options.target, num_threads=options.threads)
    builder, runner = builder_and_runner(target.num_threads)
    with console.progress_bar("tuning kernels") as update:
        found = tune_model_kernels(
            model,
            backend,
            target,
            budget=budget,
            builder=builder,
            runner=runner,
            on_batch=lambda num_trials: update("tuning kernels", num_trials, budget),
            without=NodeSet() if own is None else own.covered,
        )
    for kernel in found.kernels:
        console.print_note(
            f"a kernel that runs {kernel.count} times got {kernel.trials} trials: "
            f"{kernel.first_us:.1f} us after the first batch, {kernel.best_us:.1f} us at best"
        )
    return replace(options, database=found.database, proposer=None, language_model=None)


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
    is_default = tuning.proposer is None and tuning.schedule_cost_model == "tvm"
    if 0 < tuning.trials < _FEW_TRIALS and is_default and not tuning.target.startswith("cpu"):
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
                schedule_cost_model=tuning.schedule_cost_model,
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

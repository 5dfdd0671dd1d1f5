"""Which options go together: for every option of every command, when it has no effect.

An option that is accepted and ignored misleads, so it is refused, in one line that says why and what to do.
`OPTION_RULES` is the one table of this: `problem_of` checks a command line against it, `help_of` turns it
into the sentence that the help shows. An option without rules takes effect wherever it is given. What the
table leaves out: values that are wrong by themselves, which each command checks. That it names every option,
and that no two options are accepted of which one has no effect, is checked in
tests/scripts/options/test_option_pairs.py, single rules in tests/scripts/options/test_option_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What one command was given.

    Attributes:
        given: the options that were written, by their long name; a flag by the name it was turned by, so that
            `--train/--infer` is one of the two.
        values: the value of every option by its long name, and of every argument by its name in Python.
    """

    given: frozenset[str]
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that a command line may say.

    Attributes:
        text: as it reads after "with" or "without", such as `--price active`.
        holds: whether a command line says so.
    """

    text: str
    holds: Callable[[CommandLine], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an option has no effect.

    Attributes:
        needs: at least one of these must hold; nothing is needed where there is none.
        excludes: none of these may hold.
        why: what makes the option ignored, as a clause.
        remedy: what to do, beside leaving the option out; nothing else if empty.
    """

    needs: tuple[Condition, ...] = ()
    excludes: tuple[Condition, ...] = ()
    why: str
    remedy: str = ""

    def problem(self, option: str, line: CommandLine) -> str | None:
        """Return why the option has no effect on this command line, or None where it has."""
        found = next((condition for condition in self.excludes if condition.holds(line)), None)
        if found is not None:
            place = f"with {found.text}"
        elif self.needs and not any(condition.holds(line) for condition in self.needs):
            place = f"without {_either(self.needs)}"
        else:
            return None
        if not self.remedy:
            remedy = (
                "leave one out" if found is not None and found.text in line.given else f"leave {option} out"
            )
        else:
            remedy = f"{self.remedy}, or leave {option} out"
        return f"{option} has no effect {place}, since {self.why}; {remedy}"


def problem_of(command: str, line: CommandLine) -> str | None:
    """Return why one of the options that were given has no effect, in one sentence; None where all have.

    Args:
        command: its words after `tessel`, such as `records export`.
        line: what it was given.
    """
    for option, rules in OPTION_RULES.get(command, {}).items():
        if option not in line.given:
            continue
        for rule in rules:
            problem = rule.problem(option, line)
            if problem is not None:
                return problem
    return None


def help_of(command: str, option: str) -> str:
    """Return what the help adds to an option's description; empty where it takes effect everywhere."""
    rules = OPTION_RULES.get(command, {}).get(option, ())
    excluded = tuple(condition for rule in rules for condition in rule.excludes)
    sentences = [f"needs {_either(rule.needs)}" for rule in rules if rule.needs]
    sentences += [f"not with {_either(excluded)}"] if excluded else []
    return f"({'; '.join(sentences)})" if sentences else ""


def _either(conditions: tuple[Condition, ...]) -> str:
    *first, last = [condition.text for condition in conditions]
    return f"{', '.join(first)} or {last}" if first else last


def _given(*options: str) -> tuple[Condition, ...]:
    return tuple(map(_is_given, options))


def _is_given(option: str) -> Condition:
    return Condition(option, lambda line: option in line.given)


def _valued(option: str, *values: object) -> Condition:
    text = f"{option} {' or '.join(map(str, values))}"
    return Condition(text, lambda line: line.values.get(option) in values)


def _written_as(option: str, *suffixes: str) -> Condition:
    def holds(line: CommandLine) -> bool:
        out = line.values[option]
        return out is not None and Path(str(out)).suffix in suffixes

    return Condition(f"{option} with one of {', '.join(suffixes)}", holds)


_PICTURES = (".svg", ".png", ".pdf")


def _free(*options: str) -> Mapping[str, tuple[Rule, ...]]:
    """Return options that take effect wherever they are given."""
    return dict.fromkeys((*options, "--json"), ())


# Shapes and placement files.


def _is_file(shape: str) -> bool:
    from tessel.shapes import SHAPES

    return shape not in SHAPES and (bool(Path(shape).suffix) or Path(shape).exists())


def _lacks_tensor_parallel(line: CommandLine) -> bool:
    from tessel.shapes import SHAPES, make_shape

    shape = str(line.values["shape"])
    return shape in SHAPES and all(len(block.devices) == 1 for block in make_shape(shape, 2).blocks)


def _lacks_chunks(line: CommandLine) -> bool:
    from tessel.shapes import SHAPES, SHAPES_OF_CHUNKS

    shape = str(line.values["shape"])
    return shape in SHAPES and shape not in SHAPES_OF_CHUNKS


_FILE = Rule(
    excludes=(Condition("a placement file", lambda line: _is_file(str(line.values["shape"]))),),
    why="it goes with a shape, and the file says it itself",
    remedy="change the file",
)
_INFER = Rule(excludes=_given("--infer"), why="no backward and no memory is left", remedy="leave --infer out")
_HALVES = Rule(
    needs=_given("--split-backward", "--choose-backward"),
    why="a joint backward has no halves",
    remedy="add one of the two, or give --backward-span",
)
_WITHOUT_TENSOR_PARALLEL = Condition("a shape without tensor-parallel blocks", _lacks_tensor_parallel)
_WITHOUT_CHUNKS = Condition("a shape without chunks", _lacks_chunks)
_PERIOD_FRONTIER = Condition(
    "--frontier without --micro-batches",
    lambda line: "--frontier" in line.given and "--micro-batches" not in line.given,
)
_NOTHING_RANDOM = Rule(
    excludes=(*_given("--period-only"), _PERIOD_FRONTIER),
    why="nothing in the search of a period is random",
)

_OF_FRONTIER_PICTURES = (
    Rule(
        needs=_given("--frontier"),
        why="only a frontier is saved as a picture",
        remedy="draw the saved schedule with tessel draw",
    ),
    Rule(
        needs=(_written_as("--save", *_PICTURES),),
        why="only pictures are drawn so",
        remedy="save the frontier as one of these",
    ),
)
_SCHEDULE: Mapping[str, tuple[Rule, ...]] = {
    **_free("--frontier", "--work", "--time-limit"),
    "--devices": (_FILE,),
    "--micro-batches": (
        Rule(
            excludes=_given("--period-only"),
            why="a repetend repeats indefinitely",
            remedy="leave --period-only out",
        ),
    ),
    "--memory": (
        Rule(
            excludes=_given("--frontier"),
            why="it is one limit, and a frontier covers all relevant ones",
        ),
    ),
    "--infer": (_FILE,),
    "--split-backward": (
        _FILE,
        _INFER,
        Rule(
            excludes=_given("--choose-backward"),
            why="that leaves joint or split to the search",
            remedy="leave --choose-backward out",
        ),
    ),
    "--choose-backward": (_FILE, _INFER),
    "--recompute": (_FILE, _INFER),
    "--forward-span": (_FILE,),
    "--backward-span": (
        _FILE,
        _INFER,
        Rule(
            excludes=_given("--split-backward"),
            why="no joint backward is left",
            remedy="give --backward-input-span and --backward-weight-span",
        ),
    ),
    "--backward-input-span": (_FILE, _INFER, _HALVES),
    "--backward-weight-span": (_FILE, _INFER, _HALVES),
    "--forward-memory": (_FILE, _INFER),
    "--recompute-memory": (
        _FILE,
        _INFER,
        Rule(needs=_given("--recompute"), why="nothing is recomputed", remedy="add --recompute"),
    ),
    "--tensor-parallel-span": (
        _FILE,
        Rule(
            excludes=(_WITHOUT_TENSOR_PARALLEL,),
            why="there is no block to give the span to",
            remedy="choose a shape such as mshape",
        ),
    ),
    "--chunks": (
        _FILE,
        Rule(
            excludes=(_WITHOUT_CHUNKS,),
            why="every device holds the stages that its shape says",
            remedy="choose interleaved or zbv",
        ),
    ),
    "--lag": (
        _FILE,
        Rule(excludes=(_valued("--devices", 1),), why="nothing passes between devices"),
    ),
    "--period-only": (
        Rule(
            excludes=_given("--frontier"),
            why="a frontier without --micro-batches is one of periods already",
            remedy="leave --micro-batches out",
        ),
    ),
    "--seed": (_NOTHING_RANDOM,),
    "--jobs": (
        Rule(
            excludes=_given("--period-only", "--frontier"),
            why="only one whole schedule is searched in several ways",
            remedy="leave --period-only and --frontier out",
        ),
    ),
    "--save": (
        Rule(
            excludes=_given("--period-only"),
            why="a repetend is no whole schedule to write",
            remedy="leave --period-only out, or print the repetend with --json",
        ),
    ),
    "--width": _OF_FRONTIER_PICTURES,
    "--style": _OF_FRONTIER_PICTURES,
}


# Models, and what measures them.


def _is_of_zoo(model: object) -> bool:
    """Whether a name is one of the zoo, or a misspelt one, which the loader answers."""
    name = str(model)
    return Path(name).suffix not in (".onnx", ".pt2") and not _names_function(name)


def _names_function(model: str) -> bool:
    from scripts.options.completion import MODELS

    location, colon, _ = model.partition(":")
    return bool(colon) and location not in MODELS


def _is_gpu(line: CommandLine) -> bool:
    target = str(line.values["--target"])
    return target == "cuda" or target.startswith("nvidia/")


def _tunes_nothing(line: CommandLine) -> bool:
    backends = line.values.get("--backends")
    names = [name.strip() for name in str(backends).split(",")] if backends is not None else []
    return bool(names) and not any(name.partition("?")[0] == "metaschedule" for name in names)


_NO_TUNER = Rule(
    excludes=(Condition("--backends that lack metaschedule", _tunes_nothing),),
    why="no other backend tunes its kernels",
    remedy="add metaschedule to --backends",
)
_THREADS = Rule(
    excludes=(Condition("a GPU for --target", _is_gpu),),
    why="a GPU's kernels are driven by one thread",
)
_BATCH = (
    Rule(
        excludes=(
            Condition("a model that is not from the zoo", lambda line: not _is_of_zoo(line.values["model"])),
        ),
        why="only models of the zoo know which extent is the batch",
        remedy="give the shapes of the inputs with --shape NAME=EXTENT,…",
    ),
    Rule(
        excludes=_given("--shape"),
        why="the shapes of inputs hold the batch already",
        remedy="write it into every --shape",
    ),
)
_ACTIVE = Rule(
    needs=(_valued("--price", "active"),),
    why="only active pricing chooses what to measure",
    remedy="add --price active",
)
_MEASURED = Rule(
    excludes=(_valued("--price", "model"),),
    why="no program is measured",
    remedy="choose --price measured or active",
)
_JOBS = Rule(
    excludes=(_valued("--price", "model"),),
    why="no candidate is built",
    remedy="choose --price measured or active",
)

_HERE = Rule(
    excludes=_given("--fleet"),
    why="each machine of a fleet builds and measures one program at a time, with what its backends bring",
)

_PREDICTED = Rule(
    needs=(_valued("--price", "active", "model"),),
    why="nothing is predicted where every candidate is measured",
    remedy="add --price active or --price model",
)

_MEASURING: Mapping[str, tuple[Rule, ...]] = {
    **_free("--target", "--records", "--backends", "--jobs", "--seed"),
    "--trials": (_NO_TUNER,),
    "--threads": (_THREADS,),
}
_TRIALS = Condition(
    "--trials above 0",
    lambda line: isinstance(trials := line.values["--trials"], int) and trials > 0,
)
_TUNING: Mapping[str, tuple[Rule, ...]] = {
    **_free("--price", "--prune", "--match"),
    **_MEASURING,
    "--fleet": (_MEASURED,),
    "--jobs": (_JOBS, _HERE),
    "--trials": (_NO_TUNER, _HERE),
    "--budget": (_ACTIVE,),
    "--regret": (_ACTIVE,),
    "--cost-model": (_PREDICTED,),
    "--tvm-database": (_NO_TUNER, _HERE),
    "--schedule-cost-model": (
        _NO_TUNER,
        Rule(needs=(_TRIALS,), why="it orders trials, and there is none", remedy="add --trials"),
        Rule(
            excludes=(_valued("--proposer", "draft", "neighbour", "random"),),
            why="this proposer orders schedules itself",
            remedy="leave --schedule-cost-model out",
        ),
        _MEASURED,
    ),
    "--proposer": (
        _NO_TUNER,
        Rule(needs=(_TRIALS,), why="it proposes trials, and there is none", remedy="add --trials"),
        _MEASURED,
    ),
}
_MODEL: Mapping[str, tuple[Rule, ...]] = {"--train": (), "--infer": (), "--batch": _BATCH, "--shape": ()}

_TUNE: Mapping[str, tuple[Rule, ...]] = {
    **_free("--devices", "--micro-batches", "--memory", "--out", "--cut", "--work", "--time-limit"),
    **_TUNING,
    **_MODEL,
    "--optimizer": (
        Rule(
            excludes=_given("--infer"), why="inference keeps no optimizer state", remedy="leave --infer out"
        ),
    ),
    "--hop-us": (Rule(excludes=(_valued("--devices", 1),), why="one device has no hops"),),
    "--placement": (),
    "--link": (
        Rule(excludes=(_valued("--devices", 1),), why="one device has no links"),
        Rule(
            needs=_given("--hop-us"),
            why="a link has a bandwidth and a latency",
            remedy="add its latency with --hop-us",
        ),
    ),
    "--graph-level-search": (_MEASURED,),
}
_OF_GRAPH_PICTURES = Rule(needs=_given("--picture"), why="nothing is drawn", remedy="add --picture graph.svg")
_PARTITION: Mapping[str, tuple[Rule, ...]] = {
    **_free("--picture", "--explain"),
    **_TUNING,
    **_MODEL,
    "--width": (_OF_GRAPH_PICTURES,),
    "--style": (_OF_GRAPH_PICTURES,),
    "--graph-level-search": (_MEASURED,),
    "--coalesce": (_MEASURED,),
}
_STAGES: Mapping[str, tuple[Rule, ...]] = {
    **_free("--devices", "--save"),
    **_TUNING,
    **_MODEL,
    "--cut": (
        Rule(
            excludes=_given("--devices"),
            why="that has the cuts found",
            remedy="give either --cut, once for each cut, or --devices, the number of stages",
        ),
    ),
}

_READ_NO_TEXT = ("mlp", "resnet", "mobilenet")


def _read_no_text(line: CommandLine) -> bool:
    networks = line.values["--networks"]
    names = [name.strip() for name in str(networks).split(",")] if networks is not None else []
    return bool(names) and all(name.startswith(_READ_NO_TEXT) for name in names)


_COLLECT: Mapping[str, tuple[Rule, ...]] = {
    **_free(
        "--networks",
        "--batches",
        "--chains",
        "--stages",
        "--max-gflops",
        "--max-samples",
        "--time-limit",
        "--save-networks",
    ),
    **_MEASURING,
    "--lengths": (
        Rule(
            excludes=(Condition("--networks that read no text", _read_no_text),),
            why="no network takes tokens",
            remedy="add a network such as gpt2:tiny",
        ),
    ),
}


# Plans of layers.


def _is_measured(line: CommandLine) -> bool:
    """Whether a plan is made for a model, whose layers are measured."""
    from scripts.options.completion import is_model

    return is_model(str(line.values["model"]))


_OF_MEASURED = Condition("a model", _is_measured)
_MODEL_ALONE = Rule(needs=(_OF_MEASURED,), why="a profile is measured already", remedy="name a model")
_PROFILE_ALONE = Rule(
    excludes=(_OF_MEASURED,), why="a model's layers are measured as they are", remedy="give a profile"
)
_HAS_HOPS = Rule(excludes=(_valued("--devices", 1),), why="one device has no links")
_PLAN: Mapping[str, tuple[Rule, ...]] = {
    **{option: (_MODEL_ALONE, *rules) for option, rules in _MEASURING.items()},
    "--seed": (),
    "--price": (_MODEL_ALONE,),
    "--cost-model": (_MODEL_ALONE, _PREDICTED),
    "--batch": (_MODEL_ALONE, *_BATCH),
    "--shape": (_MODEL_ALONE,),
    "--devices": (),
    "--memory": (
        Rule(
            excludes=_given("--device-memory"),
            why="that gives the memory of every device",
            remedy="leave --device-memory out",
        ),
    ),
    "--device-memory": (),
    "--device-speed": (),
    "--link": (_HAS_HOPS,),
    "--hop-us": (_HAS_HOPS,),
    "--collective-link": (_HAS_HOPS,),
    "--node-devices": (
        _HAS_HOPS,
        Rule(needs=_given("--node-link"), why="all links are alike", remedy="add --node-link"),
    ),
    "--node-link": (
        _HAS_HOPS,
        Rule(
            needs=_given("--node-devices"),
            why="it is not known which devices share a node",
            remedy="add --node-devices",
        ),
    ),
    "--optimizer": (),
    "--runtime": (),
    "--global-batch": (),
    "--micro-batches": (
        Rule(
            excludes=_given("--global-batch"),
            why="that says how many samples a step has",
            remedy="leave --global-batch out",
        ),
    ),
    "--placement": (),
    "--data-parallel": (),
    "--pipeline": (),
    "--tensor-parallel": (_PROFILE_ALONE,),
    "--micro-batch": (
        Rule(
            excludes=(_OF_MEASURED,),
            why="its layers are measured at one size",
            remedy="give the size as --batch",
        ),
    ),
    "--chunks": (),
    "--by-hand": (),
    "--no-recompute": (),
    "--joint-backward": (),
    "--format": (_PROFILE_ALONE,),
    "--entry": (_PROFILE_ALONE,),
    "--num-layers": (_PROFILE_ALONE,),
    "--work": (),
    "--time-limit": (),
    "--save": (),
    "--out": (),
    "--json": (),
}


# Records.

_ALL_WORKLOADS = Rule(
    needs=(Condition("MODEL", lambda line: line.values["model"] is not None),),
    why="the records of all workloads are looked through",
    remedy="name a model",
)
_BEST: Mapping[str, tuple[Rule, ...]] = {
    **_free("--target", "--match", "--records"),
    "--train": (_ALL_WORKLOADS,),
    "--infer": (_ALL_WORKLOADS,),
    "--batch": (_ALL_WORKLOADS, *_BATCH),
    "--shape": (_ALL_WORKLOADS,),
    "--threads": (
        _THREADS,
        Rule(
            excludes=(_valued("--match", "any"),),
            why="that takes records of any number of threads",
            remedy="choose --match exact or compatible",
        ),
    ),
}
_EXPORT: Mapping[str, tuple[Rule, ...]] = {
    **_free("--records", "--metaschedule"),
    "--skip-damaged": (
        Rule(
            excludes=_given("--metaschedule"),
            why="a database for TVM is written of sound records alone",
            remedy="export JSON Lines",
        ),
    ),
}


# Pictures and runs.

_OF_PICTURES = Rule(
    needs=(_written_as("--out", *_PICTURES),),
    why="only pictures are drawn so, and a page or report always compares",
    remedy="add --out with one of these",
)
_NOT_GAINS = Rule(excludes=_given("--gains"), why="a chart of gains has a bar a schedule and no timeline")
_DRAW: Mapping[str, tuple[Rule, ...]] = {
    **_free("--out"),
    "--compare": (_OF_PICTURES, _NOT_GAINS),
    "--critical-path": (_OF_PICTURES, _NOT_GAINS),
    "--gains": (_OF_PICTURES,),
    "--style": (_OF_PICTURES,),
    "--width": (_OF_PICTURES,),
    "--schedules": (
        Rule(
            needs=(*_given("--compare", "--gains"), _written_as("--out", ".html", ".md")),
            why="nothing is compared",
            remedy="add --compare to a picture",
        ),
    ),
}


def _runs_model(line: CommandLine) -> bool:
    """Whether the stages are those of a plan's model, whose weights and inputs are drawn at random."""
    from tessel.documents import DocumentKind, detect_kind
    from tessel.errors import DocumentError

    stages = line.values["--stages"]
    try:
        is_plan = detect_kind(Path(str(line.values["plan"]))) is DocumentKind.PLAN
    except DocumentError:
        return True  # which the command says better
    return stages in ("compiled", "torch") or (stages is None and is_plan)


_ONLY_WRITES = Rule(
    excludes=_given("--csv"), why="that writes the orders and runs nothing", remedy="leave --csv out"
)
_OF_PLAN_S_MODEL = Condition("the stages of a plan's model", _runs_model)
_RUN: Mapping[str, tuple[Rule, ...]] = {
    **_free("--csv", "--orders"),
    "--stages": (_ONLY_WRITES,),
    "--step": (_ONLY_WRITES,),
    "--device": (_ONLY_WRITES,),
    "--repeats": (_ONLY_WRITES,),
    "--timeout": (_ONLY_WRITES,),
    "--trace": (_ONLY_WRITES,),
    "--picture": (_ONLY_WRITES,),
    "--overheads": (_ONLY_WRITES,),
    "--model": (_ONLY_WRITES,),
    "--trust-model": (
        _ONLY_WRITES,
        Rule(excludes=_given("--model"), why="naming the model trusts it already"),
        Rule(needs=(_OF_PLAN_S_MODEL,), why="no code is run that a plan names"),
    ),
    "--records": (
        _ONLY_WRITES,
        Rule(
            excludes=(_valued("--overheads", "none"),),
            why="only overheads are looked up there",
            remedy="choose --overheads known or anew",
        ),
    ),
    "--seed": (
        _ONLY_WRITES,
        Rule(
            needs=(_OF_PLAN_S_MODEL,),
            why="only their weights and inputs are drawn at random",
        ),
    ),
}


# The tensor language model.

_LANGUAGE_COLLECT: Mapping[str, tuple[Rule, ...]] = {
    **_free(
        "--records",
        "--out",
        "--target",
        "--threads",
        "--kernels",
        "--random",
        "--rounds",
        "--seed",
    ),
    "--count": (Rule(excludes=_given("--kernels"), why="no kernel is drawn where they are named"),),
    "--batch": (
        Rule(
            excludes=(Condition("--rounds 0", lambda line: line.values.get("--rounds") == 0),),
            why="no round is guided",
        ),
    ),
}
_RESUMES = Rule(
    excludes=_given("--resume"),
    why="the model in --out is fine-tuned as it is",
    remedy="leave --resume out",
)
_LANGUAGE_TRAIN: Mapping[str, tuple[Rule, ...]] = {
    **_free(
        "--records",
        "--out",
        "--target",
        "--threads",
        "--fine-tuning-epochs",
        "--best",
        "--hold-out",
        "--learning-rate",
        "--resume",
        "--seed",
    ),
    "--families": (_RESUMES,),
    "--random": (_RESUMES,),
    "--samples": (_RESUMES,),
    "--epochs": (_RESUMES,),
    "--kernels": (
        Rule(
            needs=_given("--trials"),
            why="the number of trials is not given",
            remedy="add --trials",
        ),
    ),
    "--trials": (
        Rule(needs=_given("--kernels"), why="no kernel is named to measure", remedy="add --kernels"),
    ),
    "--layers": (_RESUMES,),
    "--width": (_RESUMES,),
}
_LANGUAGE_GENERATE: Mapping[str, tuple[Rule, ...]] = {
    **_free("--model", "--count", "--temperature", "--target", "--threads", "--measure", "--seed"),
    "--records": (
        Rule(needs=_given("--measure"), why="only measured trials are kept", remedy="add --measure"),
    ),
}


# Orders and layouts of others.


def _checks(*kinds: str) -> Callable[[CommandLine], bool]:
    def holds(line: CommandLine) -> bool:
        from tessel.checking.file_kinds import kind_of_file

        # What cannot be read, the command says better.
        return kind_of_file(str(line.values["file"])) in (*kinds, "unreadable")

    return holds


_OF_LAYOUT = Rule(
    needs=(Condition("a layout of Megatron", _checks("layout")),), why="the file says it itself"
)
_PRICES = Rule(needs=_given("--profile"), why="nothing is priced without a profile", remedy="add --profile")
_CHECK: Mapping[str, tuple[Rule, ...]] = {
    "--devices": (_OF_LAYOUT,),
    "--micro-batches": (_OF_LAYOUT,),
    "--group-size": (_OF_LAYOUT,),
    "--profile": (
        Rule(
            needs=(Condition("orders or a layout of Megatron", _checks("layout", "orders")),),
            why="a schedule or a plan says itself how long its blocks take",
        ),
    ),
    "--cuts": (
        _PRICES,
        Rule(needs=(Condition("a CSV of orders", _checks("orders")),), why="the file says it itself"),
    ),
    "--memory": (),
    "--micro-batch": (_PRICES,),
    "--data-parallel": (_PRICES,),
    "--tensor-parallel": (_PRICES,),
    "--link": (_PRICES,),
    "--hop-us": (_PRICES,),
    "--optimizer": (_PRICES,),
    "--work": (),
    "--time-limit": (),
    "--save": (),
    "--json": (),
}


OPTION_RULES: Mapping[str, Mapping[str, tuple[Rule, ...]]] = {
    "tune": _TUNE,
    "partition": _PARTITION,
    "stages": _STAGES,
    "schedule": _SCHEDULE,
    "check": _CHECK,
    "export": _free("--to", "--out"),
    "plan": _PLAN,
    "compare": _free("--explain", "--schedules"),
    "draw": _DRAW,
    "run": _RUN,
    "fleet worker": {
        name: rules
        for name, rules in {**_free("--target", "--host", "--backends"), "--threads": (_THREADS,)}.items()
        if name != "--json"
    },
    "fleet status": _free(),
    "targets": _free("--compile"),
    "backends": _free("--target", "--own"),
    "doctor": _free(),
    "records list": _free("--records", "--status", "--backend", "--role", "--after", "--limit"),
    "records show": _free("--records"),
    "records stats": _free("--records"),
    "records verify": _free("--records"),
    "records best": _BEST,
    "records export": _EXPORT,
    "records import": _free("--records", "--neusight"),
    "records merge": _free("--records", "--tolerance"),
    "records prune": _free("--keep", "--apply", "--records"),
    "records collect": _COLLECT,
    "cost-model train": _free("--records", "--out", "--seed", "--threads", "--gpu"),
    "cost-model evaluate": _free("--records", "--networks", "--min-latency-us", "--seed", "--threads"),
    "cost-model predict": _free("--model", "--records", "--gpu"),
    "language collect": _LANGUAGE_COLLECT,
    "language train": _LANGUAGE_TRAIN,
    "language generate": _LANGUAGE_GENERATE,
    "language evaluate": _free(
        "--kernels",
        "--model",
        "--trials",
        "--seeds",
        "--temperature",
        "--target",
        "--threads",
        "--records",
        "--seed",
    ),
}
"""Of each command, the rules of each of its options."""

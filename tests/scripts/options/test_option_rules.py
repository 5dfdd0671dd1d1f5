"""Of any two options of any command, each has an effect beside the other, or the two are refused.

Effects are looked at, not declared: a command runs with its searches and measurements replaced by spies, and
what it does (the spies' arguments, stdout, files) must differ from what it does without the option.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
import typer
from tuned_model import tuned_model
from typer.core import TyperOption

from records import RecordStore, Status, open_store
from records.database.merging import MergeSummary
from records.database.pruning import PruneSummary
from scripts.app import app
from scripts.main import main
from scripts.options.command_app import CheckedCommand, CommandApp, command_line_of
from scripts.options.option_rules import OPTION_RULES, CommandLine, Condition, Rule, help_of, problem_of
from scripts.terminal import console
from tessel.checking.case import case_of_schedule
from tessel.checking.opinion import form_opinion
from tessel.documents import load_schedule
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.pipeline import build_plan
from tessel.plan import load_plan, save_plan
from tessel.search import Frontier, find_repetend
from tessel.shapes import SHAPES, make_shape, vshape
from tests.records.strategies import make_environment, make_measurement, make_workload

Call = tuple[str, object]
ROOT = typer.main.get_command(app)


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if hasattr(child, "commands"):
            yield from leaves(child, (*path, name))
        else:
            yield " ".join((*path, name)), child


COMMANDS = dict(leaves(ROOT))


def options_of(command: Any) -> set[str]:
    """Every long option, both names of a flag that has two."""
    names = itertools.chain.from_iterable(
        (*parameter.opts, *parameter.secondary_opts)
        for parameter in command.params
        if isinstance(parameter, TyperOption)
    )
    return {name for name in names if name.startswith("--")}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How to see what the options of one command do.

    Attributes:
        bases: arguments to start from; an option must take effect beside one of them.
        samples: of each option, a value other than its default; empty for a flag.
        context: of options that need others, those.
        spies: what each replaced function returns.
    """

    bases: tuple[str, ...]
    samples: Mapping[str, str]
    context: Mapping[str, str] = field(default_factory=dict)
    spies: Mapping[str, object] = field(default_factory=dict)


MEASURING = {
    "--target": "llvm",
    "--records": "{folder}/other.db",
    "--backends": "blas,metaschedule",
    "--trials": "3",
    "--threads": "2",
    "--jobs": "2",
    "--seed": "5",
}
TUNING = {
    **MEASURING,
    "--price": "active",
    "--budget": "3",
    "--regret": "0.5",
    "--cost-model": "{folder}/model",
    "--prune": "",
    "--match": "any",
    "--tvm-database": "{folder}/database",
    "--schedule-cost-model": "records",
}
MODEL = {"--train": "", "--infer": "", "--batch": "2", "--shape": "x=2,32"}
TUNING_CONTEXT = {
    "--budget": "--price active",
    "--regret": "--price active",
    "--cost-model": "--price active",
    "--schedule-cost-model": "--trials 4",
}
SESSION = {
    "tuner.frontend.load_model": SimpleNamespace(cuts=(), notes=()),
    "tuner.tuning.session.start_session": contextmanager(lambda: iter(["session"])),
    "cost_model.load_kernel_model": "kernel model",
}


@dataclass
class Manifest:
    num_samples: int = 1
    backends: tuple[str, ...] = ("tvm",)
    num_texts: int = 1
    num_best: int = 1
    num_trials: int = 1
    num_kernels: int = 1


OPINION = form_opinion(case_of_schedule("x", ONE_F_ONE_B.build(vshape(2), micro_batches=2)))

CHEAP: dict[str, Case] = {
    "schedule": Case(
        bases=(
            "mshape --devices 3",
            "interleaved --devices 2",
            "{folder}/placement.json",
        ),
        samples={
            "--devices": "4",
            "--micro-batches": "3",
            "--memory": "9",
            "--infer": "",
            "--split-backward": "",
            "--choose-backward": "",
            "--recompute": "",
            "--forward-span": "7",
            "--backward-span": "8",
            "--backward-input-span": "5",
            "--backward-weight-span": "6",
            "--forward-memory": "2",
            "--recompute-memory": "2",
            "--tensor-parallel-span": "4",
            "--chunks": "3",
            "--lag": "2",
            "--period-only": "",
            "--frontier": "",
            "--work": "2",
            "--time-limit": "3s",
            "--seed": "5",
            "--save": "{folder}/out/saved.svg",
            "--json": "",
        },
        context={
            "--backward-input-span": "--split-backward",
            "--backward-weight-span": "--choose-backward",
            "--recompute-memory": "--recompute",
            "--seed": "--micro-batches 3",
        },
        spies={
            "tessel.search.find_schedule": "{schedule}",
            "tessel.search.find_repetend": "{repetend}",
            "tessel.search.find_frontier": Frontier(),
            "tessel.search.find_makespan_frontier": Frontier(),
            "scripts.commands.schedule.frontier._draw_frontier": None,
        },
    ),
    "check": Case(
        bases=("{folder}/orders.csv", "Et|tL --devices 2 --micro-batches 4", "{folder}/schedule.json"),
        samples={
            "--devices": "1",
            "--micro-batches": "6",
            "--group-size": "2",
            "--profile": "{folder}/profile.csv",
            "--cuts": "0-0,1-3",
            "--memory": "9",
            "--micro-batch": "2",
            "--data-parallel": "2",
            "--tensor-parallel": "2",
            "--link": "3GB/s",
            "--hop-us": "3",
            "--optimizer": "sgd",
            "--work": "2",
            "--time-limit": "3s",
            "--save": "{folder}/out/saved.json",
            "--json": "",
        },
        context=dict.fromkeys(
            (
                "--cuts",
                "--micro-batch",
                "--data-parallel",
                "--tensor-parallel",
                "--link",
                "--hop-us",
                "--optimizer",
            ),
            "--profile {folder}/profile.csv",
        ),
        spies={"tessel.checking.opinion.form_opinion": OPINION},
    ),
    "export": Case(
        bases=("{folder}/plan.json --to torch",),
        samples={"--to": "markdown", "--out": "{folder}/out/exported.csv", "--json": ""},
        context={"--to": ""},
    ),
    "compare": Case(
        bases=("{folder}/plan.json",), samples={"--explain": "", "--schedules": "1f1b,zb-v", "--json": ""}
    ),
    "draw": Case(
        bases=("{folder}/schedule.json",),
        samples={
            "--out": "{folder}/out/drawn.svg",
            "--compare": "",
            "--critical-path": "",
            "--schedules": "1f1b",
            "--json": "",
        },
        context={
            "--compare": "--out {folder}/out/drawn.svg",
            "--critical-path": "--out {folder}/out/drawn.svg",
            "--schedules": "--compare --out {folder}/out/drawn.svg",
        },
        spies={
            "tessel.picture.files.schedule_figure": "figure",
            "tessel.picture.files.comparison_figure": "figure",
            "tessel.picture.files.save_figure": "{file}",
        },
    ),
    "records list": Case(
        bases=("--records {folder}/records.db",),
        samples={
            "--records": "{folder}/other.db",
            "--status": "error",
            "--backend": "blas",
            "--role": "kernel",
            "--after": "7",
            "--limit": "2",
            "--json": "",
        },
    ),
    "records show": Case(
        bases=("1 --records {folder}/records.db",),
        samples={"--records": "{folder}/other.db", "--json": ""},
    ),
    "records stats": Case(
        bases=("--records {folder}/records.db",), samples={"--records": "{folder}/other.db", "--json": ""}
    ),
    "records verify": Case(
        bases=("--records {folder}/records.db",),
        samples={"--records": "{folder}/other.db", "--json": ""},
        spies={"records.RecordStore.verify": []},
    ),
    "records export": Case(
        bases=("{folder}/out/exported --records {folder}/records.db",),
        samples={
            "--records": "{folder}/other.db",
            "--metaschedule": "",
            "--skip-damaged": "",
            "--json": "",
        },
        spies={
            "records.files.exchange.save_records": SimpleNamespace(written=1, damaged=()),
            "records.files.metaschedule.write_database": 2,
        },
    ),
    "records import": Case(
        bases=("{folder}/exported.jsonl --records {folder}/out/new.db",),
        samples={"--records": "{folder}/out/another.db", "--json": ""},
    ),
    "records merge": Case(
        bases=("{folder}/other.db --records {folder}/out/new.db",),
        samples={"--records": "{folder}/out/another.db", "--tolerance": "3", "--json": ""},
        spies={"records.database.merging.merge_items": MergeSummary(read=1, new=1, conflicts=())},
    ),
    "records prune": Case(
        bases=("--records {folder}/records.db",),
        samples={"--keep": "2", "--apply": "", "--records": "{folder}/other.db", "--json": ""},
        spies={"records.database.pruning.prune": PruneSummary(removed=1, kept=1, applied=False)},
    ),
    "records best": Case(
        bases=("--records {folder}/records.db", "mlp:tiny --records {folder}/records.db"),
        samples={
            **MODEL,
            "--target": "llvm",
            "--match": "any",
            "--threads": "2",
            "--records": "{folder}/other.db",
            "--json": "",
        },
        spies={
            "scripts.commands.records.best._workloads": (),
            "scripts.commands.records.best._find_best": [],
        },
    ),
    "cost-model train": Case(
        bases=("",),
        samples={
            "--records": "{folder}/other.db",
            "--out": "{folder}/out/model",
            "--seed": "4",
            "--threads": "2",
            "--json": "",
        },
        spies={
            "scripts.commands.cost_model.train.load_kernel_samples": SimpleNamespace(samples=()),
            "cost_model.train_kernel_model": SimpleNamespace(save=lambda out: None, manifest=Manifest()),
            "scripts.commands.cost_model.train._train_stages": (None, "too few"),
        },
    ),
    "cost-model evaluate": Case(
        bases=("",),
        samples={
            "--records": "{folder}/other.db",
            "--networks": "{folder}/networks.json",
            "--min-latency-us": "3",
            "--seed": "4",
            "--threads": "2",
            "--json": "",
        },
        spies={
            "scripts.commands.cost_model.evaluate.load_kernel_samples": SimpleNamespace(samples=()),
            "cost_model.evaluate": {},
            "scripts.commands.cost_model.evaluate._evaluate_stages": (None, "too few"),
        },
    ),
    "cost-model predict": Case(
        bases=("abc",),
        samples={"--model": "{folder}/model", "--records": "{folder}/other.db", "--json": ""},
        spies={
            "scripts.commands.cost_model.predict._stages_named": ["stage"],
            "scripts.commands.cost_model.predict._predict_stages": None,
        },
    ),
    "doctor": Case(bases=("",), samples={"--json": ""}, spies={"scripts.commands.doctor.find_all": ()}),
}
OF_TVM: dict[str, Case] = {
    "tune": Case(
        bases=("mlp:tiny",),
        samples={
            **TUNING,
            **MODEL,
            "--devices": "3",
            "--micro-batches": "3",
            "--memory": "1GiB",
            "--out": "{folder}/out/elsewhere",
            "--cut": "layer:0",
            "--optimizer": "adam",
            "--hop-us": "3",
            "--work": "2",
            "--time-limit": "3s",
            "--graph-level-search": "4",
            "--json": "",
        },
        context=TUNING_CONTEXT,
        spies={
            **SESSION,
            "tuner.tuning.tune.tune_model": "tuned",
            "tessel.pipeline.build_plan": "{plan}",
            "tessel.plan.save_plan": None,
            "scripts.commands.tune.write_picture": None,
            "scripts.commands.tune._print_plan": None,
        },
    ),
    "partition": Case(
        bases=("mlp:tiny",),
        samples={
            **TUNING,
            **MODEL,
            "--graph-level-search": "4",
            "--coalesce": "",
            "--picture": "{folder}/out/graph.svg",
            "--explain": "",
            "--json": "",
        },
        context=TUNING_CONTEXT,
        spies={
            **SESSION,
            "tuner.tuning.partition_model.partition_model": SimpleNamespace(model="model"),
            "scripts.commands.partition._nodes": [],
            "tessel.picture.partition_figure": "figure",
            "tessel.picture.save_figure": None,
            "scripts.commands.partition._document": {},
            "scripts.commands.partition._print": None,
            "scripts.commands.partition._note_reasons": None,
        },
    ),
    "stages": Case(
        bases=("mlp:tiny --devices 2", "mlp:tiny --cut layer:0"),
        samples={
            **TUNING,
            **MODEL,
            "--cut": "layer:1",
            "--devices": "3",
            "--save": "{folder}/out/stages.json",
            "--json": "",
        },
        context=TUNING_CONTEXT,
        spies={
            **SESSION,
            "tuner.tuning.measure_stages.measure_stages": SimpleNamespace(
                stages=(), tied=(), max_error=None, import_error=None
            ),
            "scripts.commands.stages._print": None,
        },
    ),
    "records collect": Case(
        bases=("--save-networks {folder}/out/networks.json",),
        samples={
            **MEASURING,
            "--networks": "mlp,resnet",
            "--batches": "3",
            "--lengths": "16",
            "--chains": "2",
            "--stages": "",
            "--max-gflops": "2",
            "--max-samples": "3",
            "--time-limit": "3s",
            "--save-networks": "{folder}/out/other.json",
            "--json": "",
        },
        spies={
            **SESSION,
            "tuner.collecting.kernels.collect": SimpleNamespace(
                networks={}, num_found=1, num_done=1, num_new=1
            ),
            "tuner.collecting.stages.collect_stages": 1,
        },
    ),
    "targets": Case(bases=("llvm",), samples={"--json": ""}),
    "backends": Case(
        bases=("",),
        samples={"--target": "cuda", "--own": "module:object", "--json": ""},
        spies={
            "tuner.targets.resolution.resolve_target": "target",
            "tuner.targets.resolution.measuring_obstacle": "nothing is here",
            "tuner.backends.availability.find_availability": (),
        },
    ),
}
OF_TORCH: dict[str, Case] = {
    "language train": Case(
        bases=("",),
        samples={
            "--records": "{folder}/other.db",
            "--out": "{folder}/out/language",
            "--target": "llvm",
            "--threads": "2",
            "--families": "dense",
            "--random": "3",
            "--samples": "3",
            "--epochs": "3",
            "--fine-tuning-epochs": "3",
            "--best": "0.5",
            "--kernels": "dense:4x8x8",
            "--trials": "3",
            "--hold-out": "dense:8x8x8",
            "--layers": "1",
            "--width": "32",
            "--learning-rate": "0.01",
            "--resume": "",
            "--seed": "5",
            "--json": "",
        },
        context={"--kernels": "--trials 2", "--trials": "--kernels dense:9x9x9"},
        spies={
            "scripts.commands.language.train.check_extra": None,
            "scripts.commands.language.train.find_machine": SimpleNamespace(target="target"),
            "scripts.commands.language.train.find_spaces": [],
            "scripts.commands.language.train.find_measuring": "measuring",
            "scripts.commands.language.train._new_manifest": Manifest(),
            "scripts.commands.language.train.check_writable_folder": None,
            "records.open_store": contextmanager(lambda: iter(["store"])),
            "tuner.language.model_files.load_network": (SimpleNamespace(num_parameters=1), Manifest()),
            "tuner.language.network.Network": SimpleNamespace(num_parameters=1),
            "tuner.language.model_training.measure_training_set": None,
            "tuner.language.model_training.ModelTraining": "{training}",
        },
    ),
    "language generate": Case(
        bases=("dense:4x8x8",),
        samples={
            "--model": "{folder}/model",
            "--count": "3",
            "--temperature": "0.5",
            "--target": "llvm",
            "--threads": "2",
            "--measure": "",
            "--records": "{folder}/other.db",
            "--seed": "5",
            "--json": "",
        },
        context={"--records": "--measure"},
        spies={
            "scripts.commands.language.generate.check_extra": None,
            "scripts.commands.language.generate.find_machine": SimpleNamespace(target="target"),
            "scripts.commands.language.generate.find_space": SimpleNamespace(name="kernel"),
            "scripts.commands.language.generate.find_measuring": SimpleNamespace(
                keeper=str, builder="", runner=""
            ),
            "tuner.language.model_files.load_network": ("network", "manifest"),
            "tuner.language.generation.generate": SimpleNamespace(proposals=(), distinct_ratio=1.0),
            "tuner.language.trials.measure_proposals": [],
        },
    ),
    "language evaluate": Case(
        bases=("",),
        samples={
            "--kernels": "dense:4x8x8",
            "--model": "{folder}/model",
            "--trials": "3",
            "--seeds": "2",
            "--temperature": "0.5",
            "--target": "llvm",
            "--threads": "2",
            "--records": "{folder}/other.db",
            "--seed": "5",
            "--json": "",
        },
        spies={
            "scripts.commands.language.evaluate.check_extra": None,
            "scripts.commands.language.evaluate.find_machine": SimpleNamespace(target="target"),
            "scripts.commands.language.evaluate.find_spaces": [SimpleNamespace(name="kernel")],
            "scripts.commands.language.evaluate.find_measuring": "measuring",
            "tuner.language.model_files.load_network": ("network", "manifest"),
            "tuner.language.evaluation.run_proposer": SimpleNamespace(
                proposer="language", kernel="k", seed=0, num_legal=1, latencies_us=(1.0,), distinct_ratio=1.0
            ),
            "tuner.language.evaluation.mean_best_us": [1.0] * 9,
        },
    ),
}
ONLY_BY_RULES = {"run", "plan"}
"""Starting ranks is not cheap, and a plan has hundreds of pairs: their rules are tried one by one below."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    for name, backends in (("records.db", ("tvm", "blas")), ("other.db", ("blas", "torch"))):
        with open_store(str(folder / name)) as store:
            # Numbers without common factors, so that each filter of a list leaves out what no other does.
            for index in range(1, 25):
                workload = make_workload(len(name), role="stage" if index % 2 else "kernel")
                measurement = make_measurement(
                    workload,
                    backend=backends[index % 5 == 0],
                    status=Status.OK if index % 3 else Status.ERROR,
                    environment=make_environment(num_threads=len(name)),
                    seed=index,
                )
                store.append(workload, measurement)
    command = f"records export {folder}/exported.jsonl --records {folder}/records.db --quiet"
    assert main(command.split()) == 0

    plan = build_plan(
        tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)]),
        micro_batches=2,
        memory_limit_bytes=None,
        time_limit_s=1.0,
    )
    save_plan(plan, folder / "plan.json")
    schedule = f"schedule vshape --devices 2 --micro-batches 2 --save {folder}/schedule.json --quiet"
    assert main(schedule.split()) == 0

    placement = load_schedule(folder / "schedule.json").placement
    (folder / "placement.json").write_text(console.json_text(placement, "utf-8"))
    orders = f"run {folder}/schedule.json --csv {folder}/orders.csv --quiet"
    assert main(orders.split()) == 0
    rows = [
        f"{name},{size},{degree},1,2,1,1,10,10,1"
        for size in (1, 2)
        for degree in (1, 2)
        for name in ("embed", "block0", "block1", "head")
    ]
    columns = "layer,micro_batch,tensor_parallel,forward_ms,backward_ms,backward_input_ms,backward_weight_ms"
    (folder / "profile.csv").write_text(
        "\n".join([f"{columns},weights_mib,saved_mib,boundary_mib", *rows, ""])
    )
    (folder / "networks.json").write_text('{"net": ["abc"]}')
    console.set_verbosity(quiet=False, verbose=False)
    return folder


@dataclass(frozen=True)
class Done:
    """What a command did: exit status, output, what the spies were called with, and the files it wrote."""

    status: int
    stdout: str
    stderr: str
    calls: tuple[Call, ...]
    files: tuple[tuple[str, bytes], ...]

    def refuses(self, option: str) -> bool:
        lines = self.stderr.splitlines()
        named = re.search(rf"{option}\b", self.stderr) is not None
        return self.status == 2 and len(lines) == 1 and "has no effect" in self.stderr and named

    @property
    def effect(self) -> object:
        return self.stdout, self.stderr, self.calls, self.files


Run = Callable[..., Done]


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command with spies in place of its work; each command line once."""

    schedule = load_schedule(folder / "schedule.json")
    made = {
        "{schedule}": schedule,
        "{repetend}": find_repetend(schedule.placement, time_limit_s=1.0),
        "{plan}": load_plan(folder / "plan.json"),
    }
    monkeypatch.setattr("scripts.main.typer.main.get_command", lambda _: ROOT)
    calls: list[Call] = []
    known: dict[tuple[str, ...], Done] = {}
    out = folder / "out"

    def spy(name: str, returned: object) -> Callable[..., object]:
        def called(*arguments: object, **named: object) -> object:
            calls.append((name, plain((arguments, named))))
            if returned == "{training}":
                return SimpleNamespace(
                    pre_train=spy("pre_train", None), fine_tune=spy("fine_tune", Manifest())
                )
            if returned == "{file}":
                Path(str(arguments[1])).write_bytes(b"picture")
                return None
            if isinstance(returned, str):
                return made.get(returned, returned)
            return returned() if callable(returned) else returned

        return called

    def once(command: str, case: Case, arguments: str) -> Done:
        words = [*command.split(), *shlex.split(arguments.format(folder=folder))]
        key = tuple(words)
        if key not in known:
            for name, returned in case.spies.items():
                monkeypatch.setattr(name, spy(name, returned))
            out.mkdir(exist_ok=True)
            calls.clear()
            status = main(words)
            captured = capsys.readouterr()
            files = sorted(path for path in out.rglob("*") if path.is_file())
            contents = tuple((path.name, path.suffix == ".db" or path.read_bytes()) for path in files)
            for path in files:
                path.unlink()
            known[key] = Done(status, captured.out, captured.err, tuple(calls), contents)
        return known[key]

    return once


def plain(value: object) -> object:
    """What can be compared: functions by what they are, stores by where."""
    if isinstance(value, RecordStore):
        return value.location
    if is_dataclass(value) and not isinstance(value, type):
        return (
            type(value).__name__,
            *(plain(getattr(value, each.name)) for each in fields(value) if not each.name.startswith("_")),
        )
    if isinstance(value, dict):
        return tuple((key, plain(each)) for key, each in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, Iterator):
        return tuple(map(repr, value))
    if callable(value):
        return type(value).__name__
    return repr(value)


def written(option: str, case: Case) -> str:
    return f"{option} {case.samples[option]}".strip()


def joined(
    base: str, case: Case, options: tuple[str, ...], *, with_context: bool, without: str | None = None
) -> str:
    """The command line: base, what the options need besides each other, and the options, but for one."""
    needed = [
        part[0]
        for option in options
        for part in _OPTION.finditer(case.context.get(option, "") if with_context else "")
        if part[1] not in options
    ]
    own = [written(option, case) for option in options if option != without]
    return " ".join([base, *needed, *own])


_OPTION = re.compile(r"(--[a-z-]+)( [^- ]\S*)?")


def ineffective_pairs(run: Run, command: str, case: Case) -> tuple[list[str], int]:
    """Try all pairs; return those of which one is accepted and ignored, and how many took effect."""
    bad: list[str] = []
    num_effective = 0
    flags = {"--train": "--infer", "--infer": "--train"}
    for base, with_context in itertools.product(case.bases, (False, True)):
        for pair in itertools.combinations(sorted(case.samples), 2):
            if flags.get(pair[0]) == pair[1]:
                continue  # two names of one option
            line = joined(base, case, pair, with_context=with_context)
            both = run(command, case, line)
            if both.status == 2:
                shown = [option for option in OPTION_RULES[command] if both.refuses(option)]
                if not shown:
                    bad.append(f"{line}: refused without saying why: {both.stderr}")
                continue
            if both.status != 0:
                bad.append(f"{line}: status {both.status}: {both.stderr}")
                continue
            for option in pair:
                rest = joined(base, case, pair, with_context=with_context, without=option)
                alone = run(command, case, rest)
                if (
                    alone.status == 0
                    and alone.effect == both.effect
                    and not _is_default(command, option, case)
                ):
                    bad.append(f"{line}: {option} changes nothing")
                num_effective += 1
    return bad, num_effective


def _is_default(command: str, option: str, case: Case) -> bool:
    """Whether writing the option says what would be so anyway, as one name of each two-named flag does."""
    for parameter in COMMANDS[command].params:
        if option in parameter.secondary_opts:
            return parameter.default is False
        if option in parameter.opts and parameter.secondary_opts:
            return parameter.default is True
    return False


def check(run: Run, command: str, case: Case) -> None:
    assert set(case.samples) == options_of(COMMANDS[command])
    for option in case.samples:  # no pair proves anything of an option that is refused everywhere
        lines = [
            (joined(base, case, (option,), with_context=context), joined(base, case, (), with_context=False))
            for base, context in itertools.product(case.bases, (False, True))
        ]
        effects = [run(command, case, line).effect != run(command, case, base).effect for line, base in lines]
        accepted = [run(command, case, line).status == 0 for line, _ in lines]
        assert _is_default(command, option, case) or any(map(all, zip(effects, accepted, strict=True))), (
            option
        )
    bad, num_effective = ineffective_pairs(run, command, case)
    assert not bad, "\n".join(bad)
    assert num_effective >= len(case.samples) - 1


def test_every_option_of_every_command_is_declared_and_tried() -> None:
    declared = {command: set(rules) for command, rules in OPTION_RULES.items()}
    assert declared == {path: options_of(command) for path, command in COMMANDS.items()}
    assert {*CHEAP, *OF_TVM, *OF_TORCH} | ONLY_BY_RULES == set(COMMANDS)
    assert all(isinstance(command, CheckedCommand) for command in COMMANDS.values())


@pytest.mark.parametrize("command", CHEAP)
def test_both_options_of_a_pair_have_an_effect(run: Run, command: str) -> None:
    check(run, command, CHEAP[command])


@pytest.mark.tvm
@pytest.mark.parametrize("command", OF_TVM)
def test_both_options_of_a_pair_have_an_effect_on_tuning(run: Run, command: str) -> None:
    check(run, command, OF_TVM[command])


@pytest.mark.torch
@pytest.mark.tvm
@pytest.mark.parametrize("command", OF_TORCH)
def test_both_options_of_a_pair_have_an_effect_on_language(run: Run, command: str) -> None:
    check(run, command, OF_TORCH[command])


def test_an_option_that_is_ignored_is_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself: with the rules gone, it names what they refuse."""
    monkeypatch.setitem(OPTION_RULES, "draw", dict.fromkeys(OPTION_RULES["draw"], ()))  # type: ignore[attr-defined]
    bad, _ = ineffective_pairs(run, "draw", CHEAP["draw"])
    assert any("--schedules changes nothing" in line for line in bad)
    assert any("--critical-path changes nothing" in line for line in bad)


@pytest.mark.parametrize("infer", [False, True])
@pytest.mark.parametrize("devices", [1, 2, 5])
def test_an_option_of_shapes_is_refused_exactly_where_no_value_of_it_changes_the_placement(
    infer: bool, devices: int
) -> None:

    numbers = ["forward_span", "backward_span", "backward_input_span", "backward_weight_span", "lag"]
    numbers += ["forward_memory", "recompute_memory", "tensor_parallel_span"]
    variants: list[dict[str, Any]] = [{"infer": True}] if infer else [{}, *_variants()]
    num_refused = 0
    for shape, variant, option in itertools.product(SHAPES, variants, numbers):
        if shape == "kshape" and devices == 1:
            continue
        given = {f"--{name.replace('_', '-')}" for name in (*variant, option)}
        line = CommandLine(frozenset({*given, "--devices"}), {"shape": shape, "--devices": devices})
        refused = problem_of("schedule", line) is not None
        makes = [make_shape(shape, devices, **{**variant, option: value}) for value in (6, 9)]
        if option == "backward_span" and "split_backward" in variant:
            assert refused  # the halves would take it for a default; they are given themselves
        else:
            assert refused == (makes[0] == makes[1]), (shape, variant, option)
        num_refused += refused
    assert num_refused > 10


def _variants() -> list[dict[str, Any]]:
    backwards: list[dict[str, Any]] = [{}, {"split_backward": True}, {"choose_backward": True}]
    return [{**backward, **more} for backward in backwards for more in ({}, {"recompute": True})]


@pytest.mark.parametrize("option", sorted(options_of(COMMANDS["run"]) - {"--csv", "--orders", "--json"}))
def test_what_runs_something_is_refused_where_orders_are_only_written(folder: Path, option: str) -> None:
    if not OPTION_RULES["run"][option]:
        pytest.skip(f"{option} has an effect on the orders that are written")
    line = CommandLine(frozenset({option, "--csv"}), {"plan": folder / "schedule.json", "--stages": None})
    assert f"{option} has no effect with --csv" in (problem_of("run", line) or "")


@pytest.mark.parametrize(
    ("given", "values", "refused"),
    [
        ("--seed", {"--stages": None, "plan": "schedule.json"}, True),
        ("--seed", {"--stages": "sleep", "plan": "plan.json"}, True),
        ("--seed", {"--stages": "own.py:stages", "plan": "plan.json"}, True),
        ("--seed", {"--stages": None, "plan": "plan.json"}, False),
        ("--seed", {"--stages": "torch", "plan": "plan.json"}, False),
        ("--seed", {"--stages": None, "plan": "missing.json"}, False),  # which the command says itself
        ("--trust-model", {"--stages": "sleep", "plan": "plan.json"}, True),
        ("--trust-model", {"--stages": None, "plan": "schedule.json"}, True),
        ("--trust-model", {"--stages": None, "plan": "plan.json"}, False),
        ("--records", {"--overheads": "none"}, True),
        ("--records", {"--overheads": "known"}, False),
    ],
)
def test_options_of_a_run(folder: Path, given: str, values: dict[str, str], refused: bool) -> None:
    named = {name: folder / value if name == "plan" else value for name, value in values.items()}
    assert (problem_of("run", CommandLine(frozenset({given}), named)) is not None) == refused


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("tune", "own.pt2 --batch 1"),
        ("tune", "module:function --batch 4"),
        ("tune", "mlp:tiny --target cuda --threads 2"),
        ("tune", "mlp:tiny --target nvidia/nvidia-a100 --threads 2"),
        ("tune", "mlp:tiny --backends tvm,blas --trials 8"),
        ("tune", "mlp:tiny --backends blas --tvm-database db"),
        ("tune", "mlp:tiny --schedule-cost-model records"),
        ("tune", "mlp:tiny --trials 8 --price model --schedule-cost-model records"),
        ("tune", "mlp:tiny --price model --graph-level-search 4"),
        ("tune", "mlp:tiny --devices 1 --hop-us 3"),
        ("tune", "mlp:tiny --infer --optimizer adam"),
        ("partition", "mlp:tiny --price model --coalesce"),
        ("partition", "mlp:tiny --cost-model folder"),
        ("stages", "mlp:tiny --devices 2 --cut layer:0"),
        ("plan", "profile.csv --devices 4 --target cuda"),
        ("plan", "profile.csv --devices 4 --trials 4"),
        ("plan", "profile.csv --devices 4 --batch 4"),
        ("plan", "gpt2:tiny --devices 4 --num-layers 8"),
        ("plan", "gpt2:tiny --devices 4 --micro-batch 2"),
        ("plan", "gpt2:tiny --devices 4 --format csv"),
        ("plan", "profile.csv --devices 2 --memory 4GiB --device-memory 4GiB,8GiB"),
        ("plan", "profile.csv --devices 2 --global-batch 8 --micro-batches 8"),
        ("plan", "profile.csv --devices 4 --node-devices 2"),
        ("plan", "profile.csv --devices 4 --node-link 450GB/s"),
        ("plan", "profile.csv --devices 1 --link 10GB/s"),
        ("records best", "--batch 4"),
        ("records best", "mlp:tiny --match any --threads 2"),
        ("records collect", "--networks mlp,resnet:tiny --lengths 16"),
        ("language generate", "dense:4x8x8 --records there.db"),
        ("language train", "--resume --width 64"),
        ("language train", "--trials 4"),
    ],
)
def test_options_of_models_and_backends_are_refused_where_nothing_would_come_of_them(
    command: str, arguments: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), *arguments.split()]) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) == 1
    assert "has no effect" in message
    assert "; " in message
    assert not list(tmp_path.iterdir())


def test_help_says_what_an_option_needs(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert help_of("tune", "--budget") == "(needs --price active)"
    found = help_of("schedule", "--recompute-memory")
    assert found == "(needs --recompute; not with a placement file or --infer)"
    for _ in range(2):  # and says it once
        assert main(["tune", "--help"]) == 0
        assert capsys.readouterr().out.count("(needs --price active)") == 2


def test_a_command_of_any_app_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    own = CommandApp()
    seen: list[str | None] = []

    @own.command("do")
    def do(a: Annotated[str | None, typer.Option()] = None, b: bool = False) -> None:
        seen.append(a)

    @own.command("other")
    def other() -> None: ...

    needs_b = Rule(needs=(Condition("--b", lambda line: "--b" in line.given),), why="nobody looks at it")
    monkeypatch.setitem(OPTION_RULES, "do", {"--a": (needs_b,)})  # type: ignore[attr-defined]
    command = typer.main.get_command(own)
    with pytest.raises(typer.BadParameter, match="--a has no effect without --b, since nobody looks at it;"):
        command.main(["do", "--a", "x"], prog_name="own", standalone_mode=False)
    assert seen == []
    command.main(["do", "--a", "x", "--b"], prog_name="own", standalone_mode=False)
    command.main(["do"], prog_name="own", standalone_mode=False)
    assert seen == ["x", None]


def documented() -> list[list[str]]:
    """The words of every command in the README, the documentation and the help."""
    root = Path(__file__).parents[3]
    texts = [
        path.read_text(encoding="utf-8") for path in (root / "README.md", *sorted(root.glob("docs/*.md")))
    ]
    blocks = [block for text in texts for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL)]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    helps = [
        example for command in COMMANDS.values() for example in re.findall(r"`(tessel [^`]+)`", command.help)
    ]
    return [shlex.split(line, comments=True)[1:] for line in (*lines, *helps) if line.startswith("tessel ")]


def test_no_documented_command_is_refused() -> None:
    found = documented()
    assert len(found) > 50
    for words in found:
        command = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
        if command is None or any(word in "|&;<>" or word.startswith("--help") for word in words):
            continue
        context = COMMANDS[command].make_context(
            "tessel", words[len(command.split()) :], resilient_parsing=True
        )
        assert problem_of(command, command_line_of(context)) is None, words

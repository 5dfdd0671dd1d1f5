"""What each option of each command is tried with: values, options that it needs, and spies for the work."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import typer
from typer.core import TyperOption

from records import Environment
from records.database.merging import MergeSummary
from records.database.pruning import PruneSummary
from records.files.exchange import ExportSummary
from scripts.app import app
from tessel.batches import Batch, scaled_class
from tessel.batches.chunk_law import ChunkLaw
from tessel.checking.assessment import assess
from tessel.checking.case import case_of_schedule
from tessel.checking.trace_assessment import TraceAssessment, assess_trace
from tessel.compiling import partitioning
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.jobs.shown.sections import Sections
from tessel.profiles.step_trace import read_step_trace
from tessel.search import Frontier, SearchBudget
from tessel.search.batches.assignment import assign_micro_batches
from tessel.search.batches.chunks import Prefill, find_chunks
from tessel.shapes import vshape
from tests.samples.batches.trace_samples import Job, rows_of
from tuner.fleet.rpc_server import ServedDevice
from tuner.fleet.status import FleetStatus
from tuner.lowering.gpu_code import GpuCode

ROOT = typer.main.get_command(app)
assert partitioning.load_model, "what it calls is bound before any of it is replaced"


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
    "--assign": "matmul=blas",
    "--match": "any",
    "--tvm-database": "{folder}/database",
    "--fleet": "tcp://127.0.0.1:8786",
    "--proposer": "draft",
    "--language-model": "{folder}/model",
}
MODEL = {"--train": "", "--infer": "", "--batch": "2", "--shape": "x=2,32", "--value": "x=1"}
TUNING_CONTEXT = {
    "--budget": "--price active",
    "--regret": "--price active",
    "--cost-model": "--price active",
    "--proposer": "--trials 4",
    "--language-model": "--proposer language --trials 4",
}
SESSION = {
    "tuner.frontend.load_model": SimpleNamespace(cuts=(), notes=()),
    "tessel.compiling.partitioning.load_model": SimpleNamespace(cuts=(), notes=()),
    "tuner.tuning.search.opening.start_session": contextmanager(lambda: iter(["session"])),
    "tuner.tuning.search.opening.load_kernel_model": "kernel model",
}


@dataclass
class Manifest:
    num_samples: int = 1
    backends: tuple[str, ...] = ("tvm",)
    num_distilled: int = 1
    num_best: int = 1
    num_trials: int = 1
    num_kernels: int = 1


ASSESSMENT = assess(case_of_schedule("x", ONE_F_ONE_B.build(vshape(2), micro_batches=2)))

ASSIGNMENT = assign_micro_batches(
    vshape(2),
    Batch(classes=(scaled_class(vshape(2), "1", 1),), sequence=(0,) * 4),
    replicas=2,
    budget=SearchBudget(0),
)


CHUNKS = find_chunks(
    Prefill(
        prompt=4, law=ChunkLaw(launch_us=1, token_us=1, pair_us=1), factors=(1.0,), multiple=2, decode_us=1
    )
)


def _assessment_of_trace() -> TraceAssessment:
    with TemporaryDirectory() as folder:
        path = Path(folder, "steps.csv")
        path.write_text("\n".join(rows_of(Job())))
        return assess_trace(read_step_trace(path), budget=SearchBudget(0))


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
            "--overlap-factor": "0.6",
            "--spread": "uniform:0.3",
            "--batch": "1x3,2",
            "--replicas": "2",
            "--keep-order": "",
            "--work": "2",
            "--time-limit": "3s",
            "--seed": "5",
            "--save": "{folder}/out/saved.svg",
            "--width": "column",
            "--style": "{folder}/style.json",
            "--json": "",
        },
        context={
            "--width": "--frontier --save {folder}/out/drawn.svg",
            "--style": "--frontier --save {folder}/out/drawn.svg",
            "--backward-input-span": "--split-backward",
            "--backward-weight-span": "--choose-backward",
            "--recompute-memory": "--recompute",
            "--seed": "--micro-batches 3",
            "--replicas": "--batch 1x3,2",
            "--keep-order": "--batch 1x3,2 --replicas 2",
        },
        spies={
            "tessel.search.find_schedule": "{schedule}",
            "tessel.search.find_overlapped": "{schedule}",
            "tessel.search.batches.find_batch_schedule.find_batch_schedule": "{schedule}",
            "tessel.search.batches.assignment.assign_micro_batches": ASSIGNMENT,
            "tessel.search.find_repetend": "{repetend}",
            "tessel.search.find_frontier": Frontier(),
            "tessel.search.find_makespan_frontier": Frontier(),
            "scripts.commands.schedule.frontier._draw_frontier": None,
        },
    ),
    "chunk": Case(
        bases=(
            "4096 --devices 2 --multiple 1024 --law 100,10,0.01",
            "4096 --devices 2 --times {folder}/chunks.csv",
        ),
        samples={
            "--devices": "1",
            "--law": "90,10,0.01",
            "--times": "{folder}/other_chunks.csv",
            "--stage-factors": "1,2",
            "--multiple": "512",
            "--max-chunk": "2048",
            "--max-wait-us": "40000",
            "--decode-us": "50",
            "--hop-us": "7",
            "--save": "{folder}/out/saved.json",
            "--json": "",
        },
        spies={"tessel.search.batches.chunks.find_chunks": CHUNKS},
    ),
    "check": Case(
        bases=(
            "{folder}/pairs.csv",
            "Et|tL --devices 2 --micro-batches 4",
            "{folder}/schedule.json",
            "--trace {folder}/steps.csv",
        ),
        samples={
            "--trace": "{folder}/other_steps.csv",
            "--devices": "1",
            "--micro-batches": "6",
            "--group-size": "2",
            "--profile": "{folder}/profile.csv",
            "--cuts": "0-0,1-3",
            "--memory": "9000000",
            "--micro-batch": "2",
            "--data-parallel": "2",
            "--tensor-parallel": "2",
            "--context-parallel": "2",
            "--expert-parallel": "2",
            "--overlap-factor": "0.6",
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
                "--context-parallel",
                "--link",
                "--hop-us",
                "--optimizer",
            ),
            "--profile {folder}/profile.csv",
        )
        | {"--expert-parallel": "--profile {folder}/profile.csv --data-parallel 2"},
        spies={
            "tessel.checking.assessment.assess": ASSESSMENT,
            "tessel.checking.trace_assessment.assess_trace": _assessment_of_trace(),
        },
    ),
    "export": Case(
        bases=("{folder}/language.json --to deepspeed", "{folder}/language.json --to torchtitan"),
        samples={
            "--to": "markdown",
            "--out": "{folder}/out/exported.py",
            "--roles": "EtnL",
            "--keep-names": "",
            "--version": "main",
            "--json": "",
        },
        context={
            "--to": "",
            "--version": "--to torchtitan",
            "--roles": "--to torchtitan",
            "--keep-names": "--to torchtitan",
        },
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
            "--gains": "",
            "--style": "{folder}/style.json",
            "--width": "column",
            "--schedules": "1f1b",
            "--serve": "",
            "--port": "8123",
            "--json": "",
        },
        context={
            "--port": "--serve",
            "--compare": "--out {folder}/out/drawn.svg",
            "--critical-path": "--out {folder}/out/drawn.svg",
            "--gains": "--out {folder}/out/drawn.svg",
            "--style": "--out {folder}/out/drawn.svg",
            "--width": "--out {folder}/out/drawn.svg",
            "--schedules": "--compare --out {folder}/out/drawn.svg",
        },
        spies={
            "tessel.picture.figures.schedule_figure": "figure",
            "tessel.picture.figures.comparison_figure": "figure",
            "tessel.picture.figures.gains_figure": "figure",
            "tessel.picture.captions.save_figure": "{file}",
            "tessel.jobs.serving.serve_until_interrupt": None,
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
    "records page": Case(
        bases=("--out {folder}/out/records.html --records {folder}/records.db",),
        samples={
            "--out": "{folder}/out/another.html",
            "--records": "{folder}/other.db",
            "--json": "",
        },
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
            "records.files.exchange.save_records": ExportSummary(written=1),
            "records.files.metaschedule.write_database": 2,
        },
    ),
    "records import": Case(
        bases=("{folder}/exported.jsonl --records {folder}/out/new.db",),
        samples={
            "--records": "{folder}/out/another.db",
            "--neusight": "",
            "--aiconfigurator": "",
            "--json": "",
        },
        spies={
            "records.files.neusight.read_neusight": (),
            "records.files.aiconfigurator.read_tables": (),
            "records.files.aiconfigurator.read_aiconfigurator": (),
        },
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
            "--gpu": "",
            "--aiconfigurator": "{folder}/tables",
            "--json": "",
        },
        spies={
            "scripts.commands.cost_model.train.train_gpu": None,
            "scripts.commands.cost_model.train.train_typed": None,
            "scripts.commands.cost_model.train.load_kernel_samples": SimpleNamespace(samples=()),
            "cost_model.kernel_training.train_kernel_model": SimpleNamespace(
                save=lambda out: None, manifest=Manifest()
            ),
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
            "cost_model.evaluation.evaluate": {},
            "scripts.commands.cost_model.evaluate._evaluate_stages": (None, "too few"),
        },
    ),
    "cost-model predict": Case(
        bases=("abc",),
        samples={
            "--model": "{folder}/model",
            "--records": "{folder}/other.db",
            "--gpu": "H200",
            "--json": "",
        },
        spies={
            "scripts.commands.cost_model.predict.predict_gpu": None,
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
            "--sharding": "optimizer",
            "--hop-us": "3",
            "--placement": "zbv",
            "--no-recompute": "",
            "--link": "10GB/s",
            "--work": "2",
            "--time-limit": "3s",
            "--graph-level-search": "4",
            "--json": "",
        },
        context={**TUNING_CONTEXT, "--link": "--hop-us 3", "--no-recompute": "--memory 1GiB"},
        spies={
            **SESSION,
            "tuner.tuning.tune.tune_placements": {
                name: SimpleNamespace(replicas=1) for name in ("zbv", "vshape")
            },
            "tessel.pipeline.build_plan": "{plan}",
            "tessel.documents.save": None,
            "tessel.jobs.shown.pictures.write_picture": None,
            "tessel.jobs.plan.Plan.explain": Sections,
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
            "--width": "column",
            "--style": "{folder}/style.json",
            "--explain": "",
            "--json": "",
        },
        context={
            **TUNING_CONTEXT,
            "--width": "--picture {folder}/out/drawn.svg",
            "--style": "--picture {folder}/out/drawn.svg",
        },
        spies={
            **SESSION,
            "tessel.compiling.partitioning.partition_model": SimpleNamespace(model="model"),
            "scripts.commands.partition._nodes": [],
            "tessel.picture.partition_graph.partition_figure": "figure",
            "tessel.picture.captions.save_figure": None,
            "scripts.commands.partition._document": {},
            "scripts.commands.partition._print": None,
            "scripts.commands.partition._note_reasons": None,
        },
    ),
    "compile": Case(
        bases=("mlp:tiny --out {folder}/out/net.tessel",),
        samples={
            **TUNING,
            **{name: value for name, value in MODEL.items() if name not in ("--train", "--infer")},
            "--pad": "x=0",
            "--graph-level-search": "4",
            "--coalesce": "",
            "--out": "{folder}/out/other.tessel",
            "--json": "",
        },
        context={**TUNING_CONTEXT, "--pad": "--shape x=3,32 --shape x=4,32"},
        spies={
            "tessel.compiling.partitioning.compile_shapes": (SimpleNamespace(save=lambda path: 1), ()),
            "scripts.commands.compile._document": {},
            "scripts.commands.compile._print": None,
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
            "tuner.tuning.stage_costs.measure_stages.measure_stages": SimpleNamespace(
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
    "fleet worker": Case(
        bases=("tcp://127.0.0.1:8786",),
        samples={"--target": "llvm", "--threads": "2", "--backends": "blas", "--host": "127.0.0.2"},
        spies={
            "tuner.fleet.device_worker.own_identity": SimpleNamespace(
                environments={"": SimpleNamespace(device_model="a device", num_threads=1)}, backends=("blas",)
            ),
            "tuner.fleet.device_worker.serve": None,
        },
    ),
    "fleet server": Case(
        bases=("127.0.0.1:9190",),
        samples={"--key": "board", "--target": "llvm", "--threads": "2", "--host": "127.0.0.2"},
        spies={
            "tuner.fleet.rpc_server.served_device": ServedDevice(
                target="{}",
                environment=Environment(
                    device_kind="cpu",
                    device_model="a device",
                    num_cores=1,
                    num_threads=1,
                    driver="",
                    versions=(),
                ),
            ),
            "tuner.fleet.rpc_server.serve": None,
        },
    ),
    "fleet status": Case(
        bases=("tcp://127.0.0.1:8786",),
        samples={"--json": ""},
        spies={"tuner.fleet.status.fleet_status": FleetStatus(scheduler="tcp://127.0.0.1:8786", machines=())},
    ),
    "targets": Case(
        bases=("nvidia-h200",),
        samples={"--compile": "mlp:tiny", "--json": ""},
        spies={
            "tuner.frontend.load_model": SimpleNamespace(module="module", notes=()),
            "tuner.targets.cuda_compiler.compiler_obstacle": None,
            "tuner.lowering.gpu_code.compile_for_gpu": GpuCode(kernels=(), code_bytes=0, excesses=()),
        },
    ),
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
    "language collect": Case(
        bases=("",),
        samples={
            "--records": "{folder}/other.db",
            "--target": "llvm",
            "--threads": "2",
            "--kernels": "dense:4x8x8",
            "--count": "3",
            "--random": "3",
            "--rounds": "2",
            "--batch": "3",
            "--seed": "5",
            "--json": "",
        },
        spies={
            "scripts.commands.language.collect.find_machine": SimpleNamespace(target="target"),
            "tuner.language.kernels.named_kernels": [("kernel", "module")],
            "tuner.language.collecting.collection_kernels": [("kernel", "module")],
            "tuner.backends.metaschedule.trial_worker.builder_and_runner": (None, None),
            "tuner.language.collecting.collect_schedules": SimpleNamespace(
                num_kernels=1, num_trials=1, num_new=1, mean_quality=(0.5, None)
            ),
        },
    ),
    "language train": Case(
        bases=("",),
        samples={
            "--records": "{folder}/other.db",
            "--out": "{folder}/out/language",
            "--target": "llvm",
            "--threads": "2",
            "--distilled": "3",
            "--epochs": "3",
            "--rounds": "2",
            "--batch": "3",
            "--hold-out": "dense:8x8x8",
            "--layers": "1",
            "--width": "32",
            "--learning-rate": "0.01",
            "--resume": "",
            "--seed": "5",
            "--json": "",
        },
        context={"--batch": "--rounds 1"},
        spies={
            "scripts.commands.language.train.check_torch": None,
            "scripts.commands.language.train.find_machine": SimpleNamespace(
                target=SimpleNamespace(text="t", num_threads=1), environment=SimpleNamespace(device_model="d")
            ),
            "scripts.commands.language.train.check_writable_folder": None,
            "tuner.language.model_training.held_out_tasks": frozenset(),
            "tuner.language.knowledge.ignored_trials": 0,
            "tuner.language.expert_rounds.train_with_rounds": (
                SimpleNamespace(shape=SimpleNamespace(num_parameters=1)),
                Manifest(),
            ),
            "tuner.backends.metaschedule.trial_worker.builder_and_runner": (None, None),
            "cost_model.language.model_files.load_network": (
                SimpleNamespace(shape=SimpleNamespace(num_parameters=1)),
                Manifest(),
            ),
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
        spies={
            "scripts.commands.language.generate.find_machine": SimpleNamespace(
                target=SimpleNamespace(text="t", num_threads=1)
            ),
            "scripts.commands.language.generate.find_kernel": ("kernel", "module"),
            "cost_model.language.model_files.load_network": ("network", "manifest"),
            "tuner.language.knowledge.knowledge_of": "knowledge",
            "tuner.language.generation.generate_for": SimpleNamespace(
                schedules=(), legal_ratio=1.0, num_written=1, num_distinct=1
            ),
            "scripts.commands.language.generate._measured_us": [],
        },
    ),
    "language evaluate": Case(
        bases=("",),
        samples={
            "--kernels": "dense:4x8x8",
            "--proposers": "random,neighbour",
            "--model": "{folder}/model",
            "--trials": "3",
            "--seeds": "2",
            "--target": "llvm",
            "--threads": "2",
            "--records": "{folder}/other.db",
            "--seed": "5",
            "--json": "",
        },
        context={"--model": "--proposers language"},
        spies={
            "scripts.commands.language.evaluate.find_machine": SimpleNamespace(
                target=SimpleNamespace(text="t", num_threads=1), tuned_for="llvm"
            ),
            "tuner.language.kernels.named_kernels": [("kernel", "module")],
            "cost_model.language.model_files.load_network": ("network", "manifest"),
            "tuner.language.knowledge.knowledge_of": SimpleNamespace(trials=()),
            "tuner.language.model_training.held_out_tasks": frozenset(),
            "tuner.language.evaluation.measure_trials": ((1.0,), None),
            "tuner.language.evaluation.mean_best_us": [1.0] * 9,
            "tuner.backends.metaschedule.trial_worker.builder_and_runner": (None, None),
        },
    ),
}
ONLY_BY_RULES = {"run", "plan"}
"""Starting ranks is not cheap, and a plan has hundreds of pairs: their rules are tried one by one below."""

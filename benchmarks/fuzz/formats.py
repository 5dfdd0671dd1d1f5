"""The formats that commands read, for `fuzz`: samples, how they are changed, and how a command reads them."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import html.parser
import io
import itertools
import json
import random
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files, Format

TEXT_COUNT = 100_000
MODEL_COUNT = 5_000

_ROOT = Path(__file__).parents[2]
_RECORDS = Path(__file__).parents[2] / "tests" / "cost_model" / "kernels_amd-epyc.jsonl"

Change = Callable[[random.Random, bytes], bytes]


def all_formats() -> dict[str, Callable[[], Format]]:
    """Return what makes each format, by name; making one imports what it needs."""
    return {
        "records": _records,
        "tvm-database": _tvm_database,
        "placement": _placement,
        "schedule": _schedule,
        "tessel-file": _tessel_file,
        "plan": _plan,
        "orders": _orders,
        "megatron-layout": _megatron_layout,
        "profile-table": _profile_table,
        "profile-of-others": _profile_of_others,
        "saved-plan": _saved_plan,
        "kernel-model": _kernel_model,
        "stage-model": _stage_model,
        "language-model": _language_model,
        "pt2": _exported,
        "onnx": _onnx,
    }


def _by_suffix(**changes: Change) -> Callable[[random.Random, Files], Files]:
    table = {f".{suffix}": change for suffix, change in changes.items()}
    return lambda rng, files: mutation.changed_folder(rng, files, table)


# Records


def _records() -> Format:
    from records import RecordError
    from records.files.exchange import read_records

    def read(folder: Path) -> None:
        for _ in read_records(folder / "records.jsonl"):
            pass

    return Format(
        name="records",
        count=TEXT_COUNT,
        samples=lambda: [{"records.jsonl": b"".join(line + b"\n" for line in _record_lines())}],
        change=lambda rng, files: {"records.jsonl": mutation.changed_text_file(rng, files["records.jsonl"])},
        read=read,
        own_errors=(RecordError,),
    )


def _record_lines(count: int = 3) -> list[bytes]:
    return _RECORDS.read_bytes().splitlines()[:count]


def _tvm_database() -> Format:
    from records import RecordError
    from records.files.metaschedule import RECORD_FILE, WORKLOAD_FILE, read_database

    def read(folder: Path) -> None:
        for name in (WORKLOAD_FILE, RECORD_FILE):
            (folder / name).touch()
        for _ in read_database(folder):
            pass

    trace = [[["GetSBlock", [], ["C", "main"], ["b0"]]], []]
    target = {"keys": ["cpu"], "kind": "llvm", "num-cores": 2, "tag": ""}
    arguments = [
        ["TENSOR", "float32", [16, 8]],
        ["TENSOR", "float32", [8, 4]],
        ["TENSOR", "float32", [16, 4]],
    ]
    entries = [[0, [trace, [0.001, 0.003], target, arguments]], [1, [trace, [1e10], target, arguments]]]
    modules = [["123", "bW9kdWxl"], ["456", "bW9kdWxlMg=="]]
    sample = {
        name: b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        for name, lines in ((WORKLOAD_FILE, modules), (RECORD_FILE, entries))
    }
    return Format(
        name="tvm-database",
        count=TEXT_COUNT,
        samples=lambda: [sample],
        change=_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=(RecordError,),
    )


# Documents of the scheduler


def _scheduler_errors() -> tuple[type[Exception], ...]:
    from tessel.errors import ScheduleError

    return (ScheduleError, ValueError)


def _placements() -> list[Any]:
    from tessel.shapes import make_shape

    return [
        make_shape("vshape", 3),
        make_shape("mshape", 2),
        make_shape("vshape", 2, choose_backward=True, lag=1),
    ]


def _schedules() -> list[Any]:
    import matplotlib.font_manager  # noqa: F401 - it lists fonts once by another program, which no reader starts

    from tessel.handwritten.construction.greedy import read_flow, run_greedily
    from tessel.schedule import Schedule

    found = []
    for placement in _placements()[:2]:  # the third leaves choices open, which no rule takes
        flow = read_flow(placement)
        starts = run_greedily(flow, micro_batches=3, in_flight=flow.depth)
        limits = (8,) * placement.devices
        found.append(Schedule.of(placement, starts, micro_batches=3, memory=limits, found_by="a rule"))
    return found


def _profile_table() -> Format:
    def read(folder: Path) -> None:
        _convert_profile(folder / ("table.json" if (folder / "table.json").exists() else "table.csv"), folder)

    table = (_ROOT / "examples" / "profiles" / "eight_layers.csv").read_bytes()
    document = {
        "schema_version": 1,
        "model": "two layers",
        "layers": [
            {
                "layer": f"layer{index}",
                "forward_ms": 1.5,
                "backward_ms": 3,
                "weights_mib": 300,
                "saved_mib": 20,
                "boundary_mib": 16,
                "tie": "shared",
                "micro_batch": 2,
            }
            for index in range(2)
        ],
    }
    return Format(
        name="profile-table",
        count=TEXT_COUNT,
        samples=lambda: [{"table.csv": table}, {"table.json": json.dumps(document).encode()}],
        change=_by_suffix(csv=mutation.changed_table, json=mutation.changed_text_file),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _convert_profile(path: Path, folder: Path) -> None:
    """Read a profile, write it as the table, and export a plan of it that needs no search.

    Raises:
        AssertionError: a name from the file is more than text in what was written.
    """
    from tessel.profiles import load_profile, save_table

    profile = load_profile(path)
    save_table(profile, folder / "written.csv")
    again = load_profile(folder / "written.csv")
    names = [(layer.name.strip(), layer.tie.strip()) for layer in profile.layers]
    assert [(layer.name, layer.tie) for layer in again.layers] == names, "the table holds other layers"
    _export_all(_recipe_of_profile(profile))


def _recipe_of_profile(profile: Any) -> Any:
    """Return what frameworks are told of a profile cut in the middle, in an order written by hand."""
    from tessel.engine.actions import actions_of
    from tessel.exports.recipe import Recipe
    from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
    from tessel.shapes import make_shape

    layers = tuple(layer.name for layer in profile.layers)
    stages = min(2, len(layers))
    ends = [len(layers) * stage // stages for stage in range(stages + 1)]
    schedule = ONE_F_ONE_B.build(make_shape("vshape", stages), micro_batches=2)
    return Recipe(
        model=profile.name,
        layers=layers,
        cuts=tuple((first, end - 1) for first, end in itertools.pairwise(ends)),
        device_of_stage=tuple(range(stages)),
        actions=actions_of(schedule),
        schedule=schedule,
        micro_batches=2,
    )


def _export_all(recipe: Any) -> None:
    """Write a recipe for every framework that takes it, and look at what was written.

    Raises:
        AssertionError: a name from the file is more than text in it.
    """
    from tessel.errors import ScheduleError
    from tessel.exports.deepspeed import deepspeed_module
    from tessel.exports.markdown import recipe_markdown
    from tessel.exports.megatron_plan import megatron_arguments
    from tessel.exports.torchtitan import modules_of_stages, orders_csv, titan_python, titan_toml

    _look_at_text(recipe_markdown(recipe))
    looks: tuple[tuple[Callable[[], str], Callable[[str], None]], ...] = (
        (lambda: orders_csv(recipe), _look_at_text),
        (lambda: megatron_arguments(recipe), _look_at_arguments),
        (lambda: deepspeed_module(recipe), lambda text: _look_at_python(text, [list(recipe.layers)])),
        (
            lambda: titan_python(recipe, csv="orders.csv"),
            lambda text: _look_at_python(text, modules_of_stages(recipe)),
        ),
        (lambda: titan_toml(recipe, csv="orders.csv"), lambda text: _look_at_toml(text, recipe)),
    )
    for write, look in looks:
        try:
            text = write()
        except ScheduleError:  # the framework does not run it
            continue
        look(text)


def _look_at_arguments(text: str) -> None:
    first, *lines = text.splitlines()
    assert first.startswith("# "), "the arguments begin with no comment"
    assert all(line.startswith(("# ", "--")) for line in lines), "a name became an argument"


def _look_at_python(text: str, names: list[list[str]]) -> None:
    """Look for lists of names among a file's constants, and for nothing that the other files do not do."""
    tree = ast.parse(text)
    lists = [ast.literal_eval(node) for node in ast.walk(tree) if _is_list_of_texts(node)]
    assert all(each in lists for each in names), "the file does not hold the names as constants"
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported <= {"deepspeed.pipe", "deepspeed.runtime.pipe"}, "a name became an import"
    assert not any(isinstance(node, ast.Import) for node in ast.walk(tree)), "a name became an import"
    kinds = (ast.ImportFrom, ast.Assign, ast.ClassDef, ast.FunctionDef)
    docstrings = [node for node in tree.body if not isinstance(node, kinds)]
    assert all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in docstrings)


def _is_list_of_texts(node: ast.AST) -> bool:
    return isinstance(node, ast.List) and all(
        isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.elts
    )


def _look_at_toml(text: str, recipe: Any) -> None:
    from tessel.exports.torchtitan import modules_of_stages

    options = tomllib.loads(text)
    assert options.keys() == {"training", "parallelism"}, "a name became a table"
    assert options["parallelism"]["module_fqns_per_model_part"] == modules_of_stages(recipe)


def _profile_of_others() -> Format:
    files = (
        "sailor/OPT-350/A100-40/profile.json",
        "aceso/A100-40/fp16/GPT-Neo-2.7_mbs1_tp1_algo0.csv",
        "metis/DeviceType.X100_tp1_bs1.json",
        "pipedream/gnmt/graph.txt",
        "neusight/H100/gpt2_large-train-1024-1.csv",
    )
    extracts = _ROOT / "tests" / "tessel" / "profiles" / "extracts"

    def read(folder: Path) -> None:
        for file in files:
            if (folder / Path(file).name).exists():
                _convert_profile(folder / Path(file).name, folder)

    def samples() -> list[Files]:
        found = [{Path(file).name: (extracts / file).read_bytes()} for file in files]
        found[-1]["gpt2_large-train-1024-1.json"] = b'{"num_layer": 36, "fw_latency": 63.6}'
        return found

    return Format(
        name="profile-of-others",
        count=TEXT_COUNT,
        samples=samples,
        change=_by_suffix(
            json=mutation.changed_text_file, csv=mutation.changed_table, txt=mutation.changed_text_file
        ),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _saved_plan() -> Format:
    from tessel.errors import ScheduleError
    from tessel.exports.recipe import recipe_of_saved_plan
    from tessel.planning.saved_plan import load_saved_plan

    def read(folder: Path) -> None:
        plan = load_saved_plan(folder / "plan.json")
        _write_all(plan.schedule, None, folder)
        with contextlib.suppress(ScheduleError):  # its stages are no chain
            _export_all(recipe_of_saved_plan(plan))

    return Format(
        name="saved-plan",
        count=TEXT_COUNT,
        samples=_saved_plans,
        change=_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _saved_plans() -> list[Files]:
    from tessel.planning.cluster import Cluster, Link
    from tessel.planning.layout import Layout
    from tessel.planning.saved_plan import SavedBaseline, SavedPlan
    from tessel.profiles import load_profile

    schedule = _schedules()[0]
    link = Link(bytes_per_s=1e11, latency_us=10.0)
    plan = SavedPlan(
        profile=load_profile(_ROOT / "examples" / "profiles" / "eight_layers.csv"),
        cluster=Cluster(devices=3, hop=link, collective=link, memory_bytes=2**34),
        optimizer="adam",
        layout=Layout(
            data_parallel=1, pipeline=3, micro_batch=1, micro_batches=3, cuts=((0, 2), (3, 5), (6, 7))
        ),
        schedule=schedule,
        order="1f1b",
        step_us=2.5,
        training_step_us=100.0,
        lower_bound_us=90.0,
        static_bytes=(5, 6, 7),
        memory_bytes=(8, 9, 10),
        baselines=(SavedBaseline(name="gpipe", step_ms=0.2, fits=True),),
    )
    return [{"plan.json": plan.to_json()}]


def _placement() -> Format:
    from tessel.documents import load_placement

    return Format(
        name="placement",
        count=TEXT_COUNT,
        samples=lambda: [{"placement.json": each.to_json()} for each in _placements()],
        change=_by_suffix(json=mutation.changed_text_file),
        read=lambda folder: _draw_placement(load_placement(folder / "placement.json")),
        own_errors=_scheduler_errors(),
    )


def _draw_placement(placement: Any) -> None:
    """Read what a placement means, as a command does before it searches."""
    from tessel.handwritten.construction.stages import NotAPipelineError, read_pipeline

    with contextlib.suppress(NotAPipelineError):
        read_pipeline(placement)


def _schedule() -> Format:
    from tessel.documents import load_schedule

    return Format(
        name="schedule",
        count=TEXT_COUNT,
        samples=lambda: [{"schedule.json": each.to_json()} for each in _schedules()],
        change=_by_suffix(json=mutation.changed_text_file),
        read=lambda folder: _write_all(load_schedule(folder / "schedule.json"), None, folder),
        own_errors=_scheduler_errors(),
    )


def _tessel_file() -> Format:
    from tessel.schedule.schedplan import SchedPlan

    def samples() -> list[Files]:
        saved = []
        for schedule in _schedules()[:2]:
            with tempfile.TemporaryDirectory() as root:
                SchedPlan.of_schedule(schedule).save(Path(root) / "plan.json")
                saved.append({"plan.json": (Path(root) / "plan.json").read_bytes()})
        block = {"mid": 0, "span": 1, "memory": 1.0, "btype": "FW", "gid": 0}
        saved.append(
            {"plan.json": json.dumps({"ndevs": 1, "blocks": [block | {"step": 0, "device": [0]}]}).encode()}
        )
        return saved

    def read(folder: Path) -> None:
        SchedPlan.load(folder / "plan.json")

    return Format(
        name="tessel-file",
        count=TEXT_COUNT,
        samples=samples,
        change=_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _plan() -> Format:
    from tessel.errors import ScheduleError
    from tessel.exports.recipe import recipe_of_plan
    from tessel.plan import load_plan

    def read(folder: Path) -> None:
        plan = load_plan(folder / "plan.json")
        _write_all(plan.schedule, plan, folder)
        with contextlib.suppress(ScheduleError):  # its stages are no chain
            _export_all(recipe_of_plan(plan))

    return Format(
        name="plan",
        count=TEXT_COUNT,
        samples=_plans,
        change=_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _plans() -> list[Files]:
    import msgspec

    from tessel.comparison import compare_schedules
    from tessel.plan import Plan
    from tuner.plan import Figure, ModelPlan, PartitionPlan, StagePlan, TensorInfo

    measured = Figure(latency_us=7.5, source="measured", record_ids=(1, 2), interval_us=(7.0, 8.0))
    boundary = TensorInfo(name="x", shape=(4, 8), dtype="float32", num_bytes=128)
    schedule = _schedules()[0]
    stages = tuple(
        StagePlan(
            name=f"stage{number}",
            layers=(f"h.{number}",),
            inputs=(boundary,),
            outputs=(boundary,),
            relayed=(),
            parameters=(f"h.{number}.weight",),
            forward=measured,
            backward=measured,
            backward_input=measured if number else None,
            backward_weight=measured,
            weight_bytes=4000,
            saved_bytes=600,
            saved_for_weight_bytes=500,
            boundary_bytes=128,
        )
        for number in range(3)
    )
    part = PartitionPlan(
        operators=("matmul", "add"),
        backend="tvm",
        figure=measured,
        occurrences=3,
        workload_fingerprint="0" * 32,
        functions=("stage0.forward", "stage1.backward"),
        runner_up=("blas", 9.0),
    )
    tuned = ModelPlan(
        model="gpt2:tiny",
        model_fingerprint="0" * 32,
        training=True,
        target='{"kind":"llvm"}',
        device_model="a processor",
        num_threads=1,
        partition=(part,),
        end_to_end={"mix": measured, "tvm": measured},
        sum_of_parts=measured,
        launch_penalty_us=0.5,
        max_relative_error=1e-6,
        max_gradient_error=1e-6,
        stages=stages,
        tied=(),
        hop_latency_us=(5.0, 5.0),
        hop_source="given",
        new_measurements=0,
        reused_measurements=2,
    )
    plan = Plan(
        **{name: getattr(tuned, name) for name in tuned.__struct_fields__},
        step_us=10.0,
        memory_limit_bytes=10_000,
        static_bytes=(100, 100, 100),
        optimizer="sgd",
        placement=schedule.placement,
        schedule=schedule,
        comparison=compare_schedules(schedule).rows,
    )
    return [{"plan.json": msgspec.json.encode(plan, order="sorted")}]


def _write_all(schedule: Any, plan: Any, folder: Path) -> None:
    """Write a schedule as every kind of picture, and look at what was written.

    Raises:
        AssertionError: a name from the file is more than text in it.
    """
    from scripts.commands.draw import write_picture

    suffixes = [".html", ".json", ".txt", ".md"]
    if len(schedule.starts) < 100 and hash(schedule.starts) % 25 == 0:
        suffixes.append(".svg")  # takes a hundred times as long as the others
    for suffix in suffixes:
        path = folder / f"drawn{suffix}"
        title = "title" if plan is None else f"{plan.model} on {plan.device_model}"
        write_picture(schedule, plan, path, title=title)
        _LOOKS[suffix](path.read_text())


def _look_at_page(text: str) -> None:
    page = _Page()
    page.feed(text)
    page.close()
    assert page.scripts.keys() == {"data", ""}, f"the page has scripts {sorted(page.scripts)}"
    assert "<" not in page.scripts["data"], "the page's data holds the beginning of a tag"
    json.loads(page.scripts["data"])


class _Page(html.parser.HTMLParser):
    """Collects the text of a page's scripts by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self._name: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "img", "a name from the file became a tag of the page"
        if tag == "script":
            self._name = dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._name = None

    def handle_data(self, data: str) -> None:
        if self._name is not None:
            self.scripts[self._name] = self.scripts.get(self._name, "") + data


def _look_at_text(text: str) -> None:
    control = {character for character in text if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    assert not control, f"the text holds control characters {sorted(control)}"


def _look_at_picture(text: str) -> None:
    ElementTree.fromstring(text)


_LOOKS: Mapping[str, Callable[[str], Any]] = {
    ".html": _look_at_page,
    ".json": json.loads,
    ".txt": _look_at_text,
    ".md": _look_at_text,
    ".svg": _look_at_picture,
}


def _orders() -> Format:
    from tessel.documents import read_document
    from tessel.engine import actions_from_csv, actions_of, actions_to_csv, schedule_of_actions

    placement = _placements()[0]

    def read(folder: Path) -> None:
        actions = actions_from_csv(read_document(folder / "orders.csv").decode())
        schedule_of_actions(placement, actions)

    def samples() -> list[Files]:
        return [{"orders.csv": actions_to_csv(actions_of(_schedules()[0])).encode()}]

    return Format(
        name="orders",
        count=TEXT_COUNT,
        samples=samples,
        change=_by_suffix(csv=mutation.changed_table),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _megatron_layout() -> Format:
    from scripts.commands.check.source import read_layout_text
    from tessel.documents import read_document
    from tessel.exports.megatron import megatron_orders

    def read(folder: Path) -> None:
        layout = read_layout_text("layout.txt", read_document(folder / "layout.txt").decode(), 2)
        megatron_orders(layout, 4)

    texts = ("Et|(tt|)*30L", "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL", "Et*3|(tt|)*28,m|L")
    names = b'[["embedding", "decoder"], ["decoder", "decoder", "loss"]]'
    return Format(
        name="megatron-layout",
        count=TEXT_COUNT,
        samples=lambda: [{"layout.txt": text} for text in (*map(str.encode, texts), names)],
        change=_by_suffix(txt=_changed_layout),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _changed_layout(rng: random.Random, content: bytes) -> bytes:
    """Return a layout with pieces of layouts, or any bytes, put in, taken out or over others."""
    text = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        piece = rng.choice(
            (b"t", b"|", b"(", b")", b"*2", b"*0", b"*999999999", b"m", b"E", b"L", b",", b"(t|)*3", b"[")
        )
        at = rng.randint(0, len(text))
        text[at : at + rng.choice((0, 0, 1, 3))] = piece if rng.random() < 0.8 else rng.randbytes(2)
    return bytes(text)


# Folders of models


def _kernel_model() -> Format:
    from cost_model import load_dataset, load_kernel_model, train_kernel_model
    from cost_model.errors import CostModelError
    from records import Record
    from records.files.exchange import read_records

    records = [
        Record(record_id=number, workload=workload, measurement=measurement)
        for number, (workload, measurement) in enumerate(read_records(_RECORDS))
    ]
    dataset = load_dataset(records)

    def read(folder: Path) -> None:
        load_kernel_model(folder).predict(dataset.queries[:4])

    return _cost_model("kernel-model", train_kernel_model(dataset, num_threads=1), read, (CostModelError,))


def _stage_model() -> Format:
    from cost_model.errors import CostModelError
    from cost_model.stage_model import load_stage_model, load_stages, train_stage_model
    from tests.samples.kernel_physics import stage_records

    samples = load_stages(stage_records(40))

    def read(folder: Path) -> None:
        load_stage_model(folder).predict([sample.query for sample in samples[:4]])

    return _cost_model("stage-model", train_stage_model(samples), read, (CostModelError,))


def _cost_model(
    name: str, model: Any, read: Callable[[Path], None], own_errors: tuple[type[Exception], ...]
) -> Format:
    with tempfile.TemporaryDirectory() as root:
        model.save(Path(root))
        files = {path.name: path.read_bytes() for path in Path(root).iterdir()}

    def change(rng: random.Random, found: Files) -> Files:
        """Change a file and, half the time, what the manifest says of the forests."""
        changed = _by_suffix(json=mutation.changed_text_file)(rng, found)
        is_told = rng.random() < 0.5
        for manifest in [file for file in changed if "manifest" in file and changed[file] == found[file]]:
            document = json.loads(changed[manifest])
            if is_told and "digests" in document:
                document["digests"] = {
                    forest: hashlib.blake2b(changed[f"{forest}.json"], digest_size=16).hexdigest()
                    for forest in document["digests"]
                    if f"{forest}.json" in changed
                }
                changed = {**changed, manifest: json.dumps(document).encode()}
        return changed

    return Format(
        name=name,
        count=MODEL_COUNT,
        samples=lambda: [files],
        change=change,
        read=read,
        own_errors=own_errors,
    )


def _language_model() -> Format:
    from tuner.errors import TunerError
    from tuner.language.model_files import Manifest, load_network, save_network
    from tuner.language.network import Network, NetworkShape
    from tuner.targets.target import Target

    target = Target(name="cpu", kind="cpu", tvm_json='{"kind":"llvm"}', num_threads=1)
    shape = NetworkShape(layers=1, width=16, heads=2)
    manifest = Manifest(
        shape=shape,
        target=target.text,
        device_model="any",
        num_threads=1,
        seed=0,
        families=("dense",),
        num_texts=3,
    )
    with tempfile.TemporaryDirectory() as root:
        save_network(Network(shape, seed=4), manifest, Path(root))
        files = {path.name: path.read_bytes() for path in Path(root).iterdir()}

    def change(rng: random.Random, found: Files) -> Files:
        """Change the weights and, half the time, the digest and the name that the manifest has of them."""
        changed = _by_suffix(json=mutation.changed_text_file)(rng, found)
        weights = {name: held for name, held in changed.items() if name.endswith(".safetensors")}
        if weights == {name: found[name] for name in weights} or rng.random() < 0.5:
            return changed
        ((name, held),) = weights.items()
        document = json.loads(found["language_model.json"])
        digest = hashlib.blake2b(held, digest_size=16).hexdigest()
        return {
            "language_model.json": json.dumps(document | {"digest": digest, "weights": name}).encode(),
            name: held,
        }

    return Format(
        name="language-model",
        count=MODEL_COUNT,
        samples=lambda: [files],
        change=change,
        read=lambda folder: _ignore(load_network(folder, target)),
        own_errors=(TunerError,),
    )


def _ignore(_: object) -> None:
    return None


# Models of others


def _exported() -> Format:
    import torch

    class Attending(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.register_buffer("places", torch.arange(4).expand(3, 4))
            self.scale = torch.tensor([1.5, 2.0])

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                y = self.layer(x)
            y = torch.nn.functional.scaled_dot_product_attention(y[None], x[None], x[None])
            return {"y": y * self.scale[0], "rest": [self.layer(x), x + self.places[0, 1]]}

    def saved(module: Any, *, is_open: bool) -> Files:
        shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}} if is_open else None
        program = torch.export.export(module.eval(), (torch.ones(4, 4),), dynamic_shapes=shapes)
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        return {"model.pt2": buffer.getvalue()}

    return _model_file(
        "pt2",
        lambda: [saved(Attending(), is_open=True), saved(Attending(), is_open=False)],
        _by_suffix(pt2=mutation.changed_archive),
    )


def _onnx() -> Format:
    return _model_file("onnx", lambda: [{"model.onnx": _onnx_model()}], _by_suffix(onnx=_changed_onnx))


def _model_file(
    name: str, samples: Callable[[], list[Files]], change: Callable[[random.Random, Files], Files]
) -> Format:
    from tuner.errors import TunerError
    from tuner.frontend import load_model

    def read(folder: Path) -> None:
        load_model(str(folder / f"model.{name}"))

    return Format(
        name=name,
        count=MODEL_COUNT,
        samples=samples,
        change=change,
        read=read,
        own_errors=(TunerError, ValueError),
        may_start=True,  # the child that tries a file
    )


def _onnx_model() -> bytes:
    """Return a convolution and a product, with what is folded, rewritten and padded before the import."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    values = {
        "kernel": rng.standard_normal((4, 3, 3, 3)).astype("float32"),
        "weight": rng.standard_normal((4, 5)).astype("float32"),
        "extents": np.array([1, -1]),
        "slope": np.array([0.1], dtype="float32"),
    }
    nodes = [
        helper.make_node(
            "Conv", ["x", "kernel"], ["a"], name="/conv/Conv", auto_pad="SAME_UPPER", strides=[2, 2]
        ),
        helper.make_node("PRelu", ["a", "slope"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Concat", ["extents"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["c", "wanted"], ["d"]),
        helper.make_node("Gemm", ["d", "weight"], ["e"], name="/head/Gemm", alpha=1.0),
        helper.make_node("Sum", ["e", "e", "e"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def _changed_onnx(rng: random.Random, content: bytes) -> bytes:
    """Return the model with changes of fields of its messages, or of its bytes."""
    import onnx

    if rng.random() < 0.3:
        return mutation.changed_bytes(rng, content)
    model = onnx.load_model_from_string(content)
    for _ in range(rng.randint(1, 3)):
        _change_field(rng, model)
    changed: bytes = model.SerializeToString()
    return changed


def _change_field(rng: random.Random, message: Any) -> None:
    """Change a field of a protobuf message, or of one inside it."""
    fields = message.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    is_message = field.type == field.TYPE_MESSAGE
    is_list = hasattr(value, "extend")
    if is_message and (rng.random() < 0.9 or not is_list):
        _change_field(rng, rng.choice(list(value)) if is_list else value)
        return
    if is_list:
        index = rng.randrange(len(value))
        match rng.randrange(4):
            case 0:
                del value[index]
            case 1:
                value.extend([value[index]] * rng.choice((1, 2, 100)))
            case 2 if not is_message:
                value[index] = _other_scalar(rng, field, value[index])
            case _:
                value.extend([value[index]])
                del value[index]
    else:
        setattr(message, field.name, _other_scalar(rng, field, value))


def _other_scalar(rng: random.Random, field: Any, value: Any) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice((*mutation.TEXTS, *_OPERATORS, "../weights.bin", "/etc/passwd"))
    if field.type == field.TYPE_BYTES:
        return mutation.changed_bytes(rng, value)
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e30, float("inf"), float("nan")))
    wide = (0, 1, -1, 2, 7, 11, 100, 10**6, 2**31 - 1, -(2**31))
    if field.type in (field.TYPE_INT64, field.TYPE_UINT64):
        wide += (2**31, 10**12, 2**62, -(2**62))
    if field.type == field.TYPE_ENUM:
        return rng.choice(sorted(field.enum_type.values_by_number))
    return rng.choice(wide)


_OPERATORS = (
    "ConstantOfShape",
    "Range",
    "Tile",
    "Expand",
    "Loop",
    "If",
    "Scan",
    "Shape",
    "Resize",
    "Pad",
    "Einsum",
)
_OPERATORS += ("StringNormalizer", "RandomNormal", "TfIdfVectorizer", "ai.onnx.ml", "QLinearConv", "NonZero")

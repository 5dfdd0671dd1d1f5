"""torchtitan builds the plan's stages from what is written, and torch loads the CSV into them."""

from __future__ import annotations

import dataclasses
import json
import sys
import tomllib
import types
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from layer_plans import profile, saved_plan

from tessel.engine.actions import cells_from_csv, cells_to_csv
from tessel.errors import ScheduleError, UsageError
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.torchtitan import RELEASES, modules_of_stages, orders_csv, titan_file, titan_options
from tessel.jobs import exporting
from tessel.jobs.exporting import export_recipe
from tessel.planning.layout import Layout
from tessel.profiles.profile import Layer

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

from torch_schedule_stages import stages_of_torch  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch


def layout(placement: str, chunks: int = 1, *, pipeline: int = 2, micro_batches: int = 4) -> Layout:
    stages = pipeline * chunks
    ends = [8 * (stage + 1) // stages for stage in range(stages)]
    return Layout(
        data_parallel=1,
        pipeline=pipeline,
        micro_batch=3,
        micro_batches=micro_batches,
        placement=placement,  # type: ignore[arg-type]  # one of the names
        cuts=tuple((end - 8 // stages, end - 1) for end in ends),
        split_backward=placement == "zbv",
    )


CASES = {
    "one stage a rank": (layout("vshape"), "1f1b"),
    "two chunks": (layout("interleaved", 2), "interleaved"),
    "four chunks": (layout("interleaved", 4), "interleaved"),
    "a V": (layout("zbv", 2), "zb-v"),
}


def recipe(name: str) -> Recipe:
    found, order = CASES[name]
    return recipe_of_saved_plan(saved_plan(layout=found, order=order, model=profile(sizes=(3,))))


def stages_of_rank(options: Any, rank: int) -> list[int]:
    """The stages that torchtitan builds on a rank, by the module lists and the schedule's name."""
    kind = schedules.get_schedule_class(options["pipeline_parallel_schedule"])
    degree, count = options["pipeline_parallel_degree"], len(options["module_fqns_per_model_part"])
    assert count % degree == 0
    if kind in (schedules.ScheduleZBVZeroBubble, schedules.ScheduleDualPipeV):
        assert count == 2 * degree
        return [rank, count - 1 - rank]
    return [rank + degree * chunk for chunk in range(count // degree)]


def runtime(stages: list[int], num_stages: int, ranks: int, micro_batches: int) -> Any:
    made = stages_of_torch(stages, num_stages=num_stages, num_ranks=ranks)
    return schedules._PipelineScheduleRuntime(made, micro_batches)


@pytest.mark.parametrize("name", CASES)
def test_torchtitan_builds_the_stages_of_the_plan_and_loads_its_orders(name: str, tmp_path: Path) -> None:
    plan = recipe(name)
    options = titan_options(plan, RELEASES["0.2.2"], csv="orders.csv")["parallelism"]
    built = [stages_of_rank(options, rank) for rank in range(plan.devices)]
    assert [
        [stage for stage, own in enumerate(plan.device_of_stage) if own == rank] for rank in range(2)
    ] == built
    path = tmp_path / "orders.csv"
    path.write_text(orders_csv(plan))
    loaded = runtime(built[0], plan.num_stages, plan.devices, plan.micro_batches)
    loaded._load_csv(str(path))
    assert loaded.stage_index_to_group_rank == dict(enumerate(plan.device_of_stage))
    found = [[str(action) for action in loaded.pipeline_order[rank]] for rank in range(plan.devices)]
    assert found == [line.split(",") for line in path.read_text().splitlines()]


def test_every_layer_is_in_one_stage_in_order() -> None:
    for name in CASES:
        modules = [module for stage in modules_of_stages(recipe(name), RELEASES["0.3.0"]) for module in stage]
        assert modules == [
            "tok_embeddings",
            *(f"layers.{index}" for index in range(6)),
            "norm",
            "lm_head",
        ]


def imported(text: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a file as a job imports it."""
    checkpointing = types.ModuleType("torchtitan.distributed.activation_checkpoint")
    checkpointing.FullAC = SimpleNamespace(Config=lambda: "full")  # type: ignore[attr-defined]
    for name in ("torchtitan", "torchtitan.distributed"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, checkpointing.__name__, checkpointing)
    values: dict[str, Any] = {"__file__": "/plans/titan.py"}
    exec(text, values)  # noqa: S102 (as a job imports it)
    return values


BATCHES = {
    "0.2.2": {"local_batch_size": 12, "global_batch_size": 12},
    "0.3.0": {"local_batch_size": 12, "global_batch_size": 12, "disable_cuda_graphs": True},
    "main": {
        "num_tokens_per_microbatch_per_dp_rank": 3,
        "num_tokens_per_train_step": 12,
        "disable_cuda_graphs": True,
    },
}
DEGREES = {
    "data_parallel_replicate_degree": 1,
    "data_parallel_shard_degree": 1,
    "tensor_parallel_degree": 1,
    "context_parallel_degree": 1,
    "pipeline_parallel_degree": 2,
}


@pytest.mark.parametrize("name", RELEASES)
def test_a_file_has_the_options_of_its_release_and_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, release = recipe("two chunks"), RELEASES[name]
    text = titan_file(plan, release, csv="o.csv")
    tables = tomllib.loads(text) if name == "0.2.2" else imported(text, monkeypatch)
    training, parallelism = (
        tables[table if name == "0.2.2" else table.upper()] for table in ("training", "parallelism")
    )
    assert training == BATCHES[name]
    modules = modules_of_stages(plan, release)
    assert modules[-1][-1] == ("output" if name == "0.2.2" else "lm_head")
    size = {"num_pp_microbatches": 4} if name == "main" else {"pipeline_parallel_microbatch_size": 3}
    assert parallelism == DEGREES | size | {
        "pipeline_parallel_schedule": "PipelineScheduleMulti",
        "pipeline_parallel_schedule_csv": "o.csv",
        "module_fqns_per_model_part": modules,
    }


def test_the_release_is_the_one_that_is_asked_for_or_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = recipe("two chunks")

    def written(out: str | None = None, version: str | None = None) -> str:
        path = None if out is None else tmp_path / out
        text = next(iter(export_recipe(plan, "torchtitan", path, version=version).values()))
        return text.split(",")[0].removeprefix("# torchtitan ")

    installed: list[str | None] = [None]
    monkeypatch.setattr(exporting, "_installed", lambda _: installed[0])
    assert [written(), written("t.py"), written("t.toml")] == ["0.3.0", "0.3.0", "0.2.2"]
    assert [written(version=name) for name in RELEASES] == list(RELEASES)
    installed[0] = "0.4.0.dev20261101+cpu"
    assert [written(), written("t.toml")] == ["main", "0.2.2"]
    installed[0] = "0.3.0+cu130"
    assert written() == "0.3.0"
    installed[0] = "0.3.1"
    assert written() == "main"
    installed[0] = "0.2.1"
    assert [written(), written("t.py")] == ["0.2.2", "0.3.0"]
    with pytest.raises(UsageError, match=r"ends with \.toml, and --out ends with \.py"):
        written("t.py", "0.2.2")
    with pytest.raises(UsageError, match=r"--version '0\.1' is not known"):
        written(version="0.1")
    with pytest.raises(UsageError, match="--version is of torchtitan"):
        export_recipe(plan, "torch", version="main")


def test_replicas_are_written_where_a_release_trains_them() -> None:
    plan = replace(recipe("one stage a rank"), data_parallel=2)
    options = titan_options(plan, RELEASES["0.3.0"], csv="o.csv")
    assert (
        options["parallelism"].items()
        >= {
            "data_parallel_replicate_degree": 2,
            "data_parallel_shard_degree": 1,
        }.items()
    )
    assert options["training"]["global_batch_size"] == 24
    assert titan_options(plan, RELEASES["main"], csv="")["training"]["num_tokens_per_train_step"] == 24
    with pytest.raises(ScheduleError, match=r"2 replicas of a pipeline, and models of torchtitan 0\.2\.2"):
        titan_options(plan, RELEASES["0.2.2"], csv="o.csv")


def test_one_rank_accumulates_gradients_instead_of_a_pipeline(tmp_path: Path) -> None:
    found = Layout(data_parallel=2, pipeline=1, micro_batch=1, micro_batches=4, cuts=((0, 7),))
    plan = recipe_of_saved_plan(saved_plan(layout=found, order="gpipe"))
    options = titan_options(plan, RELEASES["0.2.2"], csv="o.csv")
    assert options["training"] == {"local_batch_size": 1, "global_batch_size": 8}
    assert "pipeline_parallel_schedule_csv" not in options["parallelism"]
    assert list(export_recipe(plan, "torchtitan", tmp_path / "t.py")) == [str(tmp_path / "t.py")]


@dataclasses.dataclass
class Training:
    max_context_length: int = 64
    num_tokens_per_microbatch_per_dp_rank: int = 1
    num_tokens_per_train_step: int = -1
    disable_cuda_graphs: bool = False


@dataclasses.dataclass
class Configuration:
    """What a file changes of a job."""

    model_spec: Any
    training: Any
    parallelism: Any
    activation_checkpoint: Any = "selective"


@dataclasses.dataclass
class Spec:
    pipelining_fn: Any


def planned(plan: Recipe, monkeypatch: pytest.MonkeyPatch, pipelining: Any = None) -> Any:
    """A configuration after main's file, in which everything is replaced that may be."""
    values = imported(titan_file(plan, RELEASES["main"], csv="o.csv"), monkeypatch)
    options = dataclasses.make_dataclass("Parallelism", [(name, Any, None) for name in values["PARALLELISM"]])
    return values["planned"](Configuration(Spec(pipelining), Training(), options()))


def test_main_counts_tokens_by_the_length_of_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(recipe("two chunks"), monkeypatch)
    assert found.training == Training(64, 3 * 64, 12 * 64, disable_cuda_graphs=True)
    assert found.parallelism.num_pp_microbatches == 4
    assert found.activation_checkpoint is None


class Model(torch.nn.Module):
    """Modules as torchtitan's language models have them."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.tok_embeddings, self.norm, self.lm_head = (torch.nn.Linear(1, 1) for _ in range(3))
        self.rope = torch.nn.Identity()
        self.layers = torch.nn.ModuleDict({str(index): torch.nn.Linear(1, 1) for index in range(blocks)})


def test_a_module_that_no_stage_has_stops_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    split = planned(
        recipe("one stage a rank"), monkeypatch, lambda model, **_: model
    ).model_spec.pipelining_fn
    model = Model()
    assert split(model) is model
    with pytest.raises(ValueError, match=r"no stage has the modules \['layers.6'\]"):
        split(Model(7))
    with pytest.raises(ValueError, match=r"the model has no \['layers.5'\]"):
        split(Model(5))
    model.vision_encoder = torch.nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"no stage has the modules \['vision_encoder'\]"):
        split(model)


def test_stages_recompute_as_the_plan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recipe("a V")
    every = replace(plan, recompute=(True,) * 4)
    assert planned(every, monkeypatch).activation_checkpoint == "full"
    assert titan_options(every, RELEASES["0.2.2"], csv="")["activation_checkpoint"] == {"mode": "full"}
    some = replace(plan, recompute=(True, False, False, False))
    with pytest.raises(ScheduleError, match=r"recomputes stages 0 of 4, and torchtitan 0\.2\.2 recomputes"):
        titan_file(some, RELEASES["0.2.2"], csv="o.csv")

    def pipelining(model: Any, *, parallelize_fn: Any, parallel_dims: Any) -> list[Any]:
        return [parallelize_fn(part, ac_config="theirs", training=1) for part in ("first", "second")]

    split = planned(some, monkeypatch, pipelining).model_spec.pipelining_fn
    for rank, expected in ((0, ["full", None]), (1, [None, None])):
        mesh = SimpleNamespace(get_local_rank=lambda rank=rank: rank)
        found = split(
            Model(),
            parallelize_fn=lambda part, *, ac_config, training: ac_config,
            parallel_dims=SimpleNamespace(get_mesh=lambda name, mesh=mesh: {"pp": mesh}[name]),
        )
        assert found == expected


def test_the_name_of_the_runtime_is_none_that_torch_knows() -> None:
    """What an earlier recipe named: torchtitan asks torch for the class before it looks at the CSV."""
    with pytest.raises(ValueError, match="Unknown schedule name"):
        schedules.get_schedule_class("_PipelineScheduleRuntime")


def test_names_of_modules_are_kept_and_nothing_ends_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = recipe("one stage a rank")
    names = ("tok_embeddings", *(f"layers.{index}" for index in range(6)), 'out"put\n')
    named = Recipe(
        **{**{each: getattr(plan, each) for each in Recipe.__slots__}, "layers": names, "model": '"""\n#'}
    )
    kept = modules_of_stages(named, RELEASES["main"], keep_names=True)
    assert kept[1][-1] == 'out"put\n'
    text = titan_file(named, RELEASES["main"], csv="o.csv", keep_names=True)
    values = imported(text, monkeypatch)
    assert values["PARALLELISM"]["module_fqns_per_model_part"] == kept
    assert (
        tomllib.loads(titan_file(named, RELEASES["0.2.2"], csv="o.csv", keep_names=True))["parallelism"][
            "pipeline_parallel_degree"
        ]
        == 2
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [("block1", "row 'block1' stands twice among the rows"), ("a.b.c", "row 'a.b.c' is nested deeper than")],
)
def test_rows_that_name_no_one_module_cannot_be_kept(row: str, message: str) -> None:
    plan = recipe("one stage a rank")
    layers = (*plan.layers[:4], row, *plan.layers[5:])
    assert "block1" in plan.layers[:4]
    with pytest.raises(ScheduleError, match=message):
        modules_of_stages(replace(plan, layers=layers), RELEASES["main"], keep_names=True)


def test_a_plan_without_a_micro_batch_has_one_of_one_sample() -> None:
    text = titan_file(replace(recipe("one stage a rank"), micro_batch=None), RELEASES["0.2.2"], csv="o.csv")
    assert tomllib.loads(text)["parallelism"]["pipeline_parallel_microbatch_size"] == 1


def test_other_placements_are_refused() -> None:
    found = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=3,
        micro_batches=4,
        placement="custom",
        stage_devices=(1, 0),
        cuts=((0, 3), (4, 7)),
    )
    plan = recipe_of_saved_plan(saved_plan(layout=found, order="gpipe", model=profile(sizes=(3,))))
    with pytest.raises(ScheduleError, match="a loop over the ranks and a V"):
        titan_options(plan, RELEASES["0.2.2"], csv="o.csv")


def test_dualpipe_v_of_torch_is_read_and_written_back() -> None:
    made = stages_of_torch((0, 3), num_stages=4, num_ranks=2)
    order = schedules.ScheduleDualPipeV(made, 6).pipeline_order
    text = "".join(
        ",".join("" if each is None else str(each) for each in order[rank]) + "\n" for rank in range(2)
    )
    assert "OVERLAP_F_B" in text
    cells = cells_from_csv(text)
    kept = [[str(each) for each in order[rank] if each is not None] for rank in range(2)]
    assert [line.split(",") for line in cells_to_csv(cells).splitlines()] == kept
    parsed = [[str(schedules._Action.from_str(cell)) for cell in row] for row in kept]
    assert parsed == kept


def test_options_are_json_too() -> None:
    json.dumps(dict(titan_options(recipe("a V"), RELEASES["main"], csv="o.csv")))


def test_rows_of_one_stage_may_be_one_module_but_for_norms() -> None:
    """Tables of words and positions are one embedding; of two norms torchtitan has one."""

    def modules(*names: str) -> list[list[str]]:
        plain = profile(blocks=len(names) - 2)
        model = msgspec.structs.replace(plain, layers=tuple(map(Layer, names)))
        recipe = recipe_of_saved_plan(saved_plan(model=model))
        return tomllib.loads(titan_file(recipe, RELEASES["0.2.2"], csv="o.csv"))["parallelism"][
            "module_fqns_per_model_part"
        ]

    first, last = modules("wte", "wpe", "h.0", "h.1", "h.2", "h.3", "norm", "head")
    assert first == ["tok_embeddings", "layers.0", "layers.1"]
    assert last == ["layers.2", "layers.3", "norm", "output"]
    with pytest.raises(ScheduleError, match="rows 'norm' in stage 1 and 'final_norm' in stage 1"):
        modules("wte", "h.0", "h.1", "h.2", "h.3", "norm", "final_norm", "head")


def test_a_path_that_is_no_text_is_refused_for_toml() -> None:
    for letter in map(chr, (0xD800, 0xDFFF)):
        with pytest.raises(ScheduleError, match="is no text that TOML can hold"):
            titan_file(recipe("one stage a rank"), RELEASES["0.2.2"], csv=f"{letter}.csv")

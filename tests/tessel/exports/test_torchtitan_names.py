"""What is written for torchtitan are options and modules of its release.

The releases themselves, which `make test` puts beside its environment, parse the files and split their debug
model by them, one process for every rank of a group that sends nothing. Their names lie beside this test for
main, which is no release, and for where they are not installed.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layer_plans import profile, saved_plan

from benchmarks.frameworks.__main__ import TITANS, compare_names
from benchmarks.frameworks.plans import plans
from tessel.errors import ScheduleError
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.torchtitan import RELEASES, modules_of_stages, titan_options
from tessel.jobs.exporting import export_recipe
from tessel.planning.layout import Layout

FILE = Path(__file__).with_name("torchtitan_names.json")
NAMES: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text())


def recipes() -> list[Recipe]:
    """A V, a chain with experts and state divided, and one rank with replicas."""
    cuts = ((0, 1), (2, 3), (4, 5), (6, 7))
    common = {"data_parallel": 1, "micro_batch": 1, "micro_batches": 4}
    v = Layout(**common, pipeline=2, placement="zbv", cuts=cuts, split_backward=True)
    one = Layout(**common | {"data_parallel": 2}, pipeline=1, cuts=((0, 7),))
    chain = recipe_of_saved_plan(saved_plan())
    return [
        recipe_of_saved_plan(saved_plan(layout=v, order="zb-v", model=profile(sizes=(1,)))),
        replace(chain, data_parallel=2, sharding="optimizer", context_parallel=2, tensor_parallel=2),
        replace(chain, data_parallel=2, sharding="optimizer", expert_parallel=2),
        recipe_of_saved_plan(saved_plan(layout=one, order="gpipe")),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_options_and_modules_are_those_of_the_release(name: str) -> None:
    for recipe in recipes():
        options = titan_options(recipe, RELEASES[name], csv="orders.csv")
        for table in ("training", "parallelism"):
            assert options[table].keys() - set(NAMES[name][table]) == set()
    stages = modules_of_stages(recipes()[0], RELEASES[name])
    written = dict.fromkeys(module.partition(".")[0] for stage in stages for module in stage)
    assert list(written) == NAMES[name]["modules"]


def asked_of_each_release(test: Any) -> Any:
    for mark in (
        pytest.mark.torch,
        pytest.mark.filterwarnings("ignore:Parallelize plan key"),  # of modules that other stages have
        pytest.mark.parametrize(("job", "name"), [(name, name) for name in TITANS], indirect=["job"]),
    ):
        test = mark(test)
    return test


@pytest.fixture
def job(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module that asks a release, which is imported for this test alone."""
    pytest.importorskip("torch")
    folder = Path(sys.prefix) / f"torchtitan-{request.param}"
    if not folder.exists():
        pytest.skip(
            f"torchtitan {request.param} is not in {folder.name} beside Python, where `make test` puts it"
        )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("torch._utils._get_available_device_type", lambda: "cpu")
    before = set(sys.modules)
    job = importlib.import_module("benchmarks.frameworks.jobs.torchtitan_job")
    job.import_models()
    yield job
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {path.name for path in folder.iterdir()}:
            del sys.modules[name]


@contextmanager
def one_of(rank: int, world: int) -> Iterator[None]:
    """Be a rank of a group that sends nothing."""
    dist = importlib.import_module("torch.distributed")
    fake = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=rank, world_size=world, store=fake.FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def modules_of(part: Any) -> dict[str, None]:
    """The modules with weights, layers one by one, in order."""
    names = [name.split(".") for name, _ in part.named_parameters()]
    return dict.fromkeys(".".join(name[: 2 if name[0] == "layers" else 1]) for name in names)


def assert_split(job: Any, recipe: Recipe, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has the stages of the plan, each stage its modules, and all have the whole model."""
    path = folder / f"titan{RELEASES[name].suffix}"
    folder.mkdir()
    export_recipe(recipe, "torchtitan", path, version=name)
    monkeypatch.chdir(folder)  # where TOML's path of the orders begins
    beside = recipe.processes // recipe.devices
    num_weights = 0
    for rank in range(recipe.devices):
        with one_of(rank * beside, recipe.processes):
            asked = (job.load_toml if path.suffix == ".toml" else job.load_python)(path, recipe.processes)
            schedule, parts, *_ = asked.split()
            stages = [stage for stage, own in enumerate(recipe.device_of_stage) if own == rank]
            single = [schedule._stage] if hasattr(schedule, "_stage") else schedule._stages
            assert [stage.stage_index for stage in single] == stages
            for stage, part in zip(stages, parts, strict=True):
                assert [*modules_of(part)] == modules_of_stages(recipe, RELEASES[name])[stage]
                num_weights += sum(each.numel() for each in part.parameters())
            assert asked.micro_batches == recipe.micro_batches
            assert compare_names(asked.names, name) == "exact"
    assert num_weights == sum(each.numel() for each in asked.model.parameters())


@asked_of_each_release
def test_torchtitan_itself_splits_its_model_by_the_file(
    job: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_split(job, plans()["zero bubble, V"], name, tmp_path / "v", monkeypatch)
    uneven = replace(plans()["1F1B"], cuts=((0, 5), (6, 7)), data_parallel=2, sharding="optimizer")
    assert_split(job, replace(uneven, tensor_parallel=2), name, tmp_path / "degrees", monkeypatch)


@pytest.mark.slow
@asked_of_each_release
def test_torchtitan_itself_splits_its_model_by_every_kind_of_plan(
    job: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = set()
    for number, (plan, recipe) in enumerate(plans().items()):
        try:
            assert_split(job, recipe, name, tmp_path / str(number), monkeypatch)
        except ScheduleError:
            refused.add(plan)
    assert refused <= {"recomputing the first stage", "two replicas", "both ways"}

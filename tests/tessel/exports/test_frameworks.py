"""Frameworks train what is exported as one process does: torch, and what `make frameworks` has installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

from layer_plans import profile, saved_plan

from benchmarks.frameworks.__main__ import TOLERANCE, frameworks, outcomes
from benchmarks.frameworks.plans import plans
from benchmarks.frameworks.ranks import Trained, train
from tessel.engine.actions import actions_from_csv, actions_of, schedule_of_actions
from tessel.exports.megatron_plan import layout_of_recipe, megatron_arguments, orders_of_megatron
from tessel.exports.recipe import Recipe, recipe_of_schedule
from tessel.exports.torchtitan import orders_csv
from tessel.handwritten.chimera import CHIMERA
from tessel.jobs.exporting import export_recipe
from tessel.planning.layout import Layout
from tessel.shapes import xshape

pytestmark = pytest.mark.torch

INSTALLED = Path(__file__).parents[3] / "out" / "frameworks"
PYTHON = INSTALLED / "bin" / "python"
RELEASES = {release.name: release for release in frameworks(INSTALLED)}
OTHERS = [name for name in RELEASES if not name.startswith("torch ")]
PLANS = plans()

ORDERS = {
    "micro-batches out of order": (
        (0, 1),
        "0F0,0F2,0F1,0B2,0B0,0F3,0B3,0B1\n1F2,1B2,1F0,1B0,1F3,1B3,1F1,1B1\n",
    ),
    "fewer micro-batches than ranks": ((0, 1), "0F0,0B0\n1F0,1B0\n"),
    "ranks the other way round": ((1, 0), "1F0,1B0,1F1,1B1\n0F0,0F1,0B0,0B1\n"),
    "stages side by side and alone": (
        (0, 0, 1, 0, 1),
        "0F1,1F1,0F0,1F0,3F1,3F0,3B1,3B0,1B1,0B1,1B0,0B0\n2F1,2F0,4F1,4B1,4F0,4B0,2B1,2B0\n",
    ),
    "ranks that cross, tied-0-3": (
        (1, 0, 1, 0),
        "1F0,1F1,3F0,3B0,1B0,3F1,3B1,1B1\n0F0,0F1,2F0,2F1,2B0,0B0,2B1,0B1\n",
    ),
    "a V with halves, tied-0-3": (
        (0, 1, 1, 0),
        "0F0,0F1,3F0,3I0,3W0,3F1,3I1,0I0,0W0,3W1,0I1,0W1\n1F0,2F0,1F1,2F1,2I0,1I0,2W0,2I1,1I1,1W0,2W1,1W1\n",
    ),
    "a chain, tied-0-1": ((0, 1), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
}


def recipe_of(devices: tuple[int, ...], order: str) -> Recipe:
    """Stages on these devices in this order, numbered as any plan."""
    layout = Layout(
        data_parallel=1,
        pipeline=2,
        micro_batch=1,
        micro_batches=1,
        placement="custom",
        stage_devices=devices,
        cuts=tuple((stage, stage) for stage in range(len(devices))),
        split_backward="I" in order,
    )
    made = saved_plan(layout=layout, order="gpipe", model=profile(blocks=len(devices) - 2))
    return recipe_of_schedule(schedule_of_actions(made.schedule.placement, actions_from_csv(order)))


def both_ways() -> dict[str, Recipe]:
    """Pipelines in two directions: by rule, with halves of backwards, and each with an order of its own."""
    halves = xshape(2, split_backward=True)
    text = "0F1,0F0,3F0,3I0,0I1,3W0,3F1,3I1,3W1,0I0,0W0,0W1\n"
    text += "2F0,2F1,1F1,1I1,1F0,2I0,1W1,1I0,1W0,2I1,2W1,2W0\n"
    joint = "0F0,0F1,3F1,3B1,3F0,0B1,3B0,0B0\n2F1,1F1,1B1,2F0,2B1,1F0,2B0,1B0\n"
    return {
        "chimera": recipe_of_schedule(CHIMERA.build(xshape(2), micro_batches=3)),
        "halves": recipe_of_schedule(schedule_of_actions(halves, actions_from_csv(text))),
        "out of order": recipe_of_schedule(schedule_of_actions(xshape(2), actions_from_csv(joint))),
    }


def assert_exact(found: Trained) -> None:
    assert found.error == ""
    assert found.difference is not None
    assert found.difference <= TOLERANCE < found.moved


def test_torch_runs_any_order_on_any_map_of_stages(tmp_path: Path) -> None:
    for number, (name, (devices, order)) in enumerate(ORDERS.items()):
        tied = "".join(name.partition("tied")[1:])
        (tmp_path / f"{number}{tied}.csv").write_text(orders_csv(recipe_of(devices, order)))
    for name, recipe in both_ways().items():
        export_recipe(recipe, "torch", tmp_path / f"{name}.csv")
    for found in train("torch_job", sorted(tmp_path.glob("*.csv")), 2):
        assert_exact(found)


def python_of(name: str) -> str:
    """The interpreter that has a framework: this one has DeepSpeed, as the extra `test` does on Linux."""
    if name.startswith("DeepSpeed") and find_spec("deepspeed") is not None:
        return sys.executable
    if not PYTHON.exists():
        pytest.skip("`make frameworks` has installed no frameworks")
    return str(PYTHON)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_frameworks_train_each_kind_of_plan_or_are_refused_it(name: str) -> None:
    found = outcomes(RELEASES[name], PLANS, python_of(name))
    assert {plan: text for plan, text in found.items() if not text.startswith(("exact", "refused"))} == {}
    assert found["1F1B"].startswith("exact")


@pytest.mark.slow
def test_megatron_runs_the_orders_that_its_export_simulates(tmp_path: Path) -> None:
    plans = [PLANS[name] for name in ("1F1B", "interleaved")]
    files = [tmp_path / f"{number}.txt" for number in range(len(plans))]
    for file, plan in zip(files, plans, strict=True):
        file.write_text(megatron_arguments(plan))
    for found, plan in zip(train("megatron_job", files, 2, python=python_of("Megatron")), plans, strict=True):
        assert_exact(found)
        expected = actions_of(orders_of_megatron(plan, layout_of_recipe(plan))[0].schedule)
        assert found.orders == tuple(tuple(map(str, own)) for own in expected)


@pytest.mark.parametrize("name", OTHERS)
def test_frameworks_take_the_file_of_a_plan(name: str) -> None:
    """It is parsed, its modules are those of the model, and the first steps end as in one process."""
    plans = {plan: PLANS[plan] for plan in ("recomputing all",)}
    found = outcomes(RELEASES[name], plans, python_of(name))
    assert all(text.startswith("exact") for text in found.values()), found

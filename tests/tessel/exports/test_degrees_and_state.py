"""How exports say degrees of context and experts and what replicas divide, and what they refuse by name."""

from __future__ import annotations

import ast
import shlex
from dataclasses import replace
from typing import Any

import pytest
from layer_plans import saved_plan

from tessel.errors import ScheduleError
from tessel.exports.deepspeed import deepspeed_module
from tessel.exports.markdown import recipe_markdown
from tessel.exports.megatron_plan import megatron_arguments
from tessel.exports.recipe import Recipe, recipe_of_saved_plan
from tessel.exports.torchtitan import RELEASES, titan_options
from tessel.planning.sharding import SHARDINGS


def recipe(**changes: Any) -> Recipe:
    return replace(recipe_of_saved_plan(saved_plan(data_parallel=4)), **changes)


def alone(**changes: Any) -> Recipe:
    """A recipe of one rank, as torchtitan trains without a pipeline."""
    one = recipe(**changes)
    return replace(one, actions=one.actions[:1], device_of_stage=(0,), cuts=((0, 7),))


def test_as_many_processes_are_started_as_there_are_devices() -> None:
    plan = recipe(context_parallel=2, tensor_parallel=3)
    assert plan.processes == plan.devices * 4 * 2 * 3
    assert f"--nproc-per-node {plan.processes} pretrain_gpt.py" in megatron_arguments(plan)


def megatron(plan: Recipe) -> list[str]:
    return [
        word
        for line in megatron_arguments(plan).splitlines()
        if line.startswith("--")
        for word in shlex.split(line)
    ]


def parallelism(plan: Recipe, version: str = "0.3.0") -> dict[str, object]:
    return dict(titan_options(plan, RELEASES[version], csv="o.csv")["parallelism"])


def test_megatron_is_told_every_degree_and_its_distributed_optimizer() -> None:
    words = megatron(recipe(context_parallel=2, expert_parallel=8, sharding="optimizer"))
    assert words[words.index("--context-parallel-size") + 1] == "2"
    assert words[words.index("--expert-model-parallel-size") + 1] == "8"
    assert "--use-distributed-optimizer" in words
    plain = megatron(recipe())
    assert not {"--context-parallel-size", "--expert-model-parallel-size"} & set(plain)
    assert "--use-distributed-optimizer" not in plain
    assert "--offload-optimizer-states" in megatron(recipe(sharding="optimizer", offload="optimizer"))


@pytest.mark.parametrize("sharding", SHARDINGS[2:])
def test_what_a_framework_does_not_divide_is_refused_by_name(sharding: str) -> None:
    plan = recipe(sharding=sharding)
    wanted = rf"divides {sharding} over replicas, and \w+ divides optimizer .* plan with --sharding optimizer"
    for export in (megatron_arguments, deepspeed_module, parallelism):
        with pytest.raises(ScheduleError, match=wanted):
            export(plan)
    for export in (deepspeed_module, parallelism):
        with pytest.raises(ScheduleError, match="plan with --offload none"):
            export(recipe(sharding="optimizer", offload="optimizer"))
    with pytest.raises(ScheduleError, match="plan with --offload none"):
        megatron_arguments(recipe(offload="optimizer"))  # Megatron offloads what its distributed one holds
    for export in (megatron_arguments, deepspeed_module, parallelism):
        for offload in ("activations", "optimizer+activations"):
            with pytest.raises(ScheduleError, match=r"keeps all activations .* \w+ sends fewer"):
                export(recipe(sharding="optimizer", offload=offload))


def test_deepspeed_is_told_its_stage_and_refuses_other_degrees() -> None:
    text = deepspeed_module(recipe(sharding="optimizer"))
    assert '"zero_optimization": {"stage": 1}' in (ast.get_docstring(ast.parse(text)) or "")
    assert "zero_optimization" not in deepspeed_module(recipe())
    with pytest.raises(ScheduleError, match="context-parallel degree 2 and expert-parallel degree 1"):
        deepspeed_module(recipe(context_parallel=2))
    with pytest.raises(ScheduleError, match="expert-parallel degree 4, and DeepSpeed"):
        deepspeed_module(recipe(expert_parallel=4))


def test_torchtitan_shards_over_the_replicas() -> None:
    whole, divided = parallelism(recipe()), parallelism(recipe(sharding="optimizer", context_parallel=2))
    assert (whole["data_parallel_replicate_degree"], whole["data_parallel_shard_degree"]) == (4, 1)
    assert "fsdp_reshard_after_forward" not in whole
    assert (divided["data_parallel_replicate_degree"], divided["data_parallel_shard_degree"]) == (1, 4)
    assert divided["fsdp_reshard_after_forward"] == "never"
    assert divided["context_parallel_degree"] == 2
    for sharding, reshards in (("optimizer", "never"), ("gradients", "never"), ("parameters", "always")):
        assert parallelism(alone(sharding=sharding))["fsdp_reshard_after_forward"] == reshards
    # A release that does not train whole replicas of a pipeline trains sharded ones.
    assert parallelism(recipe(sharding="optimizer"), "0.2.2")["data_parallel_shard_degree"] == 4


def test_torchtitan_divides_experts_as_far_as_its_mesh_goes() -> None:
    sharded = recipe(sharding="optimizer", context_parallel=2, expert_parallel=4)
    assert parallelism(sharded)["expert_parallel_degree"] == 4
    split = replace(sharded, tensor_parallel=8)
    assert parallelism(split, "0.2.2")["expert_tensor_parallel_degree"] == 8
    with pytest.raises(ScheduleError, match=r"over 8 tensor-parallel devices .* --version 0\.2\.2"):
        parallelism(split)
    for changes in ({"sharding": "none"}, {"expert_parallel": 16}, {"context_parallel": 8}):
        with pytest.raises(ScheduleError, match="takes multiples of its context-parallel degree"):
            parallelism(replace(sharded, **changes))


def test_a_report_has_rows_for_what_a_plan_has() -> None:
    text = recipe_markdown(recipe(context_parallel=2, expert_parallel=4, sharding="optimizer"))
    for row in ("context parallel", "expert parallel", "divided over replicas"):
        assert row in text
        assert row not in recipe_markdown(recipe())

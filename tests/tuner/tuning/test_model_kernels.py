"""A model's kernels are those that its candidates are lowered to; layers that are alike share one."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_spaces import cpu

from benchmarks.trials.in_process import builder_and_runner
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target, tuning_tasks
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.trial_budget import deal_trials
from tuner.backends.tvm.native import fuse_function
from tuner.frontend import load_model
from tuner.graph import DataflowGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.outline import extract_function
from tuner.partition.find_partition import find_candidates
from tuner.tuning.model_kernels import find_model_kernels
from tuner.tuning.partition_model import prepared_module

pytestmark = pytest.mark.tvm


def test_layers_that_are_alike_are_one_kernel_with_a_count() -> None:
    found = find_model_kernels(prepared_module(load_model("gpt2:tiny")), cpu())
    tuned_for = tuning_target(cpu())
    tiled = [each for each in found if candidates_of(each.module, tuned_for).spaces]
    assert sorted(each.count for each in tiled) == [1, 4, 4, 4, 4, 4, 4], "four layers, and one head"


def test_candidates_of_the_search_find_what_was_tuned(tmp_path: Path) -> None:
    module = prepared_module(load_model("mlp:tiny"))
    backend = MetaSchedule(trials=1, database=str(tmp_path), proposer="random")
    kernels = find_model_kernels(module, cpu())
    builder, runner = builder_and_runner()
    deal_trials(kernels, 4 * len(kernels), backend, cpu(), builder=builder, runner=runner)
    reader = MetaSchedule(database=str(backend.folder(cpu())))
    database = reader.open_database(cpu())
    graph = DataflowGraph.from_function(module)
    candidates = find_candidates(graph, gather_specs([reader], cpu())).candidates
    found = {
        index
        for each in candidates
        if each.backend == reader.name
        for task in tuning_tasks(fuse_function(extract_function(graph, each.sub_graph, each.backend)))
        if database.query_tuning_record(task, tuning_target(cpu()), "main") is not None
        for index in each.sub_graph.inside
    }
    products = {index for index, node in enumerate(graph.nodes) if "matmul" in node.operator}
    assert products
    assert products <= found

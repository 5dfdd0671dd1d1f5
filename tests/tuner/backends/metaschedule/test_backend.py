"""Tuning is off unless asked for, keeps what it found, and never tunes a kernel twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from numerics import relative_error
from tvm import relax

from cost_model.language.model_files import Manifest, save_network
from cost_model.language.network import Network, NetworkShape, initial_weights
from tests.harness.run_module import run_module
from tests.samples.partition_samples import part_of, partition_module
from tuner.backends.metaschedule import backend as metaschedule_backend
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.proposers import DEFAULT_PROPOSER
from tuner.backends.protocol import TuningBackend
from tuner.backends.registry import make_backend
from tuner.graph.relax_types import IRModule
from tuner.language.kernels import kernel_module, parse_kernel
from tuner.lowering.lower import build_module, build_reference, lower_module
from tuner.measuring.worker.inputs import input_specs, random_inputs
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def test_no_trials_is_off(target: Target) -> None:
    reason = MetaSchedule().unavailable_reason(target)
    assert reason is not None
    assert "--trials" in reason
    assert MetaSchedule(trials=1).unavailable_reason(target) is None


def test_a_folder_with_any_name_survives_its_reference(tmp_path: Path) -> None:
    odd = str(tmp_path / "a&b=c d")
    again = make_backend(MetaSchedule(trials=3, database=odd).reference)
    assert isinstance(again, MetaSchedule)
    assert (again.trials, again.database) == (3, odd)


def test_trials_but_not_the_folder_change_its_results(tmp_path: Path) -> None:
    assert MetaSchedule(trials=3).settings == MetaSchedule(trials=3, database=str(tmp_path)).settings
    assert MetaSchedule(trials=3).settings != MetaSchedule(trials=4).settings


def test_the_default_proposer_gives_way_where_it_knows_nothing(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = str(tmp_path / "records.db")
    gpu = Target(name="cuda", kind="cuda", tvm_json=target.tvm_json, num_threads=1)
    default = MetaSchedule(trials=3, records=records)
    assert default.proposer_for(target) == DEFAULT_PROPOSER
    assert default._strategy(small_product(), target) is not None
    assert default.proposer_for(gpu) == ""
    again = make_backend(default.reference)
    assert isinstance(again, MetaSchedule)
    assert (again.proposer_for(gpu), again.settings) == ("", default.settings), "it is a default still"
    assert MetaSchedule(trials=3).proposer_for(target) == "", "without records there is nothing to learn from"
    assert MetaSchedule(trials=3, records=records, proposer="random").proposer_for(gpu) == "random"
    # If the language model is the default: it proposes where it was trained for the target.
    monkeypatch.setattr(metaschedule_backend, "DEFAULT_PROPOSER", "language")
    untrained = MetaSchedule(trials=3, records=records, language_model=str(tmp_path / "none"))
    assert (untrained.proposer_for(target), untrained.unavailable_reason(target)) == ("draft", None)
    shape = NetworkShape(layers=1, width=16, heads=2)
    manifest = Manifest(shape=shape, target=target.text, device_model="any", num_threads=1, seed=0)
    save_network(Network(shape, initial_weights(shape, 0)), manifest, tmp_path / "model")
    trained = MetaSchedule(trials=3, records=records, language_model=str(tmp_path / "model"))
    assert trained.proposer_for(target) == "language"
    assert trained._strategy(small_product(), target) is not None


def small_product() -> IRModule:
    return kernel_module(parse_kernel("dense:4x8x8"))


def test_it_asks_for_time_to_tune() -> None:
    few, many = MetaSchedule(trials=1), MetaSchedule(trials=100)
    assert isinstance(few, TuningBackend)
    assert few.tuning_timeout_s < many.tuning_timeout_s


def test_elementwise_functions_are_not_tuned(target: Target) -> None:
    relu = part_of(partition_module("metaschedule", [(8, 8)], lambda x: op.nn.relu(x)))
    product = part_of(partition_module("metaschedule", [(8, 8), (8, 8)], lambda x, w: op.matmul(x, w)))
    assert MetaSchedule(trials=1).refusal(relu, target) is not None
    assert MetaSchedule(trials=1).refusal(product, target) is None


def test_a_database_alone_is_read_and_never_added_to(tmp_path: Path, target: Target) -> None:
    missing = MetaSchedule(database=str(tmp_path / "none")).unavailable_reason(target)
    assert missing is not None
    assert "there is no database" in missing
    (tmp_path / "database_workload.json").touch()
    records = tmp_path / "database_tuning_record.json"
    records.touch()
    backend = MetaSchedule(database=str(tmp_path))
    assert backend.unavailable_reason(target) is None
    module = partition_module("metaschedule", [(8, 8), (8, 8)], lambda x, w: op.matmul(x, w))
    lowered = lower_module(module, [backend], target)
    assert records.read_text() == ""
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(lowered, target), inputs, target)
    assert relative_error(results, run_module(build_reference(module, target), inputs, target)) < 1e-5


def test_another_database_is_another_setting(tmp_path: Path) -> None:
    backend = MetaSchedule(database=str(tmp_path))
    before = backend.settings
    (tmp_path / "database_tuning_record.json").write_text("[]")
    assert backend.settings != before


@pytest.mark.slow
def test_a_kernel_is_tuned_once_and_computes_what_it_did(tmp_path: Path, target: Target) -> None:
    backend = MetaSchedule(trials=4, database=str(tmp_path))
    module = partition_module(
        "metaschedule", [(32, 32), (32, 64), (64,)], lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, w), b))
    )
    lowered = lower_module(module, [backend], target)
    (records,) = tmp_path.rglob("database_tuning_record.json")
    assert len(records.read_text().splitlines()) == 4
    lower_module(module, [backend], target)
    assert len(records.read_text().splitlines()) == 4
    inputs = random_inputs(input_specs(module), seed=0)
    results = run_module(build_module(lowered, target), inputs, target)
    assert relative_error(results, run_module(build_reference(module, target), inputs, target)) < 1e-5
    reused = MetaSchedule(trials=4, database=str(records.parent))
    lower_module(module, [reused], target)
    assert len(records.read_text().splitlines()) == 4, "a folder that TVM wrote is used as it is"

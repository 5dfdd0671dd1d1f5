"""A model's own kernels are found before anything is priced, tuned with their rule beside, and then built."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cost_model.language.network import Network, NetworkShape, initial_weights
from records import RecordStore, open_store
from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.nhwc import Nhwc
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.backends.cpu.tuned.families import kernel_of
from tuner.backends.metaschedule.candidates import Candidate
from tuner.backends.metaschedule.proposers import Knowledge, Proposer, new_proposer
from tuner.backends.tvm.native import TvmNative
from tuner.frontend import load_model
from tuner.graph import DataflowGraph
from tuner.targets.resolution import resolve_target
from tuner.targets.vector_registers import vector_registers
from tuner.tuning import own_kernels
from tuner.tuning.find_own_kernels import OwnKernels, WeightedOwnKernel, find_own_kernels
from tuner.tuning.own_kernels import (
    OwnCandidates,
    OwnTrials,
    chosen_tiles,
    tune_model,
    tune_own_kernels,
)
from tuner.tuning.partition_model import partition_model, prepared_module
from tuner.tuning.session import SessionSettings, start_session

pytestmark = pytest.mark.tvm

CPU = resolve_target("cpu", num_threads=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RecordStore]:
    with open_store(f"sqlite:///{tmp_path}/records.db") as opened:
        yield opened


def kernels_of(name: str) -> OwnKernels:
    graph = DataflowGraph.from_function(prepared_module(load_model(name)))
    return find_own_kernels(graph, (PackedMatmul(), Nhwc(), TvmNative()), CPU)


class SimulatedProcess:
    """Takes no time: the rule takes 10 us, and a candidate the longer the more rows its tile has."""

    calls = 0
    weight_bytes: ClassVar[list[int]] = []

    def __init__(self, target: Any) -> None:
        self.batches: list[int] = []

    def __enter__(self) -> SimulatedProcess:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def time(
        self, kernels: Sequence[Any], *, rounds: int, weight_bytes: int = 0
    ) -> list[tuple[float, ...] | str]:
        SimulatedProcess.calls += 1
        SimulatedProcess.weight_bytes.append(weight_bytes)
        return [(10.0 + index - 5.0 * (index == 1),) * rounds for index in range(len(kernels))]


def test_a_budget_is_kept_and_what_the_records_hold_is_part_of_it(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    kernels = kernels_of("gpt2:tiny").kernels
    told: list[int] = []
    first = tune_own_kernels(kernels, OwnTrials(budget=14), store, CPU, on_batch=told.append)
    assert sum(each.trials for each in first) == 14
    assert told == [4, 8, 12, 14]
    assert [each.trials for each in first] == [4, 4, 4, 2, 0], "those with the most operations first"
    second = tune_own_kernels(kernels, OwnTrials(budget=20), store, CPU)
    assert sum(each.trials for each in second) == 6
    assert sum(each.trials for each in tune_own_kernels(kernels, OwnTrials(budget=20), store, CPU)) == 0


def test_each_kernel_gets_its_trials(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    kernels = kernels_of("mlp:tiny").kernels
    found = tune_own_kernels(kernels, OwnTrials(each=6, proposer="random"), store, CPU)
    assert {each.trials for each in found} == {6}


@pytest.mark.parametrize("proposer", ["draft", "neighbour", "random"])
def test_who_proposes_learns_from_the_rule_and_does_not_propose_it(
    proposer: str, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (kernel, *_) = kernels_of("mlp:tiny").kernels
    rule = OwnCandidates(kernel.kernel, vector_registers(CPU)).rule()
    assert rule is not None
    learnt: list[object] = []
    proposed: list[object] = []
    known: list[object] = []

    def watched(*given: Any, **settings: Any) -> Proposer:
        found = new_proposer(*given, **settings)
        knowledge: Knowledge = given[3]
        known.extend((0, row.tobytes()) for trials in knowledge.trials for row in trials.rows)
        learn, propose = found.learn, found.propose

        def watched_learn(candidates: Sequence[Candidate], latencies_us: Sequence[float]) -> None:
            learnt.extend(each.key for each in candidates)
            learn(candidates, latencies_us)

        def watched_propose(count: int) -> list[Candidate]:
            batch = propose(count)
            proposed.extend(each.key for each in batch)
            return batch

        monkeypatch.setattr(found, "learn", watched_learn)
        monkeypatch.setattr(found, "propose", watched_propose)
        return found

    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    monkeypatch.setattr(own_kernels, "new_proposer", watched)
    tune_own_kernels([kernel], OwnTrials(each=8, proposer=proposer), store, CPU)
    assert learnt == [rule.key, *proposed], "in the order in which they were measured"
    assert rule.key not in known
    tune_own_kernels([kernel], OwnTrials(each=12, proposer=proposer), store, CPU)
    assert rule.key in known, "who goes on knows it from the records"
    assert learnt == [rule.key, *proposed]
    assert rule.key not in proposed
    assert len(set(proposed)) == len(proposed) == 11


def test_candidates_are_cut_for_the_registers_of_the_target() -> None:
    (kernel, *_) = kernels_of("gpt2:tiny").kernels
    narrow, wide = (
        OwnCandidates(kernel.kernel, vector_registers(resolve_target(each, num_threads=1))).spaces[0]
        for each in ("llvm -mcpu=haswell", "llvm -mcpu=skylake-avx512")
    )
    assert narrow.num_candidates < wide.num_candidates
    assert all(wide.row_of(narrow.decisions_of(row)) is not None for row in narrow.rows[::97])


def test_what_was_faster_in_turn_is_chosen(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    kernels = kernels_of("mlp:tiny").kernels
    found = tune_own_kernels(kernels, OwnTrials(each=4), store, CPU)
    tiles = chosen_tiles(store, kernels, CPU)
    assert set(tiles.decisions) == {each.kernel.name for each in kernels}
    assert all((each.rule_us, each.best_us) == (10.0, 6.0) for each in found)
    assert tune_own_kernels(kernels, OwnTrials(each=4), store, CPU)[0].best_us < math.inf


def test_kernels_are_measured_among_the_weights_of_their_network(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = [WeightedOwnKernel(kernel_of("product:128x768x3072", RELU), 12, 1 << 27)]
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    monkeypatch.setattr(SimulatedProcess, "weight_bytes", [])
    tune_own_kernels(large, OwnTrials(each=6), store, CPU)
    assert set(SimulatedProcess.weight_bytes) == {1 << 27}
    assert chosen_tiles(store, large, CPU)
    elsewhere = [replace(large[0], weight_bytes=1 << 22)]
    assert not chosen_tiles(store, elsewhere, CPU), "what is fastest there is not known"
    (found,) = tune_own_kernels(elsewhere, OwnTrials(each=6), store, CPU)
    assert found.trials == 6, "those of the large network are not among them"
    assert chosen_tiles(store, elsewhere, CPU)


def test_a_time_limit_ends_trials(store: RecordStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    found = tune_own_kernels(
        kernels_of("mlp:tiny").kernels, OwnTrials(budget=100, time_limit_s=-1.0), store, CPU
    )
    assert sum(each.trials for each in found) == 0


@pytest.mark.parametrize("proposer", ["draft", "neighbour", "random", "language"])
def test_everybody_proposes_candidates(
    proposer: str, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    kernels = kernels_of("mlp:tiny").kernels[:1]
    (found,) = tune_own_kernels(kernels, OwnTrials(each=40, proposer=proposer), store, CPU)
    assert found.trials == 40


def test_the_language_model_writes_what_is_measured_where_there_is_one(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_kernels, "KernelProcess", SimulatedProcess)
    written: list[int] = []
    write = Network.write

    def counted(network: Network, *arguments: Any, **options: Any) -> Any:
        found = write(network, *arguments, **options)
        written.append(len(found.rows))
        return found

    monkeypatch.setattr(Network, "write", counted)
    shape = NetworkShape(layers=1, width=16, heads=2)
    network = Network(shape, initial_weights(shape, 0))
    kernels = kernels_of("mlp:tiny").kernels[:1]
    (found,) = tune_own_kernels(kernels, OwnTrials(each=12, proposer="language", network=network), store, CPU)
    assert found.trials == 12
    assert sum(written) > 12


def test_a_model_is_built_with_what_was_found_and_stays_right(tmp_path: Path) -> None:
    model = load_model("mlp:tiny")
    records = f"sqlite:///{tmp_path}/records.db"
    with open_store(records) as store:
        untouched = tune_model(model, (PackedMatmul(), TvmNative()), None, store, CPU)
        assert [each.reference for each in untouched.backends] == ["packed_matmul", "tvm"]
        found = tune_model(model, (PackedMatmul(), TvmNative()), OwnTrials(each=6), store, CPU)
        again = tune_model(model, (PackedMatmul(), TvmNative()), None, store, CPU)
    assert found.chosen == again.chosen, "the records alone say what is built"
    assert {each.trials for each in found.kernels} == {6}
    settings = SessionSettings(backend_names=[each.reference for each in found.backends], num_threads=1)
    with start_session("cpu", settings, records_url=records) as session:
        result = partition_model(model, session)
    assert result.max_relative_error is not None
    assert result.max_relative_error < 1e-5

"""A model is trained from records in steps that are not done again, and rounds measure what it writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from draft_samples import CACHES, made_up_latencies
from kernel_spaces import cpu, space_of

pytest.importorskip("torch", reason="needs the extra `language`")

from benchmarks.trials.in_process import builder_and_runner
from cost_model.draft.draft_model import DraftModel, DraftTrials, train_draft_model
from cost_model.language.model_files import Manifest, load_network
from cost_model.language.network import Network, NetworkShape, initial_weights
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule, tuning_target
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.trials import task_name
from tuner.errors import TunerError
from tuner.language.collecting import CollectionPlan, collect_schedules
from tuner.language.expert_rounds import ExpertRounds, train_with_rounds
from tuner.language.machine import Machine
from tuner.language.model_training import (
    DISTILLED,
    TrainingPlace,
    TrainingPlan,
    held_out_tasks,
    train_language_model,
)

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

SHAPE = NetworkShape(layers=1, width=16, heads=2)
PLAN = TrainingPlan(distilled=2, epochs=2, families=("dense", "product"))


def machine() -> Machine:
    return Machine(cpu(), tuning_target(cpu()), environment_of(cpu(), MetaSchedule()))


def manifest() -> Manifest:
    return Manifest(shape=SHAPE, target=cpu().text, device_model="any", num_threads=1, seed=0)


@pytest.fixture(scope="module")
def known() -> tuple[list[DraftTrials], DraftModel]:
    trials = []
    for number, name in enumerate(("dense:16x64x96", "dense:49x48x64", "product:2x8x12x20")):
        kernel = space_of(name)
        (space,) = candidates_of(kernel.module, kernel.tuned_for).spaces
        rows = np.unique(space.sample(30, np.random.default_rng(number)), axis=0)
        trials.append(DraftTrials(task_name(kernel.module), space, rows, made_up_latencies(space, rows)))
    return trials, train_draft_model(trials, caches=CACHES)


def test_steps_leave_files_and_are_not_done_again(
    known: tuple[list[DraftTrials], DraftModel], tmp_path: Path
) -> None:
    trials, model = known
    told: list[tuple[str, int, int]] = []
    place = TrainingPlace(machine(), tmp_path)

    def train() -> tuple[Network, Manifest]:
        return train_language_model(
            Network(SHAPE, initial_weights(SHAPE, 0)),
            manifest(),
            trials,
            model,
            plan=PLAN,
            place=place,
            on_progress=lambda *each: told.append(each),
        )

    first, found = train()
    assert (found.num_distilled, found.num_kernels) == (2, 3)
    assert 3 <= found.num_best < found.num_trials == sum(len(each.rows) for each in trials)
    lines = (tmp_path / DISTILLED).read_bytes()
    assert len(lines.splitlines()) == 2
    assert any(text.startswith("distilling") for text, _, _ in told)
    # What an interruption cut off is made again, and the rest is not.
    (tmp_path / DISTILLED).write_bytes(lines[:-20])
    second, again = train()
    assert (tmp_path / DISTILLED).read_bytes().startswith(lines[:-20])
    assert (tmp_path / DISTILLED).read_bytes().count(b"\n") == 2
    assert again.num_distilled == 2
    third, _ = load_network(tmp_path, cpu().text, 1)
    assert all(np.array_equal(third.weights[name], second.weights[name]) for name in SHAPE.tensors)
    assert not np.array_equal(first.weights["role"], initial_weights(SHAPE, 0)["role"])


def test_kernels_held_out_are_neither_distilled_nor_learnt(tmp_path: Path) -> None:
    assert held_out_tasks(["dense:16x64x96"]) == {task_name(space_of("dense:16x64x96").module)}
    with pytest.raises(TunerError, match="too few"):
        train_with_rounds(
            Network(SHAPE, initial_weights(SHAPE, 0)),
            manifest(),
            plan=PLAN,
            rounds=None,
            place=TrainingPlace(machine(), tmp_path),
            records_url=str(tmp_path / "records.db"),
            on_progress=lambda *each: None,
        )


@pytest.mark.slow
def test_a_round_measures_what_the_network_writes(tmp_path: Path) -> None:
    url = str(tmp_path / "records.db")
    kernels = [(name, space_of(name).module) for name in ("dense:4x8x12", "dense:6x8x16", "dense:8x12x20")]
    builder, runner = builder_and_runner()
    collect_schedules(
        kernels,
        CollectionPlan(random=18, rounds=0),
        machine=machine(),
        records_url=url,
        builder=builder,
        runner=runner,
        on_progress=lambda *each: None,
    )
    _, found = train_with_rounds(
        Network(SHAPE, initial_weights(SHAPE, 0)),
        manifest(),
        plan=PLAN,
        rounds=ExpertRounds(count=1, kernels=kernels, batch=2, trials=18, builder=builder, runner=runner),
        place=TrainingPlace(machine(), tmp_path / "model", held_out_tasks(["dense:8x12x20"])),
        records_url=url,
        on_progress=lambda *each: None,
    )
    assert (found.rounds, found.num_kernels, found.num_trials) == (1, 2, 40)

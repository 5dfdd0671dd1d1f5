"""From records to a language model on disk: kernels, distilled schedules, training, and rounds of experts.

Every step leaves a file in the model's folder, and what is there is not done again:

- `distilled.jsonl`: a line for each kernel that nobody measured, with the draft model's diverse best.
- `language_model.json` and its weights: the best network so far, from the first epoch on.

A round writes schedules of the kernels that the records know, measures them, and trains again on all trials.
Checked in tests/tuner/language/test_model_training.py and tests/scripts/commands/test_language.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from cost_model.draft.decision_space import DecisionSpace
from cost_model.draft.draft_model import DraftModel, DraftTrials
from cost_model.language.examples import Example, example_of
from cost_model.language.model_files import Manifest, save_network
from cost_model.language.network import Network
from cost_model.language.training_examples import Taught, distil, measured_examples, training_example_of
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.trials import task_name
from tuner.errors import TunerError
from tuner.language.collecting import FAMILIES
from tuner.language.kernels import kernel_module, named_kernels, parse_kernel, random_kernel
from tuner.language.machine import Machine
from tuner.language.training import fit

DISTILLED = "distilled.jsonl"

_HELD_OUT = 8
"""One kernel of so many is held out to choose the weights by, where there are at least twice as many."""

Report: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """How a language model is trained.

    Attributes:
        distilled: kernels that nobody measured, whose schedules the draft model chooses.
        epochs: how often each kernel is seen, each time with another prompt.
        learning_rate: the largest.
        seed: of kernels, weights and prompts.
        families: of kernels that are distilled, and learnt where they were measured.
    """

    distilled: int = 300
    epochs: int = 30
    learning_rate: float = 2e-3
    seed: int = 0
    families: tuple[str, ...] = FAMILIES

    def __post_init__(self) -> None:
        if self.distilled < 0 or self.epochs < 1 or not 0 < self.learning_rate < 1 or not self.families:
            raise ValueError(f"{self} is no plan: at least one epoch and one family, a learning rate below 1")


@dataclass(frozen=True, slots=True)
class TrainingPlace:
    """Whose kernels are learnt, and where the model is written.

    Attributes:
        held_out: kernels, as tasks, that are not learnt.
    """

    machine: Machine
    folder: Path
    held_out: frozenset[str] = frozenset()


class _Distilled(msgspec.Struct, frozen=True):
    """A line of `distilled.jsonl`.

    Attributes:
        model: digest of the trials that the draft model learnt from.
        spaces: for each decision space, its good candidates with their weights, and worse ones.
    """

    kernel: str
    model: str
    spaces: tuple[tuple[list[list[int]], list[float], list[list[int]]], ...]


def train_language_model(
    network: Network,
    manifest: Manifest,
    known: Sequence[DraftTrials],
    model: DraftModel | None,
    *,
    plan: TrainingPlan,
    place: TrainingPlace,
    on_progress: Report,
) -> tuple[Network, Manifest]:
    """Distil, train, and write the model after every epoch that is the best so far.

    Args:
        known: trials of all kernels but those held out.
        model: a draft model of them; None where they are too few.
        plan: how much.
        place: where.
        on_progress: told after each step.

    Raises:
        TunerError: there is nothing to learn from.
    """
    distilled = [] if model is None else list(distilled_kernels(known, model, plan, place, on_progress))
    measured = measured_examples(known)
    taught = [*distilled, *measured]
    if not taught:
        raise TunerError(
            "there is nothing to learn from: no trial is near the best of its kernel, and no kernel is "
            "distilled; measure some with `tessel language collect`"
        )
    learnt, apart = _split(taught)
    epoch_rng = np.random.default_rng([plan.seed, 1])
    examples_apart = [example_of(training_example_of(each, known, epoch_rng)) for each in apart]
    manifest = msgspec.structs.replace(
        manifest,
        num_distilled=len({each.task for each in distilled}),
        num_kernels=len({each.task for each in known}),
        num_trials=sum(len(each.rows) for each in known),
        num_best=sum(len(each.good) for each in measured),
    )

    def training_examples(rng: np.random.Generator) -> list[Example]:
        return [example_of(training_example_of(each, known, rng)) for each in learnt]

    for step in fit(
        network,
        training_examples,
        epochs=plan.epochs,
        learning_rate=plan.learning_rate,
        seed=plan.seed,
        held_out=examples_apart,
    ):
        on_progress(f"training, loss {step.loss:.2f}", step.completed, step.total)
        if step.network is not None and step.network is not network:
            network = step.network
            manifest = msgspec.structs.replace(manifest, held_out_loss=step.held_out_loss)
            manifest = save_network(network, manifest, place.folder)
    return network, manifest


def held_out_tasks(names: Sequence[str]) -> frozenset[str]:
    """Return the kernels that names stand for, as tasks; a model's name stands for all of its kernels."""
    return frozenset(task_name(module) for name in names for _, module in named_kernels(name))


def distilled_kernels(
    known: Sequence[DraftTrials],
    model: DraftModel,
    plan: TrainingPlan,
    place: TrainingPlace,
    on_progress: Report,
) -> Iterator[Taught]:
    """Yield the draft model's choice for kernels that nobody measured; each is kept in the folder."""
    kept = _Kept(place.folder, _digest_of(known))
    measured = {each.task for each in known}
    names = _kernel_names(plan)
    for number, name in enumerate(names):
        on_progress(f"distilling {name}", number, len(names))
        module = kernel_module(parse_kernel(name))
        task = task_name(module)
        if task in measured or task in place.held_out:
            continue
        spaces = candidates_of(module, place.machine.tuned_for).spaces
        seed = np.random.default_rng([plan.seed, number, 3])
        yield from kept.taught(name, task, spaces, model, seed)


class _Kept:
    """The lines of `distilled.jsonl` that follow from the same trials, and those that are added."""

    def __init__(self, folder: Path, digest: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / DISTILLED
        self.digest = digest
        self.lines = {each.kernel: each for each in _read(self.path) if each.model == digest}

    def taught(
        self,
        name: str,
        task: str,
        spaces: Sequence[DecisionSpace],
        model: DraftModel,
        rng: np.random.Generator,
    ) -> list[Taught]:
        """Return what is learnt of a kernel, distilled now or before."""
        line = self.lines.get(name)
        if line is not None and len(line.spaces) == len(spaces):
            return [
                Taught(task, space, _rows(good), np.asarray(weights), _rows(worse))
                for space, (good, weights, worse) in zip(spaces, line.spaces, strict=True)
            ]
        found = [distil(task, space, model, rng) for space in spaces]
        made = tuple((each.good.tolist(), each.weights.tolist(), each.worse[::16].tolist()) for each in found)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(_Distilled(name, self.digest, made)) + b"\n")
        return found


def _kernel_names(plan: TrainingPlan) -> list[str]:
    """Return the random kernels of a plan."""
    rng = np.random.default_rng([plan.seed, 2])
    names: dict[str, None] = {}
    while len(names) < plan.distilled:
        names[random_kernel(plan.families[len(names) % len(plan.families)], rng).name] = None
    return list(names)


def _read(path: Path) -> Iterator[_Distilled]:
    """Yield the lines of a file; what an interruption cut off is left out."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=_Distilled)
        except msgspec.MsgspecError:
            continue


def _rows(rows: list[list[int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.asarray(rows, dtype=np.int64)


def _digest_of(known: Sequence[DraftTrials]) -> str:
    """Return what names the trials that a draft model learnt from."""
    text = "\n".join(f"{each.task} {each.rows.tolist()} {each.latencies_us}" for each in known)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _split(taught: Sequence[Taught]) -> tuple[list[Taught], list[Taught]]:
    """Split kernels into those that are learnt and those that choose the weights, if there are enough."""
    tasks = sorted({each.task for each in taught})
    if len(tasks) < 2 * _HELD_OUT:
        return list(taught), []
    apart = set(tasks[_HELD_OUT - 1 :: _HELD_OUT])
    return [each for each in taught if each.task not in apart], [
        each for each in taught if each.task in apart
    ]

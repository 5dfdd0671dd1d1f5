"""From kernels and records to a trained model on disk: training set, pre-training, fine-tuning, checkpoints.

A checkpoint is a complete model: training that ends early leaves the last one, and can be resumed from it.
Checked in tests/scripts/commands/test_language.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from records import RecordStore
from tuner.backends.metaschedule.trials import task_name
from tuner.language.evaluation import Measuring
from tuner.language.machine import Machine
from tuner.language.model_files import Manifest, save_network
from tuner.language.network import Network
from tuner.language.sketches import KernelSpace
from tuner.language.text import Text
from tuner.language.training import (
    Trials,
    best_texts,
    fit,
    random_spaces,
    sampled_texts,
    split_kernels,
)
from tuner.language.trials import measure_proposals, new_samples, recorded_trials

_CHECKPOINT_SECONDS = 20.0
"""Between two checkpoints; writing one takes a tenth of a second."""

Report: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""


class ModelTraining:
    """A network in training, with checkpoints.

    Args:
        network: what learns.
        manifest: what is known of it; kept up to date.
        folder: where the model is written.
        machine: whose kernels it learns.
        seed: of the random numbers.
        learning_rate: the largest; a third of it when fine-tuning.
        on_progress: told after each step.
    """

    def __init__(
        self,
        network: Network,
        manifest: Manifest,
        *,
        folder: Path,
        machine: Machine,
        seed: int,
        learning_rate: float,
        on_progress: Report,
    ) -> None:
        self._network = network
        self._manifest = manifest
        self._folder = folder
        self._machine = machine
        self._seed = seed
        self._learning_rate = learning_rate
        self._on_progress = on_progress

    def pre_train(self, num_kernels: int, num_samples: int, epochs: int) -> None:
        """Learn what schedules look like, from random kernels of each family."""
        families = self._manifest.families
        rng = np.random.default_rng(self._seed)
        texts: dict[Text, float] = {}
        spaces = random_spaces(families, num_kernels, self._machine.tuned_for, rng)
        for number, space in enumerate(spaces):
            self._on_progress("sampling schedules", number, num_kernels * len(families))
            texts.update(sampled_texts(space, num_samples, rng))
        self._manifest = msgspec.structs.replace(self._manifest, num_texts=len(texts))
        self._fit("pre-training", texts, epochs=epochs, learning_rate=self._learning_rate)

    def fine_tune(
        self, store: RecordStore, held_out: Sequence[KernelSpace], share: float, epochs: int
    ) -> Manifest:
        """Learn which schedules are fast, from the trials of the records; return the finished manifest.

        Args:
            store: holds the trials.
            held_out: kernels whose trials are not learnt from.
            share: of a kernel's trials that count as its best.
            epochs: how often each of those is seen; half as often the best one alone.
        """
        machine = self._machine
        left_out = {task_name(space.module) for space in held_out}
        found = recorded_trials(store, machine.tuned_for, machine.target, machine.environment)
        known = {name: each for name, each in sorted(found.items()) if name not in left_out and each[1]}
        learnt, apart = split_kernels(tuple(known))
        best, best_apart = _best_of(known, learnt, share), _best_of(known, apart, share)
        self._manifest = msgspec.structs.replace(
            self._manifest,
            num_kernels=len(known),
            num_trials=sum(len(trials) for _, trials in known.values()),
            num_best=len(best),
        )
        rate = self._learning_rate / 3
        phase = f"learning the best {share:.0%}"
        self._fit(phase, best, epochs=epochs, learning_rate=rate, kept_apart=best_apart)
        phase, best_one = "learning the best one", _best_of(known, learnt, 0.0)
        self._fit(phase, best_one, epochs=epochs // 2, learning_rate=rate, kept_apart=best_apart)
        return self._manifest

    def _fit(
        self,
        phase: str,
        texts: Mapping[Text, float],
        *,
        epochs: int,
        learning_rate: float,
        kept_apart: Mapping[Text, float] | None = None,
    ) -> None:
        steps = fit(
            self._network,
            texts,
            epochs=epochs,
            learning_rate=learning_rate,
            seed=self._seed,
            kept_apart=kept_apart,
        )
        saved = time.monotonic()
        try:
            for step in steps:
                self._on_progress(f"{phase}, loss {step.loss:.2f}", step.completed, step.total)
                if time.monotonic() - saved > _CHECKPOINT_SECONDS:
                    self._save()
                    saved = time.monotonic()
        except KeyboardInterrupt:
            self._save()
            raise
        self._save()

    def _save(self) -> None:
        self._manifest = save_network(self._network, self._manifest, self._folder)


def measure_training_set(
    store: RecordStore,
    spaces: Sequence[KernelSpace],
    trials: int,
    *,
    machine: Machine,
    measuring: Measuring,
    seed: int,
    on_progress: Report,
) -> None:
    """Measure random schedules of kernels until the records hold `trials` of each.

    Args:
        store: the records, which `measuring` adds to.
        spaces: of the kernels.
        trials: of each kernel.
        machine: what they are tuned for.
        measuring: builder, runner and records.
        seed: of the random numbers.
        on_progress: called with the number measured and the total.
    """
    found = recorded_trials(store, machine.tuned_for, machine.target, machine.environment)
    for number, space in enumerate(spaces):
        name = task_name(space.module)
        known = found[name][1] if name in found else {}
        rng = np.random.default_rng([seed, number, len(known)])

        def report(done: int, _: int, name: str = space.name, before: int = number * trials) -> None:
            on_progress(f"measuring {name}", before + done, len(spaces) * trials)

        measure_proposals(
            space,
            new_samples(space, max(0, trials - len(known)), known, rng),
            builder=measuring.builder,
            runner=measuring.runner,
            keep=None if measuring.keeper is None else measuring.keeper(space),
            on_progress=report,
        )


def _best_of(
    known: Mapping[str, tuple[KernelSpace, Trials]], names: Iterable[str], share: float
) -> dict[Text, float]:
    """Return the best share of each named kernel's trials."""
    found: dict[Text, float] = {}
    for name in names:
        found.update(best_texts(*known[name], share))
    return found

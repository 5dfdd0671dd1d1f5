"""Train a language model in rounds: learn, write schedules and measure them, and learn from those, too.

What was measured is in the records and what was distilled in the model's folder, so that training that was
stopped goes on: a round whose trials the records hold measures nothing again. Checked in
tests/tuner/language/test_model_training.py.

Source: the loop is expert iteration (Anthony et al., NeurIPS 2017): search, here by the draft model, improves
on what the network writes, and the network learns what search found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from cost_model.language.model_files import Manifest
from cost_model.language.network import Network
from tuner.errors import TunerError
from tuner.graph.relax_types import IRModule
from tuner.language.collecting import CollectionPlan, Report, collect_schedules
from tuner.language.knowledge import draft_model_of, knowledge_of
from tuner.language.model_training import TrainingPlace, TrainingPlan, train_language_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRounds:
    """Rounds after the first training.

    Attributes:
        kernels: names and modules of the kernels that are measured.
        batch: trials of each in a round.
        trials: of each that the records hold, or shall hold, before the first round.
    """

    count: int
    kernels: Sequence[tuple[str, IRModule]]
    batch: int
    trials: int
    builder: object
    runner: object


def train_with_rounds(
    network: Network,
    manifest: Manifest,
    *,
    plan: TrainingPlan,
    rounds: ExpertRounds | None,
    place: TrainingPlace,
    records_url: str,
    on_progress: Report,
) -> tuple[Network, Manifest]:
    """Train, and again after every round; return the last network.

    Args:
        plan: of each training.
        rounds: that follow the first training; None for none.
        place: whose kernels they are, and where the model is written.
        records_url: where trials are.
        on_progress: told after each step.

    Raises:
        TunerError: the records hold too few trials.
        RecordError: the records cannot be read or written.
    """
    for number in range((rounds.count if rounds else 0) + 1):
        if rounds is not None and number:
            collect_schedules(
                rounds.kernels,
                CollectionPlan(
                    random=rounds.trials, rounds=number, batch=rounds.batch, seed=plan.seed + number
                ),
                machine=place.machine,
                records_url=records_url,
                builder=rounds.builder,
                runner=rounds.runner,
                on_progress=on_progress,
                network=network,
            )
        knowledge = knowledge_of(records_url, place.machine, without=place.held_out, families=plan.families)
        model = draft_model_of(knowledge, seed=plan.seed)
        if model is None:
            raise TunerError(
                f"the records hold {sum(len(each.rows) for each in knowledge.trials)} trials to learn from, "
                "which are too few; measure more with `tessel language collect`"
            )
        network, manifest = train_language_model(
            network,
            msgspec.structs.replace(manifest, rounds=number),
            knowledge.trials,
            model,
            plan=plan,
            place=place,
            on_progress=on_progress,
        )
    return network, manifest

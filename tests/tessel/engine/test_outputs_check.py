"""Every output of every rank is compared: whatever is wrong with one is seen, and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fault_injection import CORRUPTIONS, NON_FINITE

from tessel.engine.outputs_check import check_outputs, outputs_path, write_outputs
from tessel.engine.results_check import ExpectedResults, ResultsCheck

Outputs = list[tuple[int, int, str, np.ndarray]]
NAMES = ("logits", "hidden/state")


def value(micro_batch: int, name: str) -> np.ndarray:
    rng = np.random.default_rng([micro_batch, NAMES.index(name)])
    return rng.standard_normal((3, 4)).astype(np.float32)


def right() -> dict[int, Outputs]:
    """Return what two ranks make of two micro-batches: the logits on both, the other on one."""
    return {
        rank: [
            (stage, micro_batch, name, value(micro_batch, name))
            for micro_batch in range(2)
            for stage, name in ((1, "logits"), (0, "hidden/state"))
            if rank == 0 or stage == 1
        ]
        for rank in range(2)
    }


def checked(made: dict[int, Outputs], folder: Path, **given) -> ResultsCheck:
    def outputs(count: int) -> Iterator[dict[str, np.ndarray]]:
        for micro_batch in range(count):
            yield {name: value(micro_batch, name) for name in NAMES}

    paths = [outputs_path(folder, "searched", rank) for rank in made]
    for path, of_rank in zip(paths, made.values(), strict=True):
        write_outputs(path, of_rank)
    expected = ExpectedResults(reference=lambda _: ({}, {}), outputs=outputs, **given)
    return check_outputs({"searched": paths}, expected, micro_batches=2)


def test_what_every_rank_made_is_right(tmp_path: Path) -> None:
    found = checked(right(), tmp_path)
    assert not found.failures
    assert found.num_outputs == 4
    assert found.worst_output is not None
    assert found.worst_output.relative_error == 0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_wrong_value_on_any_rank_is_seen(kind: str, rank: int, tmp_path: Path) -> None:
    made = right()
    where = next(i for i, each in enumerate(made[rank]) if each[1:3] == (1, "logits"))
    stage, micro_batch, name, array = made[rank][where]
    made[rank][where] = (stage, micro_batch, name, CORRUPTIONS[kind](array))
    (failure,) = checked(made, tmp_path).failures
    assert "the output logits of micro-batch 1 (stage 1, ours)" in failure.describe()


def test_an_output_that_is_missing_or_that_nobody_asked_for_is_seen(tmp_path: Path) -> None:
    made = right()
    made[0] = [(*each[:2], "other" if each[2] == "hidden/state" else each[2], each[3]) for each in made[0]]
    said = [failure.describe() for failure in checked(made, tmp_path).failures]
    assert sum("the output hidden/state" in each and "is missing" in each for each in said) == 2
    assert sum("the output other" in each and "the reference has none" in each for each in said) == 2


def test_another_micro_batch_s_output_is_seen(tmp_path: Path) -> None:
    made = right()
    made[1] = [(stage, 1 - micro_batch, name, array) for stage, micro_batch, name, array in made[1]]
    assert len(checked(made, tmp_path).failures) == 2


def test_products_in_a_half_are_compared_as_such(tmp_path: Path) -> None:
    made = right()
    made[0] = [(*each[:3], each[3] * np.float32(1.01)) for each in made[0]]
    assert len(checked(made, tmp_path).failures) == 4
    assert not checked(made, tmp_path, types=lambda: ["float32", "bfloat16"]).failures


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("expected", [None, ExpectedResults(reference=lambda _: ({}, {}))])
def test_without_a_reference_outputs_must_be_finite(
    kind: str, expected: ExpectedResults | None, tmp_path: Path
) -> None:
    made = right()
    made[1] = [(*each[:3], CORRUPTIONS[kind](each[3])) if each[1] == 1 else each for each in made[1]]
    paths = [outputs_path(tmp_path, "searched", rank) for rank in made]
    for path, of_rank in zip(paths, made.values(), strict=True):
        write_outputs(path, of_rank)
    found = check_outputs({"searched": paths}, expected, micro_batches=2)
    assert (found.num_outputs, found.reference_name) == (4, "")
    named = [each.describe().partition(" is ")[0] for each in found.failures]
    of_fault = "the output logits of micro-batch 1 (stage 1, ours)"
    assert named == ([of_fault] if kind in NON_FINITE else [])

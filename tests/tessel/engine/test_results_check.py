"""What counts as the reference's results: within the tolerance of the types that were computed in."""

import numpy as np
import pytest

pytest.importorskip("torch")

from fault_injection import CORRUPTIONS, NON_FINITE

from tessel.engine.job import RankResult
from tessel.engine.results_check import ExpectedResults, check_results

TRUTH = {"w": np.array([1.0, 2.0], np.float32)}


def checked(error: float, **given):
    """Compare one rank's gradient and loss, which are off by an error, with the truth."""
    found = RankResult(
        rank=0, events={}, losses={"searched": {0: 3.0 * (1 + error)}}, gradient_types=("float32",)
    )
    expected = ExpectedResults(reference=lambda _: ({0: 3.0}, TRUTH), **given)
    results = {"searched": ([found], {("w", 0): [(0, TRUTH["w"] * np.float32(1 + error))]})}
    return check_results(results, expected, micro_batches=1, last_stage=0, is_trained=True)


@pytest.mark.parametrize(
    ("error", "given", "failures"),
    [
        (1e-5, {}, 0),
        (5e-3, {}, 2),
        (5e-3, {"types": lambda: ["float32", "bfloat16"]}, 0),
        (5e-3, {"types": lambda: ["float32", "int64"]}, 2),
        (0.2, {"types": lambda: ["float32", "bfloat16"]}, 2),
    ],
)
def test_products_in_a_half_are_compared_as_such(error: float, given, failures: int) -> None:
    assert len(checked(error, **given).failures) == failures


def test_types_are_asked_for_only_where_something_differs() -> None:
    def fail():
        raise AssertionError("asked")

    assert not checked(1e-6, types=fail).failures
    with pytest.raises(AssertionError, match="asked"):
        checked(5e-3, types=fail)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("has_reference", [True, False])
def test_losses_that_nothing_is_compared_with_must_be_finite(kind: str, has_reference: bool) -> None:
    (loss,) = CORRUPTIONS[kind](np.array([3.0]))
    results = [RankResult(rank=rank, events={}, losses={"searched": {0: 3.0, 1: loss}}) for rank in range(2)]
    expected = ExpectedResults(reference=lambda _: ({}, TRUTH)) if has_reference else None
    found = {"searched": (results, {("w", 0): [(0, TRUTH["w"])]})}
    check = check_results(found, expected, micro_batches=2, last_stage=3, is_trained=True)
    named = [(each.kind, each.stages, each.micro_batch) for each in check.failures]
    assert named == ([("loss", (3,), 1)] if kind in NON_FINITE else [])


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_gradients_that_nothing_is_compared_with_must_be_finite_on_every_rank(kind: str) -> None:
    copies = [(0, TRUTH["w"]), (2, CORRUPTIONS[kind](TRUTH["w"]))]
    found = {"searched": ([RankResult(rank=0, events={}, losses={"searched": {}})], {("w", 1): copies})}
    check = check_results(found, None, micro_batches=2, last_stage=3, is_trained=True)
    assert [each.describe().partition(" is ")[0] for each in check.failures] == (
        ["the gradient of w (stage 1, ours)"] if kind in NON_FINITE else []
    )
    assert (check.num_gradients, check.reference_name) == (1, "")

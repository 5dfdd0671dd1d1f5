"""What counts as the reference's results: within the tolerance of the types that were computed in."""

import numpy as np
import pytest

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

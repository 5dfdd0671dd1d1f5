"""Rows become the schedules that they say, whose results are right; repairs by TVM are seen."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from kernel_spaces import space_of

from tuner.backends.metaschedule.candidates import candidates_of

pytestmark = pytest.mark.tvm


def test_every_row_of_a_product_is_legal_and_says_its_own_decisions() -> None:
    space = space_of("dense:12x30x49,relu")
    candidates = candidates_of(space.module, space.tuned_for)
    for row in candidates.spaces[0].sample(20, np.random.default_rng(0)):
        made = candidates.make(0, row)
        assert made is not None
        assert made.row is not None
        assert (made.row == row).all()


def test_a_location_that_tvm_repairs_is_kept_as_repaired() -> None:
    space = space_of("convolution:8x14x12x3x2")
    candidates = candidates_of(space.module, space.tuned_for)
    (decisions,) = candidates.spaces
    made = [candidates.make(0, row) for row in decisions.sample(20, np.random.default_rng(0))]
    rows = [each.row for each in made if each is not None]
    assert len(rows) == 20
    repaired = 0
    for asked, row in zip(decisions.sample(20, np.random.default_rng(0)), rows, strict=True):
        assert row is not None
        assert (asked[:-1] == row[:-1]).all()
        repaired += int(asked[-1] != row[-1])
        again = candidates.make(0, row)
        assert again is not None
        assert again.row is not None
        assert (again.row == row).all()  # what TVM has repaired, it takes as it is
    assert 0 < repaired < 20


def test_a_scheduled_kernel_computes_what_numpy_does() -> None:
    space = space_of("dense:12x30x49,relu")
    candidates = candidates_of(space.module, space.tuned_for)
    rng = np.random.default_rng(1)
    x, weight, bias = (rng.normal(size=shape).astype("float32") for shape in ((12, 30), (30, 49), (49,)))
    expected = np.maximum(x @ weight + bias, 0)
    for row in candidates.spaces[0].sample(2, rng):
        made = candidates.make(0, row)
        assert made is not None
        built = tvm.build(made.schedule.mod, target=space.tuned_for)
        tensors = [tvm.runtime.tensor(each) for each in (x, weight, bias)]
        result = tvm.runtime.empty(expected.shape, "float32")
        built["main"](*tensors, result)
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-4)

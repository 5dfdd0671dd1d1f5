"""A likelihood and its gradient leave out the labels that are to be ignored, as torch's do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

pytest.importorskip("torch")

import torch
from torch.nn import functional

from tests.harness.run_module import run_module
from tests.samples.partition_samples import function_module
from tuner.lowering.lower import build_module, build_unscheduled
from tuner.targets.resolution import resolve_target

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

BUILDS = pytest.mark.parametrize("build", [build_module, build_unscheduled], ids=["scheduled", "plain loops"])

ROOM = Path(__file__).parents[3] / "tuner"


@BUILDS
@pytest.mark.parametrize(
    ("reduction", "weighted"),
    [
        ("mean", True),
        ("none", False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("mean", False), ("sum", False), ("sum", True), ("none", True))
        ),
    ],
)
@pytest.mark.parametrize(("ignored", "labels"), [(-100, [2, -100, 0, -100, 4, 1]), (3, [3, 1, 3, 0, 4, 3])])
@pytest.mark.parametrize("extra", [(), (2,)], ids=["rows", "positions"])
def test_ignored_labels_have_no_share(
    build: Any, reduction: str, weighted: bool, ignored: int, labels: list[int], extra: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    classes = np.array(labels)
    if extra:
        classes = np.stack([classes, np.roll(classes, 1)], axis=1)
    values = rng.standard_normal((len(labels), 5, *extra)).astype("float32")
    output = rng.standard_normal(classes.shape if reduction == "none" else ()).astype("float32")
    arrays = [np.asarray(output), values, classes]
    if weighted:
        arrays.append(rng.uniform(0.5, 2, 5).astype("float32"))

    def body(output: Any, values: Any, classes: Any, *weights: Any) -> Any:
        return relax.op.grad.nll_loss_backward(
            output, values, classes, *weights, reduction=reduction, ignore_index=ignored
        )

    module = function_module([array.shape for array in arrays], body, [str(array.dtype) for array in arrays])
    target = resolve_target("cpu", num_threads=1)
    (found,) = run_module(build(module, target), arrays, target)
    leaf = torch.from_numpy(values).requires_grad_()
    loss = functional.nll_loss(
        leaf,
        torch.from_numpy(classes),
        torch.from_numpy(arrays[3]) if weighted else None,
        reduction=reduction,
        ignore_index=ignored,
    )
    (expected,) = torch.autograd.grad(loss, leaf, torch.from_numpy(arrays[0]))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)
    forward = function_module(
        [array.shape for array in arrays[1:]],
        lambda *given: relax.op.nn.nll_loss(*given, reduction=reduction, ignore_index=ignored),
        [str(array.dtype) for array in arrays[1:]],
    )
    (value,) = run_module(build(forward, target), arrays[1:], target)
    np.testing.assert_allclose(value, loss.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_single_row_and_rows_that_are_all_ignored() -> None:
    target = resolve_target("cpu", num_threads=1)

    def body(output: Any, values: Any, classes: Any) -> Any:
        return relax.op.grad.nll_loss_backward(output, values, classes, reduction="mean", ignore_index=-100)

    values = np.arange(5, dtype="float32")
    single = function_module([(), (5,), ()], body, ["float32", "float32", "int64"])
    arrays = [np.array(2, "float32"), values, np.array(3)]
    (found,) = run_module(build_module(single, target), arrays, target)
    np.testing.assert_allclose(found, [0, 0, 0, -2, 0])
    rows = function_module([(), (2, 5), (2,)], body, ["float32", "float32", "int64"])
    arrays = [np.array(2, "float32"), np.stack([values, values]), np.array([-100, -100])]
    (found,) = run_module(build_module(rows, target), arrays, target)
    assert not found.any()


def test_every_lowering_takes_this_legalisation() -> None:
    users = {path for path in ROOM.rglob("*.py") if "LegalizeOps(" in path.read_text()}
    assert users == {ROOM / "graph" / "legalization.py"}


@BUILDS
@pytest.mark.parametrize("name", ["cosh", "sinh"])
def test_hyperbolic_functions_are_numpys_near_zero_and_before_they_overflow(build: Any, name: str) -> None:
    given = np.array([0.0, 1e-30, -1e-6, 1e-3, -0.7, 5.0, -20.0, 89.2, 1e4, -1e4, np.nan], np.float32)
    module = function_module([given.shape], getattr(relax.op, name))
    target = resolve_target("cpu", num_threads=1)
    (found,) = run_module(build(module, target), [given], target)
    with np.errstate(over="ignore"):
        expected = getattr(np, name)(given.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=2e-5)


@BUILDS
def test_a_label_outside_reads_nothing_outside(build: Any) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    labels = np.array([1, 10**12, -(10**12)])
    module = function_module(
        [values.shape, labels.shape],
        lambda values, labels: relax.op.nn.nll_loss(values, labels, reduction="none", ignore_index=-100),
        ["float32", "int64"],
    )
    target = resolve_target("cpu", num_threads=1)
    (found,) = run_module(build(module, target), [values, labels], target)
    np.testing.assert_array_equal(found, -values[[0, 1, 2], [1, 4, 0]])

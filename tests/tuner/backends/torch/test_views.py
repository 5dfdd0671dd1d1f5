"""A view is of the same memory, type and shape, and keeps it alive."""

from __future__ import annotations

import gc

import ml_dtypes
import numpy as np
import pytest
import tvm

pytest.importorskip("torch")

import torch

from tuner.runtime.torch_views import view_of

pytestmark = [pytest.mark.torch, pytest.mark.tvm]


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_a_view_has_the_tensors_type_shape_and_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype)
    view = view_of(tvm.runtime.tensor(array))
    assert view.dtype == getattr(torch, dtype)
    assert tuple(view.shape) == shape
    assert bool((view == 1).all())


def test_it_writes_into_the_tensor_and_outlives_it() -> None:
    tensor = tvm.runtime.tensor(np.zeros(4, np.float32))
    view = view_of(tensor)
    view.fill_(3.0)
    assert tensor.numpy().tolist() == [3.0] * 4
    del tensor
    gc.collect()
    others = [tvm.runtime.tensor(np.full(4, 7, np.float32)) for _ in range(64)]
    assert view.tolist() == [3.0] * 4
    assert len(others) == 64

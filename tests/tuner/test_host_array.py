"""Tensors as arrays of NumPy's own types, bfloat16 among them."""

from __future__ import annotations

import io

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tuner.host_array import host_array  # noqa: E402 - after the skip

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "int64", "bool"])
def test_types_that_numpy_has_are_kept(name: str) -> None:
    tensor = torch.tensor([0.0, 1.0, 3.0]).to(getattr(torch, name))
    array = host_array(tensor)
    assert array.dtype == np.dtype(name)
    assert array.tolist() == tensor.tolist()


def test_bfloat16_keeps_every_number_in_a_file_of_numpys() -> None:
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    tensor = bits.view(torch.bfloat16)
    file = io.BytesIO()
    np.savez(file, found=host_array(tensor))
    file.seek(0)
    found = np.load(file)["found"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, tensor.double().numpy())


def test_a_tensor_of_a_graph_is_taken_out_of_it() -> None:
    weight = torch.ones(2, requires_grad=True)
    assert host_array(weight * 2).tolist() == [2.0, 2.0]
    assert weight.grad is None

"""Torch's tensors as NumPy's arrays and back; bfloat16 is `ml_dtypes`' type, which NumPy lacks.

Checked in tests/tuner/frontend/torch/test_bfloat16.py.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's values on the host; they share its memory where it lies there.

    Complex numbers are pairs of real ones along a last axis, as in every imported program.
    """
    host = tensor.detach().cpu()
    host = torch.view_as_real(host.resolve_conj()) if host.is_complex() else host
    if host.dtype is torch.bfloat16:
        bits: np.ndarray = host.contiguous().view(torch.int16).numpy()
        return bits.view(ml_dtypes.bfloat16)
    found: np.ndarray = host.numpy()
    return found


def as_tensor(array: np.ndarray) -> torch.Tensor:
    """Return a copy of an array as a contiguous tensor: compiled programs take no other strides."""
    copied = np.array(array, order="C")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(copied.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(copied)

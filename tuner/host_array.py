"""Tensors of torch as arrays on the host, in types that NumPy itself has.

Results of real ranks are compared as such arrays, and written to files of NumPy's, which hold no other types:
of bfloat16 they would keep the bytes and forget what they mean. `tuner.frontend.torch.arrays` keeps bfloat16
as it is, for what is imported. Checked in tests/tuner/test_host_array.py.
"""

from __future__ import annotations

import numpy as np
import torch


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor's values; bfloat16 as float32, which holds each of its numbers.

    Any other type is kept, and the array shares the tensor's memory where that lies on the host.
    """
    known = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    array: np.ndarray = known.detach().cpu().numpy()
    return array

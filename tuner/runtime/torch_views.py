"""TVM's tensors as torch's, of one memory, as quickly as Python allows.

A call of torch takes three or four views, each time it runs. `torch.from_dlpack` asks a GPU's tensor for its
stream first, at some 10 us a view; here both sides launch on the device's default stream, and TVM takes no
notice of another. Checked in tests/tuner/backends/torch/test_views.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.dlpack import from_dlpack


def view_of(tensor: Any) -> torch.Tensor:
    """Return a view of a tensor of TVM's, which it keeps alive."""
    return from_dlpack(tensor.__dlpack__())

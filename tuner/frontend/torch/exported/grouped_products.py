"""Stand in for the grouped product of `transformers`, which a file names, by one of this project's own.

`transformers` registers it while it is imported, and a file may not have anything imported. What it computes
is stated here in operators of ATen, so that a file's program runs, and has gradients, without that package.
Checked in tests/tuner/frontend/torch/exported/test_exported_program.py.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("tessel", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's own

_SCHEMA = "grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor"
_LIBRARY.define(_SCHEMA)  # type: ignore[no-untyped-call]  # torch's own

GROUPED_PRODUCT = "torch.ops.tessel.grouped_mm_fallback.default"
"""What a program calls in place of the operator of `transformers`."""


@torch.library.impl(_LIBRARY, "grouped_mm_fallback", "CompositeImplicitAutograd")
def grouped_product(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Multiply each row by the matrix of its group, where groups follow each other.

    Args:
        input: rows × inputs.
        weight: groups × inputs × outputs.
        offs: of each group, the row that it ends before; rows after the last give zeros.

    Returns:
        Rows × outputs.
    """
    places = torch.arange(input.shape[0], device=input.device)
    is_before = places < offs.to(torch.int64).unsqueeze(1)
    is_before_last = torch.cat([torch.zeros_like(is_before[:1]), is_before[:-1]])
    belongs = (is_before & ~is_before_last).unsqueeze(2)
    products = torch.matmul(input.unsqueeze(0), weight)
    return torch.where(belongs, products, 0).sum(0)

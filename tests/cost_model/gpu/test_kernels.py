"""Workloads are seen as the kernels that they are, and what is none of them is refused."""

import pytest

from cost_model.errors import CostModelError
from cost_model.gpu.kernels import Family, kernel_of
from records import Operator, Tensor
from records.files.neusight import kernel_workload
from records.workload import describe


@pytest.mark.parametrize(
    ("name", "extents", "family", "seen"),
    [
        ("bmm", (6, 3, 4, 5), Family.BATCHED_PRODUCT, (6, 3, 4, 5)),
        ("linear", (1, 3, 4, 5), Family.LINEAR, (1, 3, 4, 5)),
        ("mul", (6, 7), Family.ELEMENTWISE, (1, 6, 1, 7)),
        ("softmax", (6, 7), Family.SOFTMAX, (1, 6, 1, 7)),
        ("ln", (6, 7), Family.LAYER_NORM, (1, 6, 1, 7)),
    ],
)
def test_families(name: str, extents: tuple[int, ...], family: Family, seen: tuple[int, ...]) -> None:
    workload = kernel_workload(name, extents)
    kernel = kernel_of(workload)
    assert (kernel.family, kernel.extents) == (family, seen)
    assert kernel.num_bytes == workload.input_bytes + workload.constant_bytes + workload.output_bytes


def test_a_product_with_what_follows_it_is_one_kernel() -> None:
    tensor = Tensor((8, 16), "float32")
    operators = (
        Operator(name="matmul", kind=4, inputs=(0, 1), outputs=(tensor,), flops=2 * 8 * 4 * 16),
        Operator(name="nn.relu", kind=0, inputs=(2,), outputs=(tensor,), flops=8 * 16),
    )
    inputs = (Tensor((8, 4), "float32"), Tensor((4, 16), "float32", constant=True))
    assert kernel_of(describe("kernel", inputs, operators, (3,))).extents == (1, 8, 4, 16)


def test_what_is_no_such_kernel_is_refused() -> None:
    tensor = Tensor((1, 8, 4, 4), "float32")
    convolution = Operator(name="nn.conv2d", kind=4, inputs=(0, 1), outputs=(tensor,))
    weights = Tensor((8, 8, 3, 3), "float32", constant=True)
    with pytest.raises(CostModelError, match=r"operators nn\.conv2d are not among"):
        kernel_of(describe("kernel", (tensor, weights), (convolution,), (2,)))
    with pytest.raises(CostModelError, match="operators none"):
        kernel_of(describe("kernel", (tensor,), (), (0,)))
    empty = Tensor((0, 4), "float32")
    copy = Operator(name="copy", kind=0, inputs=(0,), outputs=(empty,))
    with pytest.raises(CostModelError, match="no element"):
        kernel_of(describe("kernel", (empty,), (copy,), (1,)))

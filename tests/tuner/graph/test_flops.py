"""Counts of floating-point operations against counts by hand."""

import pytest

from records.workload import Tensor
from tuner.graph import PatternKind
from tuner.graph.flops import count_flops


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [Tensor(shape, "float32") for shape in shapes]


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes", "flops"),
    [
        ("matmul", [(4, 8), (8, 3)], (4, 3), {}, 2 * 4 * 8 * 3),
        ("matmul", [(2, 4, 8), (2, 8, 3)], (2, 4, 3), {}, 2 * 2 * 4 * 8 * 3),
        ("nn.conv2d", [(1, 4, 8, 8), (6, 4, 3, 3)], (1, 6, 8, 8), {"kernel_layout": "OIHW"}, 2 * 6 * 64 * 36),
        ("nn.conv2d", [(1, 4, 8, 8), (4, 1, 3, 3)], (1, 4, 8, 8), {"kernel_layout": "OIHW"}, 2 * 4 * 64 * 9),
        ("nn.conv2d", [(1, 8, 8, 4), (6, 3, 3, 4)], (1, 8, 8, 6), {"kernel_layout": "OHWI"}, 2 * 6 * 64 * 36),
        ("nn.max_pool2d", [(1, 4, 8, 8)], (1, 4, 4, 4), {"pool_size": "[2, 2]"}, 4 * 16 * 4),
        (
            "nn.attention",
            [(1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8)],
            (1, 5, 2, 8),
            {},
            2 * 5 * 7 * (16 + 16 + 5),
        ),
    ],
)
def test_anchors_by_hand(
    operator: str,
    inputs: list[tuple[int, ...]],
    output: tuple[int, ...],
    attributes: dict[str, str],
    flops: int,
) -> None:
    assert count_flops(operator, PatternKind.ANCHOR, tensors(*inputs), tensors(output), attributes) == flops


def test_kinds_decide_where_there_is_no_rule() -> None:
    given, made = tensors((4, 8)), tensors((4, 8))
    assert count_flops("relu", PatternKind.ELEMENTWISE, given, made, {}) == 32
    assert count_flops("sum", PatternKind.REDUCTION, given, tensors((4,)), {}) == 32
    assert count_flops("reshape", PatternKind.INJECTIVE, given, made, {}) == 0
    assert count_flops("custom", PatternKind.OPAQUE, given, made, {}) == 0

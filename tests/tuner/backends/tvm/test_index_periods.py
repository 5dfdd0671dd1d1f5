"""What repeats along a loop beside branches is found, and scheduled so that no loop holds a period's end."""

import re
from typing import Any

import pytest
from tvm import relax, s_tir

from tests.samples.partition_samples import function_module, kernels_of
from tuner.backends.tvm.cpu_schedule import schedule_for_cpu
from tuner.backends.tvm.index_periods import has_branches, index_periods
from tuner.backends.tvm.native import fuse_function

pytestmark = pytest.mark.tvm

op = relax.op


def kernel_of(*shapes: tuple[int, ...], body: Any) -> Any:
    (kernel,) = kernels_of(fuse_function(function_module(shapes, body)["main"]))
    return kernel


def last_block(kernel: Any) -> Any:
    schedule = s_tir.Schedule(kernel)
    return schedule.get(schedule.get_child_blocks(schedule.get_sblock("root"))[-1])


def test_a_reshape_has_the_periods_that_its_last_axis_runs_through() -> None:
    heads = kernel_of((2, 12, 4, 8), body=lambda x: op.reshape(x, (2, 12, 32)))
    assert index_periods(last_block(heads)) == (8,)
    assert not has_branches(last_block(heads))


def test_other_divisors_and_other_axes_are_no_periods() -> None:
    assert index_periods(last_block(kernel_of((2, 12, 6), body=lambda x: op.reshape(x, (2, 72))))) == ()
    assert index_periods(last_block(kernel_of((4, 2, 16), body=lambda x: op.reshape(x, (8, 16))))) == ()


def test_a_padding_has_branches() -> None:
    padded = last_block(kernel_of((4, 8), body=lambda x: op.nn.pad(x, (0, 0, 0, 8))))
    assert has_branches(padded)
    assert index_periods(padded) == ()


def rotated(x: Any, c: Any) -> Any:
    """The gradient of rotary embeddings, whose heads are side by side."""
    first, second = (op.split(op.multiply(x, c), [4], axis=3)[number] for number in range(2))
    padded = op.add(
        op.nn.pad(op.negative(first), (0, 0, 0, 0, 0, 0, 4, 0)),
        op.nn.pad(second, (0, 0, 0, 0, 0, 0, 0, 4)),
    )
    return op.reshape(op.permute_dims(padded, [0, 2, 1, 3]), (2, 12, 32))


def test_loops_with_branches_end_where_indices_repeat() -> None:
    kernel = schedule_for_cpu(kernel_of((2, 4, 12, 8), (1, 1, 12, 8), body=rotated))
    lanes = [int(found) for found in re.findall(r"T\.vectorized\(T\.int64\((\d+)\)\)", kernel.script())]
    assert lanes
    assert max(lanes) == 8, "a loop over two heads would hold indices that repeat"


def test_a_reduction_takes_in_no_branches_with_periods() -> None:
    summed = kernel_of((2, 4, 12, 8), (1, 1, 12, 8), body=lambda x, c: op.sum(rotated(x, c), axis=-1))
    schedule = s_tir.Schedule(schedule_for_cpu(summed))
    blocks = [schedule.get(each) for each in schedule.get_child_blocks(schedule.get_sblock("root"))]
    assert not any(has_branches(block) and index_periods(block) for block in blocks[-1:])

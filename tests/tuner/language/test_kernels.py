"""Kernels have names that read back, fuse into one, and are refused where a name is none."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st

from tuner.backends.metaschedule.trials import task_name
from tuner.errors import UnknownNameError
from tuner.language.kernels import FAMILIES, kernel_module, named_kernels, parse_kernel, random_kernel

pytestmark = pytest.mark.tvm


@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 2**32))
def test_a_random_kernel_reads_back_by_its_name(family: str, seed: int) -> None:
    kernel = random_kernel(family, np.random.default_rng(seed))
    assert kernel.family == family
    assert parse_kernel(kernel.name) == kernel


@pytest.mark.parametrize(
    "name",
    [
        *("dense:8x16x32", "dense:8x16x32,relu", "dense:8x16x32,gelu", "product:2x8x16x32"),
        *("convolution:16x14x32x3x2", "convolution:16x14x32x1x1", "depthwise:16x14x5x1"),
    ],
)
def test_a_kernel_is_one_function(name: str) -> None:
    module = kernel_module(parse_kernel(name))
    assert [variable.name_hint for variable, _ in module.functions_items()] == ["main"]
    assert isinstance(module["main"], tvm.tirx.PrimFunc)


def test_a_model_has_kernels() -> None:
    kernels = named_kernels("mlp:tiny")
    assert len(kernels) >= 2
    assert [name for name, _ in kernels] == [f"mlp:tiny#{number}" for number in range(len(kernels))]
    ((name, module),) = named_kernels("mlp:tiny#1")
    assert name == "mlp:tiny#1"
    assert task_name(module) == task_name(kernels[1][1])
    with pytest.raises(UnknownNameError, match="they are mlp:tiny#0 to mlp:tiny#"):
        named_kernels("mlp:tiny#99")
    with pytest.raises(UnknownNameError, match="did you mean"):
        named_kernels("mlpp")


def test_what_is_no_kernel_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="no kernel family 'sparse'; give one of dense"):
        parse_kernel("sparse:1x2")
    with pytest.raises(ValueError, match="is not written as family:extents"):
        parse_kernel("dense")
    with pytest.raises(ValueError, match="dense has rows×inner×columns"):
        parse_kernel("dense:1x2")
    with pytest.raises(ValueError, match="each from 1 to"):
        parse_kernel("dense:1x0x2")
    with pytest.raises(ValueError, match="only dense has one"):
        parse_kernel("product:1x2x3x4,relu")

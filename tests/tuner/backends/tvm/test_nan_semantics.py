"""Kernels give NaN and infinities where torch does, whoever lowers them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import tvm
from torch import nn
from tvm import relax

from tests.harness.run_module import all_in_turn, run_module
from tests.samples.partition_samples import function_module
from tuner.backends.registry import make_backend
from tuner.backends.tvm.nan_semantics import pass_nan_on
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.frontend.torch.arrays import as_array
from tuner.frontend.torch.program import import_module
from tuner.graph.relax_types import PARTITION_ATTRIBUTE
from tuner.lowering.gpu_code import compile_for_gpu
from tuner.lowering.lower import build_module, build_unscheduled, lower_module
from tuner.numerical_error import compare_tensor
from tuner.targets.cuda_compiler import compiler_obstacle
from tuner.targets.resolution import resolve_target
from tuner.targets.target import Target

pytestmark = [pytest.mark.tvm, pytest.mark.torch]

OWN_BACKENDS = ("blas", "packed_matmul", "nhwc")


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("cpu", num_threads=1)


def sprinkled(*shape: int) -> torch.Tensor:
    """Return normal numbers with NaN and both infinities among them; a row of each infinity, and a NaN."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal(shape).astype("float32")
    flat = values.reshape(-1)
    for special in (np.nan, np.inf, -np.inf):
        flat[rng.integers(flat.size, size=max(1, flat.size // 40))] = special
    rows = values.reshape(-1, shape[-1])
    rows[0], rows[1], rows[2] = -np.inf, np.inf, rng.standard_normal(shape[-1])
    rows[2, shape[-1] // 2] = np.nan
    return torch.from_numpy(values)


class Extrema(nn.Module):
    """Everything that asks which of two numbers is larger, of rows that fill vectors and of odd ones."""

    def forward(self, x: torch.Tensor, odd: torch.Tensor, image: torch.Tensor) -> list[torch.Tensor]:
        found = [nn.functional.max_pool2d(image, 2), nn.functional.adaptive_max_pool2d(image, 2)]
        for each in (x, odd):
            found += [each.relu(), each.clamp(-0.5, 0.5), each.amax(-1), each.amin(-1), each.amax(0)]
            found += [*each.max(-1), *each.min(-1), each.amax(), each.argmax(), each.argmin(0)]
            found += [each.softmax(-1), each.log_softmax(-1), each.exp(), each == each, each != each]
        return found


class Comparisons(nn.Module):
    """Whether numbers differ, are true, or do not compare as asked, of long rows and of odd ones."""

    def forward(self, x: torch.Tensor, odd: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for each in (x, odd):
            other = each.flip(0)
            found += [each != 0.5, each != other, each != torch.inf, each.bool(), torch.logical_not(each)]
            found += [~(each < 0), ~(each <= other), torch.logical_not(each > other), ~(each == other)]
            found += [~(each != other), ~((each < 0) | (each > other)), torch.logical_xor(each, other)]
            found += [torch.where(~(each < other), each, other), (each != 0).sum(-1)]
            found.append(torch.linalg.vector_norm(each, 0, -1))
        return found


def test_nan_differs_from_every_number_and_compares_with_none(target: Target) -> None:
    inputs = sprinkled(9, 48), sprinkled(9, 7)
    model = import_module(Comparisons(), inputs, "comparisons")
    expected, arrays = Comparisons()(*inputs), [each.numpy() for each in inputs]
    assert_equal(run_module(build_unscheduled(model.module, target), arrays, target), expected, "plain loops")
    assert_equal(run_module(build_module(model.module, target), arrays, target), expected, "schedules")


def test_a_fused_negation_is_not_the_opposite_comparison(target: Target) -> None:
    inputs = (sprinkled(9, 48),)

    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.where(~(x < 0), x * 2, x - 1)

    model = import_module(Chosen(), inputs, "chosen")
    fused = schedule_kernels(fuse_function(model.module["main"]), target)
    arrays = [each.numpy() for each in inputs]
    found = run_module(build_module(fused, target), arrays, target)
    assert_equal(found, [Chosen()(*inputs)], "a fused kernel")


class OnGpu(nn.Module):
    """What a fused kernel of a GPU asks: which is larger, and what does not compare as asked."""

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        other = x.flip(0)
        chosen = torch.where(~(x < 0), x * 2, x - 1)
        return [
            x.relu() + 1,
            torch.maximum(x, other).relu(),
            chosen,
            (~(x <= other)).float(),
            (x != other) * 1.0,
        ]


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.float16])
def test_a_gpu_kernel_gives_nan_and_compares_as_asked(dtype: torch.dtype, target: Target) -> None:
    """By the same statements, run by the processor, which takes none in bfloat16: thread after thread."""
    x = sprinkled(9, 48).to(dtype)
    model = import_module(OnGpu(), (x,), "on_gpu")
    scheduled = schedule_kernels(fuse_function(model.module["main"]), resolve_target("nvidia/nvidia-a100"))
    found = run_module(build_module(all_in_turn(scheduled), target), [as_array(x)], target)
    assert_equal(found, OnGpu()(x), str(dtype))


@pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))
@pytest.mark.parametrize(
    "dtype",
    [
        torch.bfloat16,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (torch.float32, torch.float16)),
    ],
)
def test_a_gpu_kernel_that_does_so_compiles(dtype: torch.dtype) -> None:
    model = import_module(OnGpu(), (torch.zeros(9, 48, dtype=dtype),), "on_gpu")
    code = compile_for_gpu(model.module, resolve_target("nvidia/nvidia-a100"))
    assert code.kernels


def assert_equal(found, expected, text: str) -> None:
    for index, (mine, true) in enumerate(zip(found, expected, strict=True)):
        name = f"{text}: result {index}"
        deviation = compare_tensor(name, mine, true.numpy(), infinity_agrees=True, nan_agrees=True)
        assert deviation.is_within(1e-5), f"{name} {deviation.describe(1e-5)}"


@pytest.mark.parametrize("build", [build_module, pytest.param(build_unscheduled, marks=pytest.mark.slow)])
def test_extrema_pass_on_what_is_not_a_number(build: Any, target: Target) -> None:
    inputs = sprinkled(9, 48), sprinkled(9, 7), sprinkled(1, 16, 12, 12)
    model = import_module(Extrema(), inputs, "extrema")
    expected, arrays = Extrema()(*inputs), [each.numpy() for each in inputs]
    assert_equal(run_module(build(model.module, target), arrays, target), expected, "whole")
    pooled = import_module(nn.MaxPool2d(2), inputs[2:], "pool")
    fused = schedule_kernels(fuse_function(pooled.module["main"]), target)
    assert_equal(run_module(build_module(fused, target), arrays[2:], target), expected[:1], "a fused kernel")


@pytest.mark.parametrize("backend_name", OWN_BACKENDS)
def test_own_kernels_pass_on_what_is_not_a_number(backend_name: str, target: Target) -> None:
    torch.manual_seed(0)
    if backend_name == "nhwc":
        # No 3 × 3 convolution of all channels: Winograd's transform spreads NaN over a tile of results.
        convolutions = [nn.Conv2d(16, 32, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32)]
        module = nn.Sequential(*convolutions, nn.ReLU6(), nn.MaxPool2d(2)).eval()
        x = torch.randn(1, 16, 14, 14)
        x[0, 3, 5, 6] = torch.nan
    else:
        module, x = nn.Sequential(nn.Linear(48, 64), nn.ReLU()).eval(), torch.randn(32, 48)
        x[4, 5] = torch.nan
    model = import_module(module, (x,), "layers")
    backend = make_backend(backend_name)
    part = model.module["main"].without_attr("global_symbol").with_attr(PARTITION_ATTRIBUTE, backend_name)
    assert backend.refusal(part, target) is None
    builder = relax.BlockBuilder()
    callee = builder.add_func(part, "part")
    outer = [relax.Var(each.name, each.ty) for each in part.params]
    with builder.function("main", outer):
        with builder.dataflow():
            result = builder.emit_output(relax.Call(callee, outer))
        builder.emit_func_output(result)
    arrays = [x.numpy(), *(model.parameters[name] for name in model.parameter_names)]
    lowered = build_module(lower_module(builder.get(), [backend], target), target)
    with torch.no_grad():
        expected = module(x)
    assert 0 < int(expected.isnan().sum()) < expected.numel(), "some results are NaN and some are not"
    assert_equal(run_module(lowered, arrays, target), [expected], backend_name)


def test_whole_numbers_and_bounds_stay_one_instruction() -> None:
    module = function_module([(8, 48)], relax.op.nn.relu)
    (kernel,) = (
        each
        for _, each in relax.transform.LegalizeOps()(module).functions_items()
        if isinstance(each, tvm.tirx.PrimFunc)
    )
    text = pass_nan_on(kernel).script()
    assert "T.max(T.float32(0.0), " in text
    assert "isnan" not in text


def test_a_maximum_of_bfloat16_passes_nan_on(target: Target) -> None:
    """Its operands are no variables: TVM would widen their values alone, and refuse the kernel."""
    module = function_module([(4, 24)], lambda x: relax.op.max(x, axis=[-1]), ["bfloat16"])
    values = sprinkled(4, 24).to(torch.bfloat16)
    kernels = schedule_kernels(fuse_function(module["main"]), target)
    (found,) = run_module(build_module(kernels, target), [as_array(values)], target)
    np.testing.assert_array_equal(found.astype("float32"), values.float().amax(-1).numpy())

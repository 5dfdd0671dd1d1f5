"""Models of bfloat16 give what torch gives, rounded once an operator, and lose no more by it than torch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import ml_dtypes
import numpy as np
import torch
from torch import nn
from tvm import cpu, relax, runtime

from tuner.backends.registry import backends_for
from tuner.backends.tvm.native import fuse_function
from tuner.backends.tvm.schedule import schedule_kernels
from tuner.frontend.torch.arrays import as_array, as_tensor
from tuner.frontend.torch.program import import_module
from tuner.graph import DataflowGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.lower import build_module, flat_arrays
from tuner.numerical_error import TOLERANCES, compare_tensor
from tuner.partition.find_partition import find_candidates
from tuner.targets.resolution import resolve_target
from tuner.tuning.partition_model import prepared_module

pytestmark = [pytest.mark.tvm, pytest.mark.torch]


class Block(nn.Module):
    """What language models consist of, and a picture's convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.norm = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.picture = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, ids: torch.Tensor, picture: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Give features of words, of a picture, and where the largest of each is."""
        x = self.words(ids)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.wide(self.norm(x))
        seen = self.picture(picture).amax((2, 3))
        return x, seen, x.softmax(-1), seen.argmax(-1), x.float().var(-1)


@pytest.fixture(scope="module")
def given() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Block().eval().bfloat16(), (torch.randint(64, (2, 12)), torch.randn(1, 3, 8, 8).bfloat16())


def test_a_model_of_bfloat16_is_torchs(given, run_model) -> None:
    module, inputs = given
    model = import_module(module, inputs, "block")
    assert {model.parameters[name].dtype for name in model.parameter_names} == {np.dtype(ml_dtypes.bfloat16)}
    found = run_model(model, [as_array(each) for each in inputs], model.parameters)
    with torch.no_grad():
        expected = module(*inputs)
    for index, (mine, true) in enumerate(zip(found, expected, strict=True)):
        deviation = compare_tensor(f"result {index}", mine, as_array(true), same_types=True)
        assert deviation.is_within(TOLERANCES["bfloat16"]), deviation.describe(TOLERANCES["bfloat16"])


def test_sums_of_bfloat16_are_accumulated_in_float32(run_model) -> None:
    ones = torch.ones(4, 1024).bfloat16()
    layer = nn.Linear(1024, 3, bias=False).bfloat16()
    nn.init.ones_(layer.weight)
    (product,) = run_model(
        import_module(layer, (ones,), "sum"), [as_array(ones)], {"weight": as_array(layer.weight)}
    )
    assert (product.astype(np.float32) == 1024).all(), "eight bits would stop at 256"


def test_a_scheduled_kernel_that_rounds_to_bfloat16_is_built() -> None:
    module = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Softmax(-1)).bfloat16()
    x = torch.randn(4, 32).bfloat16()
    model, target = import_module(module, (x,), "layers"), resolve_target("cpu", num_threads=1)
    kernels = schedule_kernels(fuse_function(model.module["main"]), target)
    machine = relax.VirtualMachine(build_module(kernels, target), cpu())
    weights = [model.parameters[name] for name in model.parameter_names]
    (found,) = flat_arrays(machine["main"](*(runtime.tensor(each) for each in (as_array(x), *weights))))
    with torch.no_grad():
        deviation = compare_tensor("the result", found, as_array(module(x)), same_types=True)
    assert deviation.is_within(TOLERANCES["bfloat16"]), deviation.describe(TOLERANCES["bfloat16"])


def test_libraries_are_offered_the_products_of_bfloat16(given) -> None:
    module, inputs = given
    graph = DataflowGraph.from_function(prepared_module(import_module(module, inputs, "block")))
    target = resolve_target("cpu", num_threads=1)
    found = find_candidates(graph, gather_specs(backends_for(("tvm", "torch"), target), target)).candidates
    assert {"tvm", "torch"} <= {each.backend for each in found}


def test_tensors_become_arrays_and_back() -> None:
    for values in (
        torch.randn(3, 4).bfloat16().T,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(1.5).bfloat16(),
        torch.arange(3),
    ):
        assert as_tensor(as_array(values)).equal(values)
        assert as_tensor(as_array(values)).is_contiguous()
        assert as_tensor(as_array(values)).dtype == values.dtype


def test_a_buffer_of_bfloat16_serves_a_model_of_float32(run_model) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(32**0.5).bfloat16())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale.to(x.dtype)

    x = torch.randn(3, 4)
    model = import_module(Scaled(), (x,), "scaled")
    (found,) = run_model(model, [x.numpy()], model.parameters)
    np.testing.assert_allclose(found, Scaled()(x).numpy(), rtol=1e-6)

"""A model's own kernels are found before anything is priced: none is hidden in a part of another's."""

from __future__ import annotations

import pytest
import torch

from tuner.backends.cpu.kernels.clamp import RELU
from tuner.backends.cpu.nhwc import Nhwc
from tuner.backends.cpu.packed_matmul import PackedMatmul
from tuner.backends.cpu.tuned.families import kernel_of
from tuner.backends.tvm.native import TvmNative
from tuner.frontend import load_model
from tuner.frontend.torch.program import import_module
from tuner.graph import DataflowGraph
from tuner.graph.node_set import NodeSet
from tuner.targets.resolution import resolve_target
from tuner.tuning.find_own_kernels import OwnKernels, WeightedOwnKernel, among_weights, find_own_kernels
from tuner.tuning.partition_model import prepared_module

pytestmark = pytest.mark.tvm

CPU = resolve_target("cpu", num_threads=1)


def kernels_of(name: str) -> OwnKernels:
    graph = DataflowGraph.from_function(prepared_module(load_model(name)))
    return find_own_kernels(graph, (PackedMatmul(), Nhwc(), TvmNative()), CPU)


def test_layers_that_are_alike_are_one_kernel_with_a_count() -> None:
    found = kernels_of("gpt2:tiny")
    assert sorted(each.count for each in found.kernels) == [1, 4, 4, 4, 4]
    assert all(each.kernel.name.startswith("product:") for each in found.kernels)
    work = [each.count * each.kernel.operations for each in found.kernels]
    assert work == sorted(work, reverse=True)
    assert found.covered


class Patches(torch.nn.Module):
    """A convolution that cuts an image into patches, and the products of what follows, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.cut = torch.nn.Conv2d(3, 24, 9, stride=8, padding=1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(3))
        self.norm = torch.nn.LayerNorm(24)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.cut(image).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = x + layer(self.norm(x))
        return x


def test_a_part_that_takes_everything_hides_no_kernel() -> None:
    model = import_module(Patches().eval(), (torch.randn(1, 3, 32, 32),), "patches")
    graph = DataflowGraph.from_function(prepared_module(model))
    found = find_own_kernels(graph, (PackedMatmul(), Nhwc(), TvmNative()), CPU)
    assert sorted((each.kernel.name.partition(":")[0], each.count) for each in found.kernels) == [
        ("direct", 1),
        ("product", 3),
    ]
    assert {graph.nodes[index].operator for index in found.covered} >= {"nn.conv2d", "matmul"}


def test_the_classifier_of_a_convolutional_network_is_a_kernel_of_its_own() -> None:
    found = kernels_of("mobilenet:tiny")
    assert "product:1x32x16" in {each.kernel.name for each in found.kernels}
    assert sum(each.backend == "nhwc" for each in found.cover) == 1, "no convolution is in another part"


def test_who_takes_no_part_has_no_kernels() -> None:
    graph = DataflowGraph.from_function(prepared_module(load_model("gpt2:tiny")))
    assert find_own_kernels(graph, (TvmNative(), Nhwc()), CPU).kernels == ()
    assert find_own_kernels(graph, (TvmNative(),), CPU) == OwnKernels((), NodeSet(), ())


def test_weights_of_a_network_are_those_of_all_its_kernels() -> None:
    products = [kernel_of(name, RELU) for name in ("product:128x768x3072", "product:128x768x768")]
    attention = kernel_of("attention:1x12x64x128x128", RELU)
    large = among_weights(
        [
            WeightedOwnKernel(products[0], 12),
            WeightedOwnKernel(products[1], 2),
            WeightedOwnKernel(attention, 12),
        ]
    )
    total = 12 * 4 * 768 * 3072 + 2 * 4 * 768 * 768
    assert [each.weight_bytes for each in large] == [1 << 27, 1 << 27, 0], "attention has no weights"
    assert total / 2**0.5 <= 1 << 27 <= total * 2**0.5
    (small,) = among_weights([WeightedOwnKernel(products[1], 1)])
    assert small.weight_bytes == 1 << 21
    (larger,) = among_weights([WeightedOwnKernel(products[0], 1000)])
    assert larger.weight_bytes == 1 << 27, "no cache holds more"
    (tiny,) = among_weights([WeightedOwnKernel(kernel_of("product:16x32x32", RELU), 2)])
    assert tiny.weight_bytes == 0, "any cache holds them"

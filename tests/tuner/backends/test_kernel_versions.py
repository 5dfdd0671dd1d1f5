"""Who changes what a backend lowers to raises its kernels' version, or old records price new kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tvm import relax

from tests.samples.partition_samples import Body, kernels_of, part_of, partition_module
from tuner.backends.registry import backend_names, make_backend
from tuner.targets.target import Target

pytestmark = pytest.mark.tvm

op = relax.op

CPU = Target(
    name="cpu", kind="cpu", tvm_json='{"kind":"llvm","mcpu":"x86-64-v4","num-cores":2}', num_threads=1
)

NARROW = Target(
    name="cpu", kind="cpu", tvm_json='{"kind":"llvm","mcpu":"x86-64-v3","num-cores":2}', num_threads=1
)
"""A CPU with fewer vector registers, for which kernels have other tiles."""

HALF = Target(
    name="cpu", kind="cpu", tvm_json='{"kind":"llvm","mcpu":"cooperlake","num-cores":2}', num_threads=1
)
"""A CPU that multiplies bfloat16."""

HALF_LOWERED = {"packed_matmul": ("7", "71667226a5e9bac2")}
"""The version of backends with kernels of bfloat16, and the digest of these."""

LOWERED = {
    "tvm": ("12", "82539d2f96b5b21a", "bb3295f78a2e6e6d"),
    "blas": ("12", "3ab318fcb975c772", "3ab318fcb975c772"),
    "packed_matmul": ("7", "132a211ea664345a", "c5040c363fe9b627"),
    "attention": ("4", "59bed6b561d4510b", "c50052cb7e1d3fd9"),
    "nhwc": ("11", "ac7026b9752125d8", "3df02ff61d770644"),
}
"""The version of each backend's kernels, and the digests of the kernels that it has for `PROGRAMS`, on a CPU
with AVX-512 and on one with AVX2."""


def _attention(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    def heads(rows: Any) -> Any:
        return op.permute_dims(op.reshape(rows, (1, 128, 12, 64)), [0, 2, 1, 3])

    scores = op.matmul(heads(query), op.permute_dims(heads(key), [0, 1, 3, 2]))
    scores = op.multiply(scores, relax.const(0.125, "float32"))
    scores = op.nn.softmax(scores if mask is None else op.add(scores, mask))
    mixed = op.permute_dims(op.matmul(scores, heads(value)), [0, 2, 1, 3])
    return op.reshape(mixed, (1, 128, 768))


def _bottleneck(x: Any, narrow: Any, window: Any, wide: Any, bias: Any) -> Any:
    y = op.nn.conv2d(op.nn.relu(op.nn.conv2d(x, narrow)), window, padding=1)
    return op.nn.relu(op.add(op.add(op.nn.conv2d(op.nn.relu(y), wide), bias), x))


def _inverted_residual(x: Any, wide: Any, window: Any, narrow: Any) -> Any:
    y = op.nn.conv2d(op.clip(op.nn.conv2d(x, wide), 0.0, 6.0), window, padding=1, groups=144)
    return op.add(x, op.nn.conv2d(op.clip(y, 0.0, 6.0), narrow))


def _fire(x: Any, squeeze: Any, one: Any, three: Any) -> Any:
    y = op.nn.relu(op.nn.conv2d(x, squeeze))
    joined = op.concat(
        [op.nn.relu(op.nn.conv2d(y, one)), op.nn.relu(op.nn.conv2d(y, three, padding=1))], axis=1
    )
    return op.nn.max_pool2d(joined, (3, 3), (2, 2))


def _dense_layer(x: Any, new: Any, scale: Any, shift: Any, narrow: Any) -> Any:
    joined = op.concat([x, op.nn.conv2d(x, new, padding=1)], axis=1)
    normalised = op.nn.relu(op.add(op.multiply(joined, scale), shift))
    return op.nn.avg_pool2d(op.nn.conv2d(normalised, narrow), (2, 2), (2, 2))


PROGRAMS: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "product": (
        [(1, 128, 768), (3072, 768), (3072,)],
        lambda x, w, b: op.nn.gelu(op.add(op.matmul(x, op.permute_dims(w)), b)),
    ),
    "product and sum": (
        [(1, 128, 768), (768, 768), (768,), (1, 128, 768)],
        lambda x, w, b, y: op.add(op.add(op.matmul(x, w), b), y),
    ),
    "products in a row": (
        [(128, 64), (64, 64), (64, 64)],
        lambda x, v, w: op.matmul(op.tanh(op.matmul(x, v)), w),
    ),
    "product of odd extents": (
        [(4, 197, 64), (4, 64, 197)],
        lambda x, y: op.nn.softmax(op.matmul(x, y)),
    ),
    "product of thirteen rows": (
        [(13, 256), (256, 768), (768,)],
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
    ),
    "attention": ([(1, 128, 768)] * 3, _attention),
    "masked attention": ([*[(1, 128, 768)] * 3, (1, 1, 128, 128)], _attention),
    "normalisation": (
        [(1, 128, 768), (768,), (768,)],
        lambda x, g, b: op.nn.layer_norm(x, g, b, axes=[-1]),
    ),
    "softmax": ([(12, 128, 128)], op.nn.softmax),
    "strided convolution": (
        [(1, 3, 224, 224), (64, 3, 7, 7), (1, 64, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, strides=2, padding=3), b)),
    ),
    "column of pixels": (
        [(1, 64, 256, 1), (128, 64, 5, 1), (1, 128, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w), b)),
    ),
    "few rows": ([(13, 768), (768, 768)], lambda x, w: op.nn.relu(op.matmul(x, w))),
    "thin convolution": ([(1, 12, 56, 56), (20, 12, 5, 5)], lambda x, w: op.nn.conv2d(x, w, padding=2)),
    "convolution": (
        [(1, 64, 56, 56), (64, 64, 3, 3), (1, 64, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b)),
    ),
    "one row": ([(1, 256), (256, 320)], lambda x, w: op.nn.relu(op.matmul(x, w))),
    "few columns": ([(64, 96), (96, 40)], lambda x, w: op.nn.relu(op.matmul(x, w))),
    "few pixels": (
        [(1, 128, 7, 7), (48, 128, 3, 3), (1, 48, 1, 1)],
        lambda x, w, b: op.nn.relu(op.add(op.nn.conv2d(x, w, padding=1), b)),
    ),
    "depthwise of many channels": (
        [(1, 512, 14, 14), (512, 1, 3, 3)],
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, padding=1, groups=512)),
    ),
    "few filters": (
        [(1, 16, 28, 28), (8, 16, 5, 5)],
        lambda x, w: op.nn.relu(op.nn.conv2d(x, w, padding=2)),
    ),
    "bottleneck": (
        [(1, 256, 56, 56), (64, 256, 1, 1), (64, 64, 3, 3), (256, 64, 1, 1), (1, 256, 1, 1)],
        _bottleneck,
    ),
    "inverted residual": (
        [(1, 24, 56, 56), (144, 24, 1, 1), (144, 1, 3, 3), (24, 144, 1, 1)],
        _inverted_residual,
    ),
    "dense layer": (
        [(1, 128, 28, 28), (32, 128, 3, 3), (1, 160, 1, 1), (1, 160, 1, 1), (80, 160, 1, 1)],
        _dense_layer,
    ),
    "strided inverted residual": (
        [(1, 16, 112, 112), (96, 16, 1, 1), (96, 1, 3, 3), (24, 96, 1, 1)],
        lambda x, wide, window, narrow: op.nn.conv2d(
            op.nn.relu(
                op.nn.conv2d(op.nn.relu(op.nn.conv2d(x, wide)), window, strides=2, padding=1, groups=96)
            ),
            narrow,
        ),
    ),
    "fire": (
        [(1, 64, 55, 55), (16, 64, 1, 1), (64, 16, 1, 1), (64, 16, 3, 3)],
        _fire,
    ),
    "sum of convolutions": (
        [(1, 64, 56, 56), (64, 64, 3, 3), (64, 64, 3, 3)],
        lambda x, v, w: op.add(op.nn.conv2d(op.nn.conv2d(x, v, padding=1), w, padding=1), x),
    ),
    "pool": ([(1, 64, 112, 112)], lambda x: op.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))),
}


def _half_product(x: Any, w: Any, b: Any) -> Any:
    x, w, b = (op.astype(each, "float32") for each in (x, w, b))
    product = op.astype(op.add(op.matmul(x, op.permute_dims(w)), b), "bfloat16")
    return op.astype(op.nn.gelu(op.astype(product, "float32")), "bfloat16")


HALF_PROGRAMS: dict[str, tuple[Sequence[Sequence[int]], Body]] = {
    "product": ([(1, 128, 768), (3072, 768), (3072,)], _half_product),
    "few rows": ([(13, 768), (768, 768), (768,)], _half_product),
}


def _lowered(backend_name: str, target: Target) -> Iterator[tuple[str, str]]:
    """Yield each program that the backend takes, and what it becomes."""
    backend = make_backend(backend_name)
    for program, (shapes, body) in PROGRAMS.items():
        module = partition_module(backend_name, shapes, body)
        if backend.refusal(part_of(module), target) is None:
            lowered = backend.lower(module, ["part"], target)
            assert kernels_of(lowered), f"{backend_name} lowers {program} to no kernel"
            yield program, lowered.script()


@pytest.mark.parametrize("backend", LOWERED)
def test_other_kernels_have_another_version(backend: str) -> None:
    """Where a change is meant, raise the version if latencies may change, and write the new digest."""
    digests = tuple(
        hashlib.blake2b(repr(list(_lowered(backend, target))).encode(), digest_size=8).hexdigest()
        for target in (CPU, NARROW)
    )
    owner = "tvm" if backend == "blas" else backend
    version = dict(make_backend(backend).versions())[f"{owner}-kernels"]
    assert (version, *digests) == LOWERED[backend], f"the kernels of {backend} changed: raise their version"


@pytest.mark.parametrize("backend", HALF_LOWERED)
def test_other_kernels_of_bfloat16_have_another_version(backend: str) -> None:
    found = []
    for program, (shapes, body) in HALF_PROGRAMS.items():
        module = partition_module(backend, shapes, body, ["bfloat16"] * len(shapes))
        if make_backend(backend).refusal(part_of(module), HALF) is None:
            found.append((program, make_backend(backend).lower(module, ["part"], HALF).script()))
    digest = hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()
    version = dict(make_backend(backend).versions())[f"{backend}-kernels"]
    assert len(found) == len(HALF_PROGRAMS)
    assert (version, digest) == HALF_LOWERED[backend], f"{backend}'s kernels changed: raise their version"


def test_whoever_has_kernels_of_its_own_is_asked() -> None:
    with_kernels = {
        name
        for name in backend_names()
        if any(distribution.endswith("-kernels") for distribution, _ in make_backend(name).versions())
    }
    assert with_kernels == set(LOWERED)

"""Are products of a backward pass, priced by their shapes, what a training library's take?

`python -m benchmarks.typed_kernels.backward FILE` reads a system file of SimuMax, in which bf16 products were
measured in training's three layouts: forward, gradients of inputs, and of weights, which add to sums in
float32. The model that comes with the project has seen forward products alone, of a serving library.

Source: MooreThreads/SimuMax, `configs/system/b200_bf16_ceperm.json`, Apache-2.0.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cost_model.gpu.typed.kernels import Product
from cost_model.gpu.typed.model import gpu_kernel_us

_PASSES = {"TN": "forward", "NN": "gradients of inputs", "NT": "gradients of weights"}
_PRODUCT = re.compile(r"b=1, m=(\d+), k=(\d+), n=(\d+), layout=(TN|NN|NT), accumulate=\w+, out_dtype=(\w+)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print errors by pass in per cent, and those left where all are scaled by the forward's median ratio."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typed_kernels.backward", description=__doc__)
    parser.add_argument("file", type=Path, help="b200_bf16_ceperm.json")
    parser.add_argument("--gpu", default="b200")
    options = parser.parse_args(arguments)
    passes: dict[str, list[tuple[float, bool]]] = {}
    for name, product, measured_us in measured_products(json.loads(options.file.read_text())):
        found = gpu_kernel_us(product, options.gpu)
        is_held = found.low_us <= measured_us <= found.high_us
        passes.setdefault(name, []).append((found.latency_us / measured_us, is_held))
    level = np.median([ratio for name, rows in passes.items() if "forward" in name for ratio, _ in rows])
    print("| products | count | predicted over measured | mean error | at forward's level | intervals hold |")
    print("|---|---|---|---|---|---|")
    for name, rows in passes.items():
        ratios, held = np.array([ratio for ratio, _ in rows]), np.mean([is_held for _, is_held in rows])
        raw, scaled = (100 * np.abs(each - 1).mean() for each in (ratios, ratios / level))
        shown = (f"{np.median(ratios):.2f}", *(f"{each:.1f}" for each in (raw, scaled, 100 * held)))
        print("| " + " | ".join((name, str(len(rows)), *shown)) + " |")


def measured_products(system: Mapping[str, Any]) -> Iterator[tuple[str, Product, float]]:
    """Yield the pass and the sums' type, the product, and microseconds of each that was measured."""
    table = system["accelerator"]["op"]["matmul"]
    for text, share in table["accurate_efficient_factor"].items():
        if found := _PRODUCT.fullmatch(text):
            rows, inner, columns = (int(found[index]) for index in (1, 2, 3))
            latency_us = 2 * rows * inner * columns / (table["tflops"] * 1e6 * share)
            yield f"{_PASSES[found[4]]}, {found[5]}", Product(rows, columns, inner), latency_us


if __name__ == "__main__":
    main()

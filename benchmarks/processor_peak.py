"""How many multiplications and additions one core does a second, measured with nothing but registers.

What a program of products cannot be faster than on this machine, so that a latency can be told as a multiple
of it.

    taskset -c 1 python -m benchmarks.processor_peak
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as script

_LANES = 16
_ACCUMULATORS = (16, 6)
"""Vectors that hide the latency of a multiplication and addition: two a cycle, four or five cycles each.
Sixteen fit the registers of AVX-512, six those of AVX2, where a vector is two registers."""

_STEPS = 1 << 18


def peak_gflops(*, repeats: int = 9) -> float:
    """Return 10⁹ floating-point operations a second of one core, of float32, by its widest known vectors."""
    return max(_gflops(accumulators, repeats) for accumulators in _ACCUMULATORS)


def _gflops(accumulators: int, repeats: int) -> float:
    factors = tvm.runtime.tensor(np.full(2 * _LANES, 0.5, np.float32))
    sums = tvm.runtime.tensor(np.zeros(_LANES * accumulators, np.float32))
    kernel = tvm.compile(
        tvm.IRModule({"main": _kernel(accumulators).with_attr("global_symbol", "main")}),
        target=tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()}),
    )["main"]
    samples = []
    for _ in range(repeats + 1):
        before = time.process_time()
        kernel(factors, sums)
        samples.append(time.process_time() - before)
    return 2 * _STEPS * accumulators * _LANES / statistics.median(samples[1:]) / 1e9


def _kernel(accumulators: int) -> Any:
    """Return a kernel that multiplies and adds as often as it is told, with all operands in registers."""
    with IRBuilder() as builder, script.prim_func(s_tir=True):
        script.func_name("main")
        factors = script.arg("factors", script.buffer((2 * _LANES,), "float32"))
        sums = script.arg("sums", script.buffer((_LANES * accumulators,), "float32"))
        script.func_attr({"tirx.noalias": True})
        with script.sblock("root"):
            left = script.Bind(factors[script.Ramp(0, 1, _LANES)])
            right = script.Bind(factors[script.Ramp(_LANES, 1, _LANES)])
            kept = script.alloc_buffer((_LANES * accumulators,), "float32", scope="local")
            lanes = [script.Ramp(which * _LANES, 1, _LANES) for which in range(accumulators)]
            for at in lanes:
                script.buffer_store(kept, sums[at], [at])
            with script.serial(_STEPS):
                for at in lanes:
                    script.buffer_store(kept, kept[at] * left + right, [at])
            for at in lanes:
                script.buffer_store(sums, kept[at], [at])
    return builder.get()


def main() -> None:
    """Print the rate of this machine's core."""
    print(f"{peak_gflops():.1f} GFLOP/s a core, float32, measured in registers")


if __name__ == "__main__":
    main()

"""Records that are like measured ones: workloads, environments and latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from records import (
    Environment,
    Measurement,
    Operator,
    Status,
    Tensor,
    Workload,
)
from records.workload import describe

REPEATS_A_KEY = 5

BACKENDS = ("tvm", "metaschedule", "blas", "torch", "example")

OPERATORS = ("matmul", "nn.softmax", "nn.conv2d", "add", "nn.layer_norm", "nn.gelu", "transpose", "sum")

TARGET = '{"keys":["cpu"],"kind":"llvm","mcpu":"example","num-cores":8,"tag":""}'


def make_workloads(rng: np.random.Generator, amount: int) -> list[Workload]:
    """Return distinct workloads of one to three operators."""
    found: dict[str, Workload] = {}
    while len(found) < amount:
        rows, columns = (int(extent) for extent in rng.integers(1, 4096, 2))
        tensor = Tensor((rows, columns), "float32")
        operators = [
            Operator(
                name=OPERATORS[rng.integers(len(OPERATORS))],
                kind=int(rng.integers(0, 5)),
                inputs=(0, index),
                outputs=(tensor,),
                attributes=(("axis", "-1"), ("out_dtype", "float32")),
                flops=2 * rows * columns,
            )
            for index in range(int(rng.integers(1, 4)))
        ]
        workload = describe("kernel", [tensor], operators, [len(operators)])
        found[workload.fingerprint] = workload
    return list(found.values())


def make_items(
    rng: np.random.Generator, known: Sequence[Workload], *, first_time: float = 1.7e9
) -> Iterator[tuple[Workload, Measurement]]:
    """Yield measurements of every workload on every backend in two environments, over and over."""
    environments = [make_environment(0), make_environment(1)]
    measured_at = first_time
    while True:
        for workload in known:
            fingerprint = workload.fingerprint
            for backend in BACKENDS:
                for environment in environments:
                    measured_at += 1.0
                    samples = rng.lognormal(4.0, 0.05, 8)
                    yield (
                        workload,
                        Measurement(
                            workload_fingerprint=fingerprint,
                            backend=backend,
                            target=TARGET,
                            environment=environment,
                            status=Status.OK,
                            samples_us=tuple(samples.tolist()),
                            measured_at=measured_at,
                        ),
                    )


def make_environment(number: int) -> Environment:
    """Return one of the environments; they differ in the version of a library."""
    return Environment(
        device_kind="cpu",
        device_model="Example CPU",
        num_cores=8,
        num_threads=8,
        driver="6.1",
        versions=(("apache-tvm", f"0.{27 + number}"), ("numpy", "2.1")),
    )

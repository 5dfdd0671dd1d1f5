"""Records with latencies from a formula, so that a cost model's answers can be checked without a device."""

from __future__ import annotations

import math

import numpy as np

from cost_model.roofline import bandwidth_probe, call_probe, peak_probe
from cost_model.stage_model import Part, parts_parameter
from records import Environment, Measurement, Operator, Record, Status, Tensor, Workload
from records.workload import describe

ENVIRONMENT = Environment(
    device_kind="cpu",
    device_model="formula",
    num_cores=2,
    num_threads=2,
    driver="1",
    versions=(("apache-tvm", "0.27"),),
)
PEAK_GFLOPS, BANDWIDTH_GB_S, CALL_US = 100.0, 10.0, 1.0


def product(m: int, n: int, k: int, *, epilogue: int = 0) -> Workload:
    """Return a matrix product followed by `epilogue` element-wise operators."""
    output = Tensor((m, n), "float32")
    operators = [Operator(name="matmul", kind=4, inputs=(0, 1), outputs=(output,), flops=2 * m * n * k)]
    operators += [
        Operator(name="nn.relu", kind=0, inputs=(2 + i,), outputs=(output,), flops=m * n)
        for i in range(epilogue)
    ]
    inputs = [Tensor((m, k), "float32"), Tensor((k, n), "float32", constant=True)]
    return describe("kernel", inputs, operators, [2 + epilogue])


def true_latency_us(workload: Workload, backend: str) -> float:
    """Return what the formula says: a library is fast on products, `tvm` on what follows them."""
    share = {"blas": 0.8, "tvm": 0.1}[backend]
    compute_us = workload.flops / (share * PEAK_GFLOPS * 1e3)
    per_operator_us = {"blas": 15.0, "tvm": 1.0}[backend]
    return compute_us + per_operator_us * len(workload.operators) + 2 * CALL_US


def measured(
    workload: Workload, backend: str, latency_us: float, record_id: int, *, noise: float = 0.0, seed: int = 0
) -> Record:
    """Return a record with five samples around the latency."""
    rng = np.random.default_rng([seed, record_id])
    samples = tuple(float(latency_us * math.exp(noise * value)) for value in rng.normal(size=5))
    measurement = Measurement(
        workload_fingerprint=workload.fingerprint,
        backend=backend,
        target="{}",
        environment=ENVIRONMENT,
        status=Status.OK,
        samples_us=samples,
    )
    return Record(record_id=record_id, workload=workload, measurement=measurement)


def probes(first_id: int = 1) -> list[Record]:
    """Return the three device probes of the formula's device."""
    work_us = peak_probe().flops / PEAK_GFLOPS / 1e3
    traffic_us = 2 * bandwidth_probe().input_bytes / BANDWIDTH_GB_S / 1e3
    pairs = ((peak_probe(), work_us), (bandwidth_probe(), traffic_us), (call_probe(), CALL_US))
    return [
        measured(workload, "probe", latency_us, first_id + index)
        for index, (workload, latency_us) in enumerate(pairs)
    ]


def many_records(count: int, *, noise: float = 0.02, seed: int = 0) -> list[Record]:
    """Return the probes and `count` workloads, each run by both backends."""
    rng = np.random.default_rng(seed)
    found = probes()
    for _ in range(count):
        m, n, k = (int(2 ** rng.uniform(4, 10)) for _ in range(3))
        workload = product(m, n, k, epilogue=int(rng.integers(0, 4)))
        for backend in ("blas", "tvm"):
            latency_us = true_latency_us(workload, backend)
            found.append(measured(workload, backend, latency_us, len(found) + 1, noise=noise, seed=seed))
    return found


def stage_records(count: int, *, factor: float = 1.2, noise: float = 0.02) -> list[Record]:
    """Return stages of one to six products, each slower than its parts by a factor, with the parts."""
    rng = np.random.default_rng(0)
    found = probes()
    for _ in range(count):
        parts, total_us = [], 0.0
        for _ in range(int(rng.integers(1, 7))):
            kernel = product(*(int(2 ** rng.uniform(5, 9)) for _ in range(3)))
            latency_us = true_latency_us(kernel, "blas")
            found.append(measured(kernel, "blas", latency_us, len(found) + 1))
            runs = int(rng.integers(1, 3))
            parts.append(Part(kernel.fingerprint, "blas", "", runs))
            total_us += runs * (latency_us + 1.0)
        whole = product(64, 64, 64 + len(found), epilogue=len(found) % 4)
        workload = describe("stage", whole.inputs, whole.operators, whole.results, [parts_parameter(parts)])
        measurement = Measurement(
            workload_fingerprint=workload.fingerprint,
            backend="mix",
            target="{}",
            environment=ENVIRONMENT,
            status=Status.OK,
            samples_us=(total_us * factor * float(np.exp(noise * rng.normal())),),
        )
        found.append(Record(record_id=len(found) + 1, workload=workload, measurement=measurement))
    return found

"""Hypothesis strategies and small examples of workloads, environments and measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from records import Environment, Measurement, Operator, Status, Tensor, Workload
from records.workload import describe

DTYPES = ("float32", "float16", "bfloat16", "int8", "int64", "bool")
ROLES = ("kernel", "stage", "model", "transfer", "device")

# What every database keeps: no NUL and no half of a surrogate pair.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
integers = st.integers(0, 2**63 - 1)
tensors = st.builds(
    Tensor, st.lists(st.integers(0, 9), max_size=4).map(tuple), st.sampled_from(DTYPES), st.booleans()
)
pairs = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)


@st.composite
def operators(draw: st.DrawFn, available: int) -> Operator:
    inputs = st.lists(st.integers(0, available - 1), max_size=3) if available else st.just([])
    return Operator(
        name=draw(texts),
        kind=draw(st.sampled_from((0, 1, 2, 3, 4, 8))),
        inputs=tuple(draw(inputs)),
        outputs=tuple(draw(st.lists(tensors, min_size=1, max_size=2))),
        attributes=draw(pairs),
        flops=draw(integers),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    inputs = draw(st.lists(tensors, max_size=3))
    drawn: list[Operator] = []
    available = len(inputs)
    for _ in range(draw(st.integers(0, 4))):
        drawn.append(draw(operators(available)))
        available += len(drawn[-1].outputs)
    results = draw(st.lists(st.integers(0, available - 1), max_size=3)) if available else []
    return describe(draw(st.sampled_from(ROLES)), inputs, drawn, results, draw(pairs))


environments = st.builds(
    Environment,
    device_kind=st.sampled_from(("cpu", "cuda")),
    device_model=texts,
    num_cores=st.integers(1, 256),
    num_threads=st.integers(1, 256),
    driver=texts,
    versions=pairs,
)


@st.composite
def items(draw: st.DrawFn) -> tuple[Workload, Measurement]:
    workload = draw(workloads())
    status = draw(st.sampled_from(Status))
    ok = status is Status.OK
    latencies = st.floats(1e-6, 1e12)
    return workload, Measurement(
        workload_fingerprint=workload.fingerprint,
        backend=draw(texts),
        target=draw(texts),
        environment=draw(environments),
        status=status,
        samples_us=tuple(draw(st.lists(latencies, min_size=1, max_size=5))) if ok else (),
        settings=draw(texts),
        message=draw(texts),
        peak_memory_bytes=draw(st.none() | integers),
        relative_error=draw(st.none() | st.floats(0, 1e300)),
        measured_at=draw(st.floats(0, 4e9)),
        seed=draw(integers),
    )


def make_environment(
    *, device_model: str = "Testing CPU", num_threads: int = 2, tvm: str = "0.27", device_kind: str = "cpu"
) -> Environment:
    return Environment(
        device_kind=device_kind,
        device_model=device_model,
        num_cores=4,
        num_threads=num_threads,
        driver="6.1",
        versions=(("apache-tvm", tvm), ("numpy", "2.1")),
    )


def make_workload(rows: int = 8, *, name: str = "matmul", role: str = "kernel") -> Workload:
    left, right, out = (Tensor((rows, rows), "float32") for _ in range(3))
    operator = Operator(name=name, kind=4, inputs=(0, 1), outputs=(out,), flops=2 * rows**3)
    return describe(role, [left, right], [operator], [2])  # type: ignore[arg-type]  # a role as text


def make_measurement(
    workload: Workload,
    samples_us: Sequence[float] = (10.0,),
    *,
    backend: str = "tvm",
    target: str = "llvm",
    environment: Environment | None = None,
    status: Status = Status.OK,
    **fields: Any,
) -> Measurement:
    return Measurement(
        workload_fingerprint=workload.fingerprint,
        backend=backend,
        target=target,
        environment=environment or make_environment(),
        status=status,
        samples_us=tuple(samples_us) if status is Status.OK else (),
        **fields,
    )

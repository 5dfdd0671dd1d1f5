"""The cost of one additional partition: the virtual machine's time from one kernel to the next.

A chain of tiny kernels is measured at two lengths; the penalty is the slope between them. The kernels touch
one vector, so what is left is the call, the allocation of its result and, with several threads, nothing: a
kernel that small is not shared out. Checked in tests/tuner/measuring/test_launch_penalty.py.
"""

from __future__ import annotations

from tvm import relax

from records import Record, Tensor, Workload
from records.workload import Operator, describe
from tuner.errors import TunerError
from tuner.graph.relax_types import PARTITION_ATTRIBUTE, IRModule
from tuner.measuring.measurer import Measurer
from tuner.measuring.request import MeasureRequest
from tuner.plan import Figure

_BACKEND = "tvm"

_LENGTHS = (8, 72)

_SHAPE = (1, 16)

_DTYPE = "float32"


def measure_launch_penalty(measurer: Measurer) -> Figure:
    """Return the latency that each further partition adds, from the records where they have it.

    Raises:
        TunerError: the probe cannot be built or run on the target.
    """
    records = measurer.measure_many(
        [
            MeasureRequest(workload=_workload(length), module=_chain(length), backend=_BACKEND)
            for length in _LENGTHS
        ]
    )
    short_us, long_us = (_latency_us(record) for record in records)
    return Figure(
        latency_us=max(0.0, (long_us - short_us) / (_LENGTHS[1] - _LENGTHS[0])),
        source="derived",
        record_ids=tuple(record.record_id for record in records),
    )


def _latency_us(record: Record) -> float:
    measurement = record.measurement
    if not measurement.samples_us:
        raise TunerError(
            f"the launch probe failed ({measurement.status}: {measurement.message}), so the cost of a "
            "partition is unknown; run `tessel doctor`"
        )
    return measurement.latency_us


def _workload(length: int) -> Workload:
    tensor = Tensor(_SHAPE, _DTYPE)
    operators = [
        Operator(name="add", kind=0, inputs=(index, index), outputs=(tensor,)) for index in range(length)
    ]
    return describe("device", [tensor], operators, [length], [("probe", "launch")])


def _chain(length: int) -> IRModule:
    """Return a module whose `main` calls so many partitions, each adding a vector to itself."""
    ty = relax.TensorType(_SHAPE, _DTYPE)
    builder = relax.BlockBuilder()
    value = relax.Var("value", ty)
    with builder.function("double", [value], attrs={PARTITION_ATTRIBUTE: _BACKEND}, private=True):
        with builder.dataflow():
            result = builder.emit_output(relax.op.add(value, value))
        builder.emit_func_output(result)
    double = builder.get().get_global_var("double")
    start = relax.Var("start", ty)
    with builder.function("main", [start]):
        with builder.dataflow():
            current = start
            for _ in range(length):
                current = builder.emit(relax.Call(double, [current]))
            result = builder.emit_output(current)
        builder.emit_func_output(result)
    return builder.get()

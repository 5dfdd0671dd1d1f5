"""The cost of one additional partition: the virtual machine's time from one kernel to the next.

A chain of tiny kernels is measured at two lengths; the penalty is the slope between them. The kernels touch
one vector, so what is left is the call, the allocation of its result and, with several threads, nothing: a
kernel that small is not shared out. Checked in tests/tuner/measuring/test_launch_penalty.py.
"""

from __future__ import annotations

from records import Record, Tensor, Workload
from records.workload import Operator, describe
from tuner.errors import TunerError
from tuner.measuring.measurer import Measurer
from tuner.measuring.probe_program import DTYPE, SHAPE, addition_chain
from tuner.measuring.request import MeasureRequest
from tuner.plan import Figure

_BACKEND = "tvm"

_LENGTHS = (8, 72)


def measure_launch_penalty(measurer: Measurer) -> Figure:
    """Return the latency that each further partition adds, from the records where they have it.

    Raises:
        TunerError: the probe cannot be built or run on the target.
    """
    records = measurer.measure_many(
        [
            MeasureRequest(
                workload=_workload(length),
                module=addition_chain(length, _BACKEND),
                backend=_BACKEND,
                runs_anywhere=True,
            )
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
            "partition is unknown; it is measured again by the next command; run `tessel doctor`"
        )
    return measurement.latency_us


def _workload(length: int) -> Workload:
    tensor = Tensor(SHAPE, DTYPE)
    operators = [
        Operator(name="add", kind=0, inputs=(index, index), outputs=(tensor,)) for index in range(length)
    ]
    return describe("device", [tensor], operators, [length], [("probe", "launch")])

"""Measure a partitioned function end to end, through the records.

Checked in tests/tuner/tuning/test_tune.py.
"""

from __future__ import annotations

from tuner.errors import TunerError
from tuner.measuring.request import MeasureRequest
from tuner.partition.price import Invalid
from tuner.plan import Figure
from tuner.pricing.measured import price_of
from tuner.targets.target import Target
from tuner.tuning.partitioned_function import PartitionedFunction, binding
from tuner.tuning.session import Session, TuningProgress


def request_of(function: PartitionedFunction, label: str, target: Target) -> MeasureRequest:
    """Return what measures a whole program, and has it race; on a GPU as one graph, as compiled ones run."""
    return MeasureRequest(
        workload=function.priced.workload,
        module=function.module,
        backend=label,
        settings=f"partition={function.fingerprint}{binding(function.priced)}"
        + (";graph" if target.kind == "cuda" else ""),
        races=True,
    )


def measure_partitioned(session: Session, function: PartitionedFunction, *, label: str = "mix") -> Figure:
    """Measure a partitioned function end to end, through the records; where nothing is measured, add up.

    Args:
        function: what is built and run.
        label: what its record has for a backend.

    Raises:
        TunerError: it cannot be built or run; says why.
    """
    if session.pricing.mode == "model":
        return function.sum_of_parts
    session.on_progress(TuningProgress(text=f"{function.priced.name}: measuring {label}"))
    (record,) = session.measurer.measure_many([request_of(function, label, session.target)])
    price = price_of(record)
    if isinstance(price, Invalid):
        raise TunerError(
            f"{function.priced.name} of {label} could not be measured ({price.reason}), though its parts "
            "could; leave a backend out with --backends, or see `tessel records show "
            f"{record.record_id}`"
        )
    return price

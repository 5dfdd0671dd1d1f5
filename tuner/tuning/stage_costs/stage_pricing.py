"""The price of a stage's function: measured as one program, or predicted from its parts.

The record of a measured stage names its parts, so that the cost model learns from records alone by how much
a stage differs from their sum. Checked in tests/tuner/tuning/stage_costs/test_stage_pricing.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from cost_model.stage_model import Part, StageQuery, parts_parameter
from records import Record, Workload
from records.workload import describe
from tuner.errors import TunerError
from tuner.graph.relax_types import num_inputs_of
from tuner.lowering.lower import lower_module
from tuner.lowering.weight_binding import bound_bytes
from tuner.measuring.request import MeasureRequest
from tuner.partition.candidate import FREE
from tuner.partition.price import Invalid
from tuner.plan import Figure
from tuner.pricing.measured import price_of, workload_of_candidate
from tuner.pricing.protocol import is_predicted
from tuner.tuning.partitioned_function import PartitionedFunction, binding
from tuner.tuning.session import Session, TuningProgress

STAGE_BACKEND = "mix"
"""What records of stages carry for a backend: any of them may run a part."""


def stage_workload(session: Session, function: PartitionedFunction) -> Workload:
    """Return what records call the function with its partition: its operators, and who runs which part."""
    settings = {backend.name: backend.settings for backend in session.backends}
    graph = function.priced.graph
    counts = Counter(
        (workload_of_candidate(graph, part).fingerprint, part.backend)
        for part in function.partition.chosen
        if part.backend != FREE
    )
    parts = (
        Part(fingerprint, backend, settings[backend], count)
        for (fingerprint, backend), count in counts.items()
    )
    whole = function.priced.workload
    return describe("stage", whole.inputs, whole.operators, whole.results, [parts_parameter(parts)])


def price_stage(session: Session, function: PartitionedFunction) -> Figure:
    """Return the function's latency, measured as one program; predicted where nothing is to be measured.

    Raises:
        TunerError: it cannot be built or run; says why.
    """
    (figure,) = price_stages(session, (function,))
    return figure


def price_stages(session: Session, functions: Sequence[PartitionedFunction]) -> tuple[Figure, ...]:
    """Return the latency of each, as `price_stage` does; they are built in parallel where `--jobs` allows.

    Raises:
        TunerError: one cannot be built or run; says which, and why.
    """
    if session.pricing.mode == "model":
        return tuple(predict_stage(session, function) for function in functions)
    if functions:
        session.on_progress(TuningProgress(text=f"{_described(functions)}: measuring"))
    requests = [
        MeasureRequest(
            workload=stage_workload(session, function),
            module=function.module,
            backend=STAGE_BACKEND,
            settings=binding(function.priced).removeprefix(";"),
        )
        for function in functions
    ]
    records = session.measurer.measure_many(requests)
    return tuple(
        _figure_of(record, function.priced.name) for record, function in zip(records, functions, strict=True)
    )


def _described(functions: Sequence[PartitionedFunction]) -> str:
    first = functions[0].priced.name
    return first if len(functions) == 1 else f"{first} and {len(functions) - 1} more"


def _figure_of(record: Record, name: str) -> Figure:
    price = price_of(record)
    if isinstance(price, Invalid):
        raise TunerError(
            f"{name} could not be measured ({price.reason}), though its parts could; leave a backend out "
            f"with --backends, or see `tessel records show {record.record_id}`"
        )
    return price


def count_bound_bytes(session: Session, function: PartitionedFunction) -> int:
    """Return the bytes of what a function makes of its weights once; 0 where they may change."""
    if num_inputs_of(function.priced.graph.source.function) is None:
        return 0
    return bound_bytes(lower_module(function.module, session.backends, session.target))


def predict_stage(session: Session, function: PartitionedFunction) -> Figure:
    """Return the function's latency from those of its parts, corrected by what measured stages differ by.

    The interval holds the correction's own error and, where parts are predicted, theirs, which are taken
    to be independent. Without enough measured stages to learn from, it is the plain sum of the parts.
    """
    model = session.pricing.current_stage_model(session.measurer, session.seed)
    plain = function.sum_of_parts
    figures = [
        (part.backend, figure)
        for part, figure in zip(function.partition.chosen, function.partition.figures, strict=True)
        if part.backend != FREE
    ]
    if model is None or not figures:
        return plain
    query = StageQuery(
        workload=function.priced.workload,
        part_latencies_us=tuple((backend, figure.latency_us, 1) for backend, figure in figures),
        speed=session.pricing.device_speed(session.measurer),
    )
    (prediction,) = model.predict([query])
    # Equal programs err together, different ones apart.
    spread_by_program: Counter[Figure] = Counter()
    for _, figure in figures:
        if is_predicted(figure) and figure.interval_us is not None:
            spread_by_program[figure] += 1
    variance = sum(
        (count * (figure.interval_us[1] - figure.interval_us[0]) / 2) ** 2
        for figure, count in spread_by_program.items()
        if figure.interval_us is not None
    )
    own = math.log(prediction.high_us / prediction.latency_us)
    of_parts = math.log1p(math.sqrt(variance) / query.plain_us)
    factor = math.exp(math.hypot(own, of_parts))
    return Figure(
        latency_us=prediction.latency_us,
        source="predicted",
        interval_us=(prediction.latency_us / factor, prediction.latency_us * factor),
    )

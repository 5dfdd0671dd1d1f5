"""A whole model partitioned: the mix of backends measured end to end, beside each backend alone.

What is measured is the model's `main`: the outputs, or for training the loss. The mix is the search's first
answer; the sum of its parts stands beside its measured latency, because launches and caches make the two
differ. Results are checked against the unpartitioned model on random inputs. Checked in
tests/tuner/test_tune.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from records.workload import describe
from tuner.describe import describe_function
from tuner.errors import TunerError, UnpriceableError
from tuner.frontend.model import Model
from tuner.launch_penalty import measure_launch_penalty
from tuner.partitioned_function import (
    PartitionedFunction,
    PricedFunction,
    choose_partition,
    partition_plans,
    price_function,
    refusals,
)
from tuner.plan import Figure, PartitionPlan
from tuner.price import Invalid
from tuner.price_measured import price_of
from tuner.session import Session, TuningProgress, checked_error

MAX_RELATIVE_ERROR = 1e-3
"""Largest error of float32 results that reordered sums explain; beyond it a partition is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionedModel:
    """What partitioning a whole model found.

    Attributes:
        model: the model's name.
        fingerprint: names its structure and shapes.
        function: the model's function with its chosen partition.
        partition: the distinct sub-graphs and their backends.
        end_to_end: measured latency of the whole function: `mix`, and each single backend (with the
            reference backend for what it cannot run).
        sum_of_parts: what the search added up for the mix.
        launch_penalty_us: what one more partition costs, measured.
        max_relative_error: largest error of the mix against the unpartitioned model; None where nothing ran.
        num_candidates_by_rule: how many candidates each rule proposed.
        num_invalid: candidates that their backend cannot run.
        num_refused_by_reason: why, and how often.
        num_states: states that the search expanded.
        new_measurements: measurements made for it.
        reused_measurements: measurements found in the records.
    """

    model: str
    fingerprint: str
    function: PartitionedFunction
    partition: tuple[PartitionPlan, ...]
    end_to_end: dict[str, Figure]
    sum_of_parts: Figure
    launch_penalty_us: float
    max_relative_error: float | None
    num_candidates_by_rule: dict[str, int]
    num_invalid: int
    num_refused_by_reason: dict[str, int]
    num_states: int
    new_measurements: int
    reused_measurements: int


def partition_model(model: Model, session: Session) -> PartitionedModel:
    """Choose who runs which part of a model's function, and measure the choice end to end.

    Raises:
        UnpriceableError: nobody can run an operator; names it.
        TunerError: the mix cannot be measured, or gives wrong numbers.
    """
    penalty = measure_launch_penalty(session.measurer)
    priced = price_function(session, model.module, name="model", launch_penalty_us=penalty.latency_us)
    mix = choose_partition(priced)
    end_to_end = _measure_variants(session, priced, mix)
    error = _check(session, model, mix)
    refused = refusals([priced])
    return PartitionedModel(
        model=model.name,
        fingerprint=describe_function(model.module["main"], "model", module=model.module).fingerprint,
        function=mix,
        partition=partition_plans([mix]),
        end_to_end=end_to_end,
        sum_of_parts=mix.sum_of_parts,
        launch_penalty_us=penalty.latency_us,
        max_relative_error=error,
        num_candidates_by_rule=priced.num_candidates_by_rule,
        num_invalid=sum(refused.values()),
        num_refused_by_reason=refused,
        num_states=mix.partition.states,
        new_measurements=session.measurer.new_measurements,
        reused_measurements=session.measurer.reused_measurements,
    )


def measure_partitioned(session: Session, function: PartitionedFunction, *, label: str = "mix") -> Figure:
    """Measure a partitioned function end to end, through the records; where nothing is measured, add up.

    Raises:
        TunerError: it cannot be built or run; says why.
    """
    if session.pricing.mode == "model":
        return function.sum_of_parts
    session.on_progress(TuningProgress(text=f"{function.priced.name}: measuring {label}"))
    record = session.measurer.measure_function(
        function.priced.workload, function.module, label, settings=f"partition={function.fingerprint}"
    )
    price = price_of(record)
    if isinstance(price, Invalid):
        raise TunerError(
            f"{function.priced.name} of {label} could not be measured ({price.reason}), though its parts "
            "could; leave a backend out with --backends, or see `tessel records show "
            f"{record.record_id}`"
        )
    return price


def _measure_variants(
    session: Session, priced: PricedFunction, mix: PartitionedFunction
) -> dict[str, Figure]:
    variants = {"mix": measure_partitioned(session, mix)}
    for backend in session.backends:
        try:
            alone = choose_partition(priced, only=backend.name)
        except UnpriceableError:
            # Active pricing leaves out what it need not know, a single backend's other kernels among it.
            continue
        if alone.fingerprint == mix.fingerprint:
            # One program has one latency: a second measurement would only show noise.
            variants[backend.name] = variants["mix"]
        else:
            variants[backend.name] = measure_partitioned(session, alone, label=f"{backend.name}-alone")
    return variants


def _check(session: Session, model: Model, mix: PartitionedFunction) -> float | None:
    if session.pricing.mode == "model":
        return None
    workload = mix.priced.workload
    checked = describe("model", workload.inputs, workload.operators, workload.results, [("check", "outputs")])
    session.on_progress(TuningProgress(text="checking the mix against the unpartitioned model"))
    error = checked_error(
        session,
        checked,
        settings=f"partition={mix.fingerprint}",
        check=lambda: session.measurer.compare(mix.module, model.module),
    )
    if error > MAX_RELATIVE_ERROR:
        raise TunerError(
            f"the partitioned {model.name} differs from the unpartitioned one by {error:.1e} of its largest "
            f"result, more than the {MAX_RELATIVE_ERROR:.0e} that reordered sums explain; leave a backend "
            "out with --backends to find the one that is wrong"
        )
    return error

"""Partition a model for a GPU that is not here, with prices from a model of measured kernels.

Nothing is built or run. Each candidate is seen as the kernels that a GPU runs for it
(`cost_model.gpu.programs`), which were measured as PyTorch runs them: cuBLAS's products, library
normalisations, fused element-wise kernels. So a product is priced where a library runs it, and refused by
name where TVM would write the kernel; whatever only moves memory is priced for either, and a transposition
costs nothing, for libraries read strided operands. What is left out: the race of whole programs, launch
penalties beyond those in each kernel's overhead, and any check of numbers.
Checked in tests/tuner/tuning/test_predict_partition.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost_model.errors import CostModelError
from cost_model.gpu.devices import GpuDevice
from cost_model.gpu.kernel_model import GpuKernelModel
from cost_model.gpu.kernels import Family
from cost_model.gpu.programs import kernels_of_program, predict_programs
from records import Workload
from tuner.backends.protocol import Backend
from tuner.backends.registry import make_backend
from tuner.errors import TunerError, UnpriceableError
from tuner.frontend.model import Model
from tuner.graph import DataflowGraph
from tuner.lowering.backend_specs import gather_specs
from tuner.lowering.workload_of import describe_graph, workload_of
from tuner.partition.assignment import Assignment
from tuner.partition.candidate import FREE
from tuner.partition.find_partition import find_candidates
from tuner.partition.price import Invalid, Price
from tuner.plan import Figure
from tuner.pricing.measured import workload_of_candidate
from tuner.targets.target import Target
from tuner.tuning.partition_model import PartitionedModel, explanations_of, prepared_module
from tuner.tuning.partitioned_function import (
    PartitionedFunction,
    PricedFunction,
    choose_partition,
    partition_plans,
    refusals,
    with_runner_ups,
)
from tuner.tuning.session import check_assignments

LIBRARY = "torch"
PREDICTABLE = ("tvm", LIBRARY)
"""Backends whose kernels are like those that were measured, at least in part."""

_PRODUCTS = frozenset((Family.LINEAR, Family.BATCHED_PRODUCT))


def predict_partition(
    model: Model,
    kernel_model: GpuKernelModel,
    device: GpuDevice,
    target: Target,
    *,
    backend_names: Sequence[str] | None = None,
    assignments: Sequence[Assignment] = (),
) -> PartitionedModel:
    """Choose which backend would run which part of a model's function, by predicted latency.

    Args:
        kernel_model: of kernels measured on GPUs.
        device: what it would run on.
        target: the same, for the backends' rules.
        backend_names: of `PREDICTABLE`; all of them if None.
        assignments: which backends may run some operators.

    Raises:
        UnknownNameError: an assignment names a backend that does not take part.
        TunerError: a backend's kernels are none that were measured.
        UnpriceableError: an operator of which no kernel was measured on a GPU; names it.
    """
    backends = _backends(backend_names)
    check_assignments(assignments, backends)
    graph = DataflowGraph.from_function(prepared_module(model), layers=model.layers_by_variable())
    found = find_candidates(graph, gather_specs(backends, target, assignments))
    workloads = [
        None if candidate.backend == FREE else workload_of_candidate(graph, candidate)
        for candidate in found.candidates
    ]
    prices: dict[tuple[str, str], Price] = {}
    for candidate, workload in zip(found.candidates, workloads, strict=True):
        if workload is not None and (key := (workload.fingerprint, candidate.backend)) not in prices:
            prices[key] = _price(workload, candidate.backend, kernel_model, device)
    priced = PricedFunction(
        name="model",
        graph=graph,
        workload=describe_graph(graph, "model"),
        candidates=found.candidates,
        prices=tuple(
            _FREE if workload is None else prices[workload.fingerprint, candidate.backend]
            for candidate, workload in zip(found.candidates, workloads, strict=True)
        ),
        num_candidates_by_rule={
            f"{backend}:{rule}": count for (backend, rule), count in found.report.num_by_rule.items()
        },
        refused=found.report.refused,
        num_pruned=0,
        launch_penalty_us=0.0,
    )
    return _partitioned(model, priced, [backend.name for backend in backends])


def _backends(names: Sequence[str] | None) -> tuple[Backend, ...]:
    for name in names or ():
        if name not in PREDICTABLE:
            raise TunerError(
                f"backend {name!r} cannot be predicted on a GPU that is not here: none of its kernels were "
                f"measured; name some of {', '.join(PREDICTABLE)}"
            )
    return tuple(make_backend(name) for name in names or PREDICTABLE)


def _price(workload: Workload, backend: str, kernel_model: GpuKernelModel, device: GpuDevice) -> Price:
    """Return a prediction, or which operators it cannot be made for."""
    try:
        kernels = kernels_of_program(workload)
        if backend != LIBRARY and any(kernel.family in _PRODUCTS for kernel in kernels):
            return Invalid(f"products by {backend} were not measured on a GPU, only those of libraries")
        (predicted,) = predict_programs(kernel_model, [workload], device)
    except CostModelError as error:
        return Invalid(str(error))
    return Figure(
        latency_us=predicted.latency_us,
        source="predicted",
        interval_us=(predicted.low_us, predicted.high_us),
    )


def _partitioned(model: Model, priced: PricedFunction, backends: Sequence[str]) -> PartitionedModel:
    mix = with_runner_ups(choose_partition(priced))
    alone: dict[str, PartitionedFunction] = {}
    for name in backends:
        try:
            alone[name] = choose_partition(priced, only=name)
        except UnpriceableError:
            continue  # what it cannot run itself, the reference backend has no price for
    partition = partition_plans([mix])
    refused = refusals([priced])
    return PartitionedModel(
        model=model.name,
        source=model,
        fingerprint=workload_of(model.module["main"], "model", module=model.module).fingerprint,
        function=mix,
        chosen_by="searched",
        alone=alone,
        partition=partition,
        end_to_end={
            "mix": mix.sum_of_parts,
            **{name: each.sum_of_parts for name, each in alone.items()},
        },
        ratio_to_mix={},
        is_tie=False,
        sum_of_parts=mix.sum_of_parts,
        explanations=explanations_of(mix, partition),
        launch_penalty_us=0.0,
        max_relative_error=None,
        import_error=None,
        reference="",
        num_candidates_by_rule=priced.num_candidates_by_rule,
        num_invalid=sum(refused.values()),
        num_refused_by_reason=refused,
        num_states=mix.partition.states,
        new_measurements=0,
        reused_measurements=0,
    )


_FREE = Figure(latency_us=0.0, source="derived")

"""Price the functions of a model's stages for a GPU that is not here, from a model of measured kernels.

Nothing is built or run: each function is seen as the kernels that a GPU runs for it
(`cost_model.gpu.programs`). Every figure is a prediction, and says so. Checked in
tests/tuner/tuning/stage_costs/test_predict_stages.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cost_model.errors import CostModelError
from cost_model.gpu.devices import GpuDevice
from cost_model.gpu.kernel_model import GpuKernelModel
from cost_model.gpu.programs import ProgramPrediction, predict_programs
from tuner.errors import UnpriceableError
from tuner.frontend.model import Model
from tuner.graph.structure import Structure
from tuner.lowering.workload_of import workload_of
from tuner.plan import Figure, StagePlan, TiedParameter
from tuner.stages import Stage, StageFunction, build_stages, tied_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStages:
    """A model's stages with predicted costs.

    Attributes:
        stages: plain data, in order.
        tied: groups of parameters that are one and the same.
        is_known_device: whether kernels were measured on this model of GPU.
        doublings_out_of_range: how far the kernel that is least like those measured is beyond their sizes.
    """

    stages: tuple[StagePlan, ...]
    tied: tuple[tuple[TiedParameter, ...], ...]
    is_known_device: bool
    doublings_out_of_range: float


def predict_stages(
    model: Model, cuts: Sequence[int], kernel_model: GpuKernelModel, device: GpuDevice
) -> PredictedStages:
    """Cut the model, and predict each stage's forward, joint backward and split backward.

    Args:
        cuts: positions of bindings at which stages begin, from `cut_between` or `cut_after`.
        kernel_model: of kernels measured on GPUs.
        device: what the stages would run on.

    Raises:
        TunerError: the model cannot be cut so.
        UnpriceableError: a stage has an operator of which no kernel was measured on a GPU; names both.
    """
    stages = build_stages(model, cuts)
    known: dict[Structure, ProgramPrediction] = {}

    def predict(stage: Stage, function: StageFunction) -> Figure:
        structure = Structure(function.module)
        if structure not in known:
            workload = workload_of(function.module["main"], module=function.module)
            try:
                (known[structure],) = predict_programs(kernel_model, [workload], device)
            except CostModelError as error:
                raise UnpriceableError(f"{stage.name} cannot be predicted: {error}") from error
        found = known[structure]
        interval_us = found.low_us, found.high_us
        return Figure(latency_us=found.latency_us, source="predicted", interval_us=interval_us)

    plans = [
        stage.plan({name: predict(stage, each) for name, each in stage.functions().items()})
        for stage in stages
    ]
    return PredictedStages(
        stages=tuple(plans),
        tied=tied_groups(model, stages),
        is_known_device=all(each.is_known_device for each in known.values()),
        doublings_out_of_range=max((each.out_of_range for each in known.values()), default=0.0),
    )

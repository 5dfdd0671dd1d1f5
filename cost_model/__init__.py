"""Predict latencies, with intervals, from records alone; needs neither TVM nor torch.

A name is imported when it is first asked for (PEP 562), as those of `tessel` are: the tuner's kernels take
the register tile from this package, and processes that only do that need not load XGBoost. Checked in
tests/cost_model/test_public_names.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from records.lazy_names import names_on_demand

if TYPE_CHECKING:
    from cost_model.dataset import Dataset, Sample, load_dataset
    from cost_model.errors import CostModelError, CostModelFileError
    from cost_model.evaluation import SplitFigures, evaluate
    from cost_model.features import Query
    from cost_model.kernel_model import (
        KernelModel,
        Prediction,
        load_kernel_model,
    )
    from cost_model.kernel_training import train_kernel_model
    from cost_model.roofline import (
        DeviceSpeed,
        contradictions,
        device_speed,
        reached_speed,
        roofline_us,
        supported_speed,
    )
    from cost_model.stage_model import (
        StageFigures,
        StageModel,
        evaluate_stages,
        load_stage_model,
        load_stages,
        train_stage_model,
    )

__all__ = [
    "CostModelError",
    "CostModelFileError",
    "Dataset",
    "DeviceSpeed",
    "KernelModel",
    "Prediction",
    "Query",
    "Sample",
    "SplitFigures",
    "StageFigures",
    "StageModel",
    "contradictions",
    "device_speed",
    "evaluate",
    "evaluate_stages",
    "load_dataset",
    "load_kernel_model",
    "load_stage_model",
    "load_stages",
    "reached_speed",
    "roofline_us",
    "supported_speed",
    "train_kernel_model",
    "train_stage_model",
]

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these
    __getattr__ = names_on_demand(
        __name__,
        {
            "cost_model.dataset": "Dataset Sample load_dataset",
            "cost_model.errors": "CostModelError CostModelFileError",
            "cost_model.evaluation": "SplitFigures evaluate",
            "cost_model.features": "Query",
            "cost_model.kernel_model": "KernelModel Prediction load_kernel_model",
            "cost_model.kernel_training": "train_kernel_model",
            "cost_model.roofline": (
                "DeviceSpeed contradictions device_speed reached_speed roofline_us supported_speed"
            ),
            "cost_model.stage_model": (
                "StageFigures StageModel evaluate_stages load_stage_model load_stages train_stage_model"
            ),
        },
    )


def __dir__() -> list[str]:
    return __all__

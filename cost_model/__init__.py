"""Predict latencies, with intervals, from records alone; needs neither TVM nor torch.

A name is imported when it is first asked for (PEP 562), as those of `tessel` are: the tuner's kernels take
the register tile from this package, and processes that only do that need not load XGBoost. Checked in
tests/cost_model/test_public_names.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

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

_MODULE_BY_NAME = {
    "CostModelError": "cost_model.errors",
    "CostModelFileError": "cost_model.errors",
    "Dataset": "cost_model.dataset",
    "DeviceSpeed": "cost_model.roofline",
    "KernelModel": "cost_model.kernel_model",
    "Prediction": "cost_model.kernel_model",
    "Query": "cost_model.features",
    "Sample": "cost_model.dataset",
    "SplitFigures": "cost_model.evaluation",
    "StageFigures": "cost_model.stage_model",
    "StageModel": "cost_model.stage_model",
    "contradictions": "cost_model.roofline",
    "device_speed": "cost_model.roofline",
    "evaluate": "cost_model.evaluation",
    "evaluate_stages": "cost_model.stage_model",
    "load_dataset": "cost_model.dataset",
    "load_kernel_model": "cost_model.kernel_model",
    "load_stage_model": "cost_model.stage_model",
    "load_stages": "cost_model.stage_model",
    "reached_speed": "cost_model.roofline",
    "roofline_us": "cost_model.roofline",
    "supported_speed": "cost_model.roofline",
    "train_kernel_model": "cost_model.kernel_training",
    "train_stage_model": "cost_model.stage_model",
}

if not TYPE_CHECKING:  # or a type checker would take any misspelt name for one of these

    def __getattr__(name: str) -> object:
        if name not in _MODULE_BY_NAME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULE_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return __all__

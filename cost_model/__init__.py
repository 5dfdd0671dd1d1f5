"""Predict latencies, with intervals, from records alone; needs neither TVM nor torch."""

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

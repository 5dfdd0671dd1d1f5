"""Documents of `tessel cost-model`."""

from __future__ import annotations

import msgspec

from cost_model.evaluation import SplitFigures
from cost_model.gpu.devices import GpuDevice
from cost_model.gpu.kernel_model import GpuManifest
from cost_model.gpu.kernels import Family
from cost_model.gpu.typed.model import TypedManifest
from cost_model.kernel_model import Manifest
from cost_model.stage_model import StageFigures, StageManifest


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel cost-model train` made; no model of stages where the records hold too few."""

    model: str
    manifest: Manifest
    stage_manifest: StageManifest | None


class Evaluated(msgspec.Struct, frozen=True, kw_only=True):
    """Figures on what was held out, by split, and of stages where the records hold enough."""

    splits: dict[str, SplitFigures]
    stages: StageFigures | None


class PrintedPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's latency as predicted, and as measured where that is known.

    Attributes:
        backend: who runs the workload.
        settings: of that backend.
        predicted_us: the latency predicted.
        interval_us: ends of its 90 % interval.
        out_of_range: quantities far outside of what the model was trained on, the farthest first.
        measured_us: median measured latency; null where there is none.
    """

    backend: str
    settings: str
    predicted_us: float
    interval_us: tuple[float, float]
    out_of_range: tuple[str, ...]
    measured_us: float | None


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel cost-model predict` says of a workload."""

    workload: str
    predictions: tuple[PrintedPrediction, ...]


class PrintedStagePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """A stage's sum of parts, its corrected latency, its 90 % interval, and what it took."""

    plain_sum_us: float
    predicted_us: float
    interval_us: tuple[float, float]
    measured_us: float


class StagesPredicted(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel cost-model predict` says of a stage."""

    workload: str
    predictions: tuple[PrintedStagePrediction, ...]


class GpuTrained(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel cost-model train --gpu` made."""

    model: str
    manifest: GpuManifest


class TypedTrained(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel cost-model train --aiconfigurator DIR` made."""

    model: str
    manifest: TypedManifest


class GpuPredicted(msgspec.Struct, frozen=True, kw_only=True):
    """What `tessel cost-model predict --gpu DEVICE` says of a workload.

    Attributes:
        workload: its fingerprint.
        device: what is known of the GPU.
        family: what kind of kernel it is.
        predicted_us: the latency predicted.
        interval_us: ends of its 90 % interval.
        is_known_device: whether kernels of that device were trained on.
        doublings_out_of_range: how many doublings the kernel is beyond those trained on; 0 within.
        measured_us: median latency measured on that model of GPU; null where there is none.
    """

    workload: str
    device: GpuDevice
    family: Family
    predicted_us: float
    interval_us: tuple[float, float]
    is_known_device: bool
    doublings_out_of_range: float
    measured_us: float | None

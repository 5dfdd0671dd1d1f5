"""Pricing of a GPU that is not here, as commands share it: when they do, and the model of its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from scripts.terminal import console

if TYPE_CHECKING:
    from cost_model.gpu.devices import GpuDevice
    from cost_model.gpu.kernel_model import GpuKernelModel


class PredictingOptions(Protocol):
    """The options by which a GPU is priced from a model."""

    @property
    def price(self) -> str:
        """How candidates get their prices."""
        ...

    @property
    def target(self) -> str:
        """What they are priced for."""
        ...

    @property
    def cost_model(self) -> Path | None:
        """Folder of a trained model."""
        ...

    @property
    def records(self) -> str:
        """What one is trained on otherwise."""
        ...

    @property
    def seed(self) -> int:
        """Of training."""
        ...

    @property
    def threads(self) -> int | None:
        """Of training."""
        ...


def is_predicted_for_gpu(options: PredictingOptions) -> bool:
    """Say whether prices are for a GPU that is not here, from kernels measured on others.

    Raises:
        UnknownNameError: there is no such target.
    """
    if options.price != "model":
        return False
    from tuner.targets.resolution import measuring_obstacle, resolve_target

    target = resolve_target(options.target)
    return target.kind == "cuda" and measuring_obstacle(target) is not None


def gpu_model(options: PredictingOptions) -> GpuKernelModel:
    """Return the model of GPU kernels: the one named, or one trained on the records."""
    from cost_model.gpu.kernel_model import load_gpu_model
    from cost_model.gpu.training import load_gpu_samples, train_gpu_model
    from records import open_store

    if options.cost_model is not None:
        return load_gpu_model(options.cost_model)
    with open_store(options.records) as store:
        samples = load_gpu_samples(console.track(store.iterate(), "reading records"))
    with console.progress_bar(f"training on {len(samples)} kernels"):
        return train_gpu_model(samples, seed=options.seed, num_threads=options.threads)


def note_prediction(device: GpuDevice, kernel_model: GpuKernelModel) -> None:
    """Say on stderr that times are predicted, and from what."""
    manifest = kernel_model.manifest
    is_known = any(device.name in family.overheads_us for family in manifest.families.values())
    console.print_note(
        f"times are predicted for {device.name} from {manifest.num_samples} kernels measured on "
        + ("it and on other GPUs" if is_known else "other GPUs")
    )

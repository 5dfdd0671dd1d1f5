"""`tessel cost-model train`: train the cost model on records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.cost_model.gpu_kernels import train_gpu, train_typed
from scripts.commands.cost_model.samples import (
    DEFAULT_MODEL,
    SeedOption,
    ThreadsOption,
    load_kernel_samples,
    load_stage_samples,
)
from scripts.options.tuning_options import JsonOption, RecordsOption, check_writable_folder
from scripts.terminal import console
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from cost_model.stage_model import StageModel


def train(
    records: RecordsOption = DEFAULT_RECORDS,
    out: Annotated[Path, "Folder for the model."] = DEFAULT_MODEL,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    gpu: Annotated[bool, "Train on kernels measured on GPUs, to predict those of any GPU."] = False,
    aiconfigurator: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Train on aiconfigurator's tables of kernels by data type."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train on every usable record, and save the models of kernels and of stages with their manifests.

    Example: `tessel cost-model train --records sqlite:///out/records.db`
    """
    from cost_model.kernel_training import train_kernel_model
    from cost_model.stage_model import MANIFEST

    check_writable_folder(out)
    if aiconfigurator is not None:
        train_typed(aiconfigurator, out, seed, threads, json=json)
        return
    if gpu:
        train_gpu(records, out, seed, threads, json=json)
        return
    dataset = load_kernel_samples(records)
    with messages.bar(f"training on {len(dataset.samples)} samples"):
        model = train_kernel_model(dataset, seed=seed, num_threads=threads)
    stage_model, reason = _train_stages(records, seed, threads)
    (out / MANIFEST).unlink(missing_ok=True)  # An older correction would not be of these records.
    model.save(out)
    if stage_model is not None:
        stage_model.save(out)
    manifest = model.manifest
    if json:
        from scripts.documents.cost_models import Trained

        stages = None if stage_model is None else stage_model.manifest
        console.print_json(Trained(model=str(out), manifest=manifest, stage_manifest=stages))
        return
    console.print_line(
        f"trained on {manifest.num_samples} keys of {', '.join(manifest.backends)}"
        + (f" and {stage_model.num_samples} stages" if stage_model is not None else "")
        + f"; written to {out}"
    )
    if stage_model is None:
        messages.note(f"no model of stages: {reason}")


def _train_stages(url: str, seed: int, threads: int | None) -> tuple[StageModel | None, str]:
    """Return a model of the records' stages, or None and the reason why they do not suffice."""
    from cost_model.errors import CostModelError
    from cost_model.stage_model import train_stage_model

    try:
        return train_stage_model(load_stage_samples(url), seed=seed, num_threads=threads or 1), ""
    except CostModelError as error:
        return None, str(error)

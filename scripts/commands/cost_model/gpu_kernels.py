"""The models of GPU kernels: `tessel cost-model train --gpu` or `--aiconfigurator`, `predict --gpu`."""

from __future__ import annotations

from pathlib import Path

import typer

from scripts.terminal import console
from tessel.jobs.shown.formatting import format_us
from tessel.progress import messages


def train_gpu(records: str, out: Path, seed: int, threads: int | None, *, json: bool) -> None:
    """Train on the kernels that were measured on GPUs, and save the model."""
    from cost_model.gpu.training import load_gpu_samples, train_gpu_model
    from records import open_store

    with open_store(records) as store:
        samples = load_gpu_samples(messages.track(store.iterate(), "reading records"))
    with messages.bar(f"training on {len(samples)} samples"):
        model = train_gpu_model(samples, seed=seed, num_threads=threads)
    model.save(out)
    manifest = model.manifest
    if json:
        from scripts.documents.cost_models import GpuTrained

        console.print_json(GpuTrained(model=str(out), manifest=manifest))
        return
    devices = sorted({name for family in manifest.families.values() for name in family.overheads_us})
    console.print_line(
        f"trained on {manifest.num_samples} kernels ({', '.join(manifest.families)}) "
        f"of {', '.join(devices)}; written to {out}"
    )


def train_typed(folder: Path, out: Path, seed: int, threads: int | None, *, json: bool) -> None:
    """Train on tables of kernels by data type, and save the model."""
    from cost_model.gpu.typed.training import train_typed_model
    from records.files.aiconfigurator import read_tables

    tables = messages.track(read_tables(folder), "reading tables")
    model = train_typed_model(tables, seed=seed, num_threads=threads)
    model.save(out)
    manifest = model.manifest
    if json:
        from scripts.documents.cost_models import TypedTrained

        console.print_json(TypedTrained(model=str(out), manifest=manifest))
        return
    devices = sorted({name for kind in manifest.kinds.values() for name in kind.cells})
    console.print_line(
        f"trained on {manifest.num_samples} kernels ({', '.join(manifest.kinds)}) of {', '.join(devices)}; "
        f"written to {out}"
    )


def predict_gpu(fingerprint: str, device_name: str, folder: Path, records: str, *, json: bool) -> None:
    """Predict a workload of the records for a GPU, beside what was measured on that model of GPU."""
    import statistics

    from cost_model.gpu.devices import find_gpu
    from cost_model.gpu.kernel_model import GpuQuery, load_gpu_model
    from cost_model.gpu.kernels import kernel_of
    from cost_model.gpu.training import load_gpu_samples
    from records import open_store

    device, model = find_gpu(device_name), load_gpu_model(folder)
    with open_store(records) as store:
        found = [record for record in store.iterate() if record.workload.fingerprint.startswith(fingerprint)]
    if not found:
        raise typer.BadParameter(
            f"no measured workload has a fingerprint that begins with {fingerprint}; "
            "`tessel records list` shows them"
        )
    query = GpuQuery(kernel_of(found[0].workload), device)
    (prediction,) = model.predict([query])
    measured = [sample.latency_us for sample in load_gpu_samples(found) if sample.query == query]
    median_us = statistics.median(measured) if measured else None
    if json:
        from scripts.documents.cost_models import GpuPredicted

        document = GpuPredicted(
            workload=found[0].workload.fingerprint,
            device=device,
            family=query.kernel.family,
            predicted_us=prediction.latency_us,
            interval_us=(prediction.low_us, prediction.high_us),
            is_known_device=prediction.is_known_device,
            doublings_out_of_range=prediction.out_of_range,
            measured_us=median_us,
        )
        console.print_json(document)
        return
    row = [
        device.name,
        query.kernel.family,
        format_us(prediction.latency_us),
        f"{format_us(prediction.low_us)} to {format_us(prediction.high_us)}",
        "-" if median_us is None else format_us(median_us),
    ]
    console.print_table("", ["device", "kernel", "predicted", "90 % interval", "measured"], [row])
    if not prediction.is_known_device:
        messages.note(f"the model was trained on no kernel of {device.name}: its interval is wider")
    if prediction.out_of_range > 0:
        messages.note(f"out of range: {prediction.out_of_range:.1f} doublings beyond the kernels trained on")

"""`tessel cost-model predict`: predict the latency of a workload on each backend, or of a stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.cost_model.gpu_kernels import predict_gpu
from scripts.commands.cost_model.samples import (
    DEFAULT_MODEL,
    load_kernel_samples,
    load_stage_samples,
)
from scripts.options.tuning_options import JsonOption, RecordsOption
from scripts.terminal import console
from tessel.jobs.shown.formatting import format_us
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_model.stage_model import StageSample


def predict(
    fingerprint: Annotated[str, typer.Argument(help="Fingerprint of a workload in the records.")],
    model: Annotated[Path, "Folder of the model."] = DEFAULT_MODEL,
    records: RecordsOption = DEFAULT_RECORDS,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="A GPU to predict for, here or not, such as 'NVIDIA H200'."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Predict the latency of a workload on each backend, or of a stage, next to what was measured.

    Example: `tessel cost-model predict 4be2… --records sqlite:///out/records.db`
    """
    from cost_model.features import Query
    from cost_model.kernel_model import load_kernel_model

    if gpu is not None:
        predict_gpu(fingerprint, gpu, model, records, json=json)
        return
    stages = _stages_named(records, fingerprint)
    if stages:
        _predict_stages(stages, model, json=json)
        return
    loaded = load_kernel_model(model)
    dataset = load_kernel_samples(records)
    mine = [s for s in dataset.samples if s.query.workload.fingerprint.startswith(fingerprint)]
    if not mine:
        raise typer.BadParameter(
            f"no measured workload has a fingerprint that begins with {fingerprint}; "
            "`tessel records list` shows them"
        )
    measured = {(s.query.backend, s.query.settings): s.latency_us for s in mine}
    first = mine[0].query
    asked = [
        Query(
            workload=first.workload,
            backend=backend,
            settings=settings,
            num_threads=first.num_threads,
            speed=first.speed,
        )
        for backend, settings in sorted(measured.keys() | {(name, "") for name in loaded.manifest.backends})
    ]
    predictions = loaded.predict(asked)
    if json:
        from scripts.documents.cost_models import Predicted, PrintedPrediction

        rows = tuple(
            PrintedPrediction(
                backend=query.backend,
                settings=query.settings,
                predicted_us=prediction.latency_us,
                interval_us=(prediction.low_us, prediction.high_us),
                out_of_range=prediction.out_of_range,
                measured_us=measured.get((query.backend, query.settings)),
            )
            for query, prediction in zip(asked, predictions, strict=True)
        )
        console.print_json(Predicted(workload=first.workload.fingerprint, predictions=rows))
        return
    table = [
        [
            f"{query.backend} {query.settings}".strip(),
            format_us(prediction.latency_us),
            f"{format_us(prediction.low_us)} to {format_us(prediction.high_us)}",
            "-" if (found := measured.get((query.backend, query.settings))) is None else format_us(found),
        ]
        for query, prediction in zip(asked, predictions, strict=True)
    ]
    console.print_table("", ["backend", "predicted", "90 % interval", "measured"], table)
    outside = dict.fromkeys(name for prediction in predictions for name in prediction.out_of_range)
    if outside:
        console.print_line(f"out of range: {', '.join(outside)}; unlike anything in the training set")


def _predict_stages(found: Sequence[StageSample], folder: Path, *, json: bool) -> None:
    """Print what a stage's measured parts add up to, corrected, beside what it took."""
    from cost_model.stage_model import load_stage_model

    predictions = load_stage_model(folder).predict([sample.query for sample in found])
    if json:
        from scripts.documents.cost_models import PrintedStagePrediction, StagesPredicted

        rows = tuple(
            PrintedStagePrediction(
                plain_sum_us=sample.query.plain_us,
                predicted_us=each.latency_us,
                interval_us=(each.low_us, each.high_us),
                measured_us=sample.latency_us,
            )
            for sample, each in zip(found, predictions, strict=True)
        )
        console.print_json(StagesPredicted(workload=found[0].query.workload.fingerprint, predictions=rows))
        return
    table = [
        [
            ", ".join(sorted({name for name, _, _ in sample.query.part_latencies_us})),
            format_us(sample.query.plain_us),
            format_us(each.latency_us),
            f"{format_us(each.low_us)} to {format_us(each.high_us)}",
            format_us(sample.latency_us),
        ]
        for sample, each in zip(found, predictions, strict=True)
    ]
    console.print_table("", ["parts by", "plain sum", "predicted", "90 % interval", "measured"], table)


def _stages_named(url: str, fingerprint: str) -> list[StageSample]:
    return [
        each for each in load_stage_samples(url) if each.query.workload.fingerprint.startswith(fingerprint)
    ]

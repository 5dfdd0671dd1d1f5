"""`tessel cost-model`: train the model on records, evaluate it, and predict with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts import console
from scripts.command_app import CommandApp
from scripts.tuning_options import DEFAULT_RECORDS, RecordsOption, check_writable_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_model import Dataset, SplitFigures, StageFigures, StageModel
    from cost_model.stage_model import StageSample

app = CommandApp(
    no_args_is_help=True,
    help="Train, evaluate and query the cost model from records.\n\nExample: `tessel cost-model train`",
)

DEFAULT_MODEL = Path("out/cost_model")

_FIGURES = (
    ("num_samples", "keys"),
    ("median_ape", "median error"),
    ("mape", "MAPE"),
    ("p90_ape", "P90 error"),
    ("within_10", "within 10 %"),
    ("within_20", "within 20 %"),
    ("spearman", "Spearman"),
    ("regret", "regret"),
    ("choice_accuracy", "choice right"),
    ("coverage_90", "90 % covered"),
    ("noise_floor", "noise floor"),
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
SeedOption = Annotated[int, typer.Option(help="Seed of folds and trees.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads of the training; one for each idle core if left out. Changes no result."
    ),
]


@app.command("train")
def train(
    records: RecordsOption = DEFAULT_RECORDS,
    out: Annotated[Path, typer.Option(help="Folder for the model.")] = DEFAULT_MODEL,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Train on every usable record, and save the models of kernels and of stages with their manifests.

    Example: `tessel cost-model train --records sqlite:///out/records.db`
    """
    from cost_model import train_kernel_model
    from cost_model.stage_model import MANIFEST

    check_writable_folder(out)
    dataset = _dataset(records)
    with console.progress_bar(f"training on {len(dataset.samples)} samples"):
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
        console.print_note(f"no model of stages: {reason}")


@app.command("evaluate")
def evaluate(
    records: RecordsOption = DEFAULT_RECORDS,
    networks: Annotated[
        Path | None,
        typer.Option(help="JSON of network -> fingerprints, as `tessel records collect` writes it."),
    ] = None,
    min_latency_us: Annotated[float, typer.Option(help="Kernels below this are not counted.")] = 100.0,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate the model on held-out shapes, combinations, networks and stages.

    Example: `tessel cost-model evaluate --records sqlite:///out/records.db`
    """
    from cost_model import evaluate as evaluate_model

    dataset = _dataset(records)
    description = f"evaluating on {len(dataset.samples)} samples"
    with console.progress_bar(description) as update:
        figures = evaluate_model(
            dataset,
            networks=None if networks is None else _networks(networks),
            min_latency_us=min_latency_us,
            seed=seed,
            num_threads=threads,
            on_progress=lambda done, total: update(description, done, total),
        )
    stages, reason = _evaluate_stages(records, min_latency_us, seed)
    if json:
        from scripts.documents.cost_models import Evaluated

        console.print_json(Evaluated(splits=dict(figures), stages=stages))
        return
    rows = [[title, *(_cell(name, split) for split in figures.values())] for name, title in _FIGURES]
    console.print_table("On what was held out", ["figure", *figures], rows)
    if stages is None:
        console.print_note(f"no figures of stages: {reason}")
        return
    console.print_line()
    console.print_table(
        f"On {stages.num_samples} stages of operators that were held out",
        ["figure", "corrected", "plain sum"],
        [
            ["median error", f"{stages.median_ape:.1%}", f"{stages.plain_median_ape:.1%}"],
            ["MAPE", f"{stages.mape:.1%}", f"{stages.plain_mape:.1%}"],
            ["90 % covered", f"{stages.coverage_90:.1%}", "-"],
        ],
    )


@app.command("predict")
def predict(
    fingerprint: Annotated[str, typer.Argument(help="Fingerprint of a workload in the records.")],
    model: Annotated[Path, typer.Option(help="Folder of the model.")] = DEFAULT_MODEL,
    records: RecordsOption = DEFAULT_RECORDS,
    json: JsonOption = False,
) -> None:
    """Predict the latency of a workload on each backend, or of a stage, next to what was measured.

    Example: `tessel cost-model predict 4be2… --records sqlite:///out/records.db`
    """
    from cost_model import Query, load_kernel_model

    stages = _stages_named(records, fingerprint)
    if stages:
        _predict_stages(stages, model, json=json)
        return
    loaded = load_kernel_model(model)
    dataset = _dataset(records)
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
            console.format_us(prediction.latency_us),
            f"{console.format_us(prediction.low_us)} to {console.format_us(prediction.high_us)}",
            "-"
            if (found := measured.get((query.backend, query.settings))) is None
            else console.format_us(found),
        ]
        for query, prediction in zip(asked, predictions, strict=True)
    ]
    console.print_table("", ["backend", "predicted", "90 % interval", "measured"], table)
    outside = dict.fromkeys(name for prediction in predictions for name in prediction.out_of_range)
    if outside:
        console.print_line(f"out of range: {', '.join(outside)}; unlike anything in the training set")


def _train_stages(url: str, seed: int, threads: int | None) -> tuple[StageModel | None, str]:
    """Return a model of the records' stages, or None and the reason why they do not suffice."""
    from cost_model import CostModelError, train_stage_model

    try:
        return train_stage_model(_stages(url), seed=seed, num_threads=threads or 1), ""
    except CostModelError as error:
        return None, str(error)


def _evaluate_stages(url: str, min_latency_us: float, seed: int) -> tuple[StageFigures | None, str]:
    """Return figures of the records' stages, or None and the reason why they do not suffice."""
    from cost_model import CostModelError, evaluate_stages

    try:
        return evaluate_stages(_stages(url), min_latency_us=min_latency_us, seed=seed), ""
    except CostModelError as error:
        return None, str(error)


def _predict_stages(found: Sequence[StageSample], folder: Path, *, json: bool) -> None:
    """Print what a stage's measured parts add up to, corrected, beside what it took."""
    from cost_model import load_stage_model

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
            console.format_us(sample.query.plain_us),
            console.format_us(each.latency_us),
            f"{console.format_us(each.low_us)} to {console.format_us(each.high_us)}",
            console.format_us(sample.latency_us),
        ]
        for sample, each in zip(found, predictions, strict=True)
    ]
    console.print_table("", ["parts by", "plain sum", "predicted", "90 % interval", "measured"], table)


def _stages_named(url: str, fingerprint: str) -> list[StageSample]:
    return [each for each in _stages(url) if each.query.workload.fingerprint.startswith(fingerprint)]


def _stages(url: str) -> tuple[StageSample, ...]:
    from cost_model import load_stages
    from records import open_store

    with open_store(url) as store:
        return load_stages(store.iterate())


def _dataset(url: str) -> Dataset:
    from cost_model import load_dataset
    from records import open_store

    with open_store(url) as store:
        return load_dataset(store.iterate())


def _networks(path: Path) -> dict[str, list[str]]:
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]])
    except (OSError, msgspec.MsgspecError) as error:
        raise typer.BadParameter(
            f"{path} cannot be read as network -> fingerprints ({error}); "
            "`tessel records collect` writes such a file"
        ) from error


def _cell(name: str, split: SplitFigures) -> str:
    value = getattr(split, name)
    if value is None:
        return "-"
    if name in ("num_samples", "spearman"):
        return f"{value:.3g}" if name == "spearman" else str(value)
    return f"{value:.1%}"

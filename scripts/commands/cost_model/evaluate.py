"""`tessel cost-model evaluate`: how well the cost model predicts what was held out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scripts.commands.cost_model.samples import (
    SeedOption,
    ThreadsOption,
    load_kernel_samples,
    load_stage_samples,
)
from scripts.options.tuning_options import JsonOption, RecordsOption
from scripts.terminal import console
from tessel.progress import messages
from tuner.tuning.search.options import DEFAULT_RECORDS

if TYPE_CHECKING:
    from cost_model.evaluation import SplitFigures
    from cost_model.stage_model import StageFigures

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


def evaluate(
    records: RecordsOption = DEFAULT_RECORDS,
    networks: Annotated[
        Path | None, "JSON of network -> fingerprints, as `tessel records collect` writes it."
    ] = None,
    min_latency_us: Annotated[float, "Kernels below this are not counted."] = 100.0,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate the model on held-out shapes, combinations, networks and stages.

    Figures are of the records that are given; for the published ones, import the published kernels first.

    Example: `tessel cost-model evaluate --records sqlite:///out/records.db`
    """
    from cost_model.evaluation import evaluate as evaluate_model

    dataset = load_kernel_samples(records)
    description = f"evaluating on {len(dataset.samples)} samples"
    with messages.bar(description) as update:
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
        messages.note(f"no figures of stages: {reason}")
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


def _evaluate_stages(url: str, min_latency_us: float, seed: int) -> tuple[StageFigures | None, str]:
    """Return figures of the records' stages, or None and the reason why they do not suffice."""
    from cost_model.errors import CostModelError
    from cost_model.stage_model import evaluate_stages

    try:
        return evaluate_stages(load_stage_samples(url), min_latency_us=min_latency_us, seed=seed), ""
    except CostModelError as error:
        return None, str(error)


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

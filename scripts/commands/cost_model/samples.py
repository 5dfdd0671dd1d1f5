"""Options that the commands of the cost model share, and samples read from the records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cost_model.dataset import Dataset
    from cost_model.stage_model import StageSample

DEFAULT_MODEL = Path("out/cost_model")

SeedOption = Annotated[int, "Seed of folds and trees."]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads of the training; one for each idle core if left out. Changes no result."
    ),
]


def load_stage_samples(url: str) -> tuple[StageSample, ...]:
    """Return the measured stages of the records."""
    from cost_model.stage_model import load_stages
    from records import open_store

    with open_store(url) as store:
        return load_stages(store.iterate())


def load_kernel_samples(url: str) -> Dataset:
    """Return the measured kernels of the records."""
    from cost_model.dataset import load_dataset
    from records import open_store

    with open_store(url) as store:
        return load_dataset(store.iterate())

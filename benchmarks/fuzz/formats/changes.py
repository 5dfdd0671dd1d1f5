"""How many mutants a format has, and how its files are changed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.fuzz import mutation
from benchmarks.fuzz.campaign import Files

TEXT_COUNT = 100_000


MODEL_COUNT = 5_000


ROOT = Path(__file__).parents[3]


Change = Callable[[random.Random, bytes], bytes]


def change_by_suffix(**changes: Change) -> Callable[[random.Random, Files], Files]:
    table = {f".{suffix}": change for suffix, change in changes.items()}
    return lambda rng, files: mutation.changed_folder(rng, files, table)

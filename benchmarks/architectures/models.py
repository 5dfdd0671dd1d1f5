"""All architectures by name; `benchmarks.architectures.models:llama_3` is one for the command line."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.architectures.language import LANGUAGE, Built
from benchmarks.architectures.other import OTHER
from benchmarks.architectures.packaged import PACKAGED
from benchmarks.architectures.vision import VISION

ARCHITECTURES: dict[str, Callable[[], Built]] = {**LANGUAGE, **VISION, **OTHER}
"""Builder by name; each returns a module and example inputs."""

MODELS: dict[str, Callable[[], Built]] = {**ARCHITECTURES, **PACKAGED}
"""Those of packages as they are published as well."""


def __getattr__(name: str) -> Callable[[], Built]:
    """Return a builder by its name with underscores, as an argument of a command has it."""
    builder = MODELS.get(name.replace("_", "-"))
    if builder is None:
        raise AttributeError(f"there is no architecture {name!r}")
    return builder

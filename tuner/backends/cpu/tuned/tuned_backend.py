"""Shared base of the backends whose kernels take decisions that trials found.

The decisions are part of the backend's reference, so that a worker process builds the same kernels, and of
its settings and versions, so that records of tuned kernels, and of whole programs with such, are never taken
for those of others. Checked in tests/tuner/backends/cpu/tuned/test_tuned_backend.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self
from urllib.parse import urlencode

from tuner.backends.cpu.tuned.chosen_tiles import Chooser, ChosenTiles, KernelList
from tuner.backends.cpu.tuned.families import OwnKernel
from tuner.backends.kernel_version import CpuKernels
from tuner.backends.protocol import Backend
from tuner.graph.relax_types import IRModule
from tuner.targets.target import Target


class TunedKernels(CpuKernels, ABC):
    """A backend whose kernels take decisions.

    Attributes:
        computes: operators that its kernels are for; what else lies in a part, another's kernels may run.
        chosen: decisions about its kernels.
        chooser: what every kernel passes that it writes: the same, or a list.
    """

    computes: ClassVar[frozenset[str]]

    def __init__(self, tiles: str = "") -> None:
        """Take decisions as `ChosenTiles` writes them.

        Raises:
            ValueError: the text is something else, or names what is no candidate of a kernel.
        """
        self.chosen = ChosenTiles.parse(tiles)
        self.chooser: Chooser = self.chosen
        self.settings = f"tiles={self.chosen.digest}" if self.chosen else ""

    @property
    def reference(self) -> str:
        """Name, and decisions where there are any."""
        return f"{self.name}?{urlencode({'tiles': self.chosen.text})}" if self.chosen else self.name

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return the version of its kernels, and which decisions they take."""
        tiles = ((f"{self.name}-tiles", self.chosen.digest),) if self.chosen else ()
        return (*super().versions(), *tiles)

    def with_tiles(self, chosen: ChosenTiles) -> Self:
        """Return the backend with those of some decisions that are about its kernels."""
        return type(self)(chosen.of_backend(self.name).text)

    @abstractmethod
    def lower(self, module: IRModule, functions: Sequence[str], target: Target) -> IRModule:
        """Return the module with each function as kernels, which all pass `chooser`."""

    def kernels_of(self, module: IRModule, functions: Sequence[str], target: Target) -> tuple[OwnKernel, ...]:
        """Return the kernels that `lower` writes for some functions, one for each call."""
        listing, seen = type(self)(), KernelList()
        listing.chooser = seen
        listing.lower(module, functions, target)
        return tuple(seen.kernels)


def tiles_of(backends: Sequence[Backend]) -> ChosenTiles:
    """Return the decisions that some backends take, all together."""
    return ChosenTiles(
        {
            name: decisions
            for each in backends
            if isinstance(each, TunedKernels)
            for name, decisions in each.chosen.decisions.items()
        }
    )


def with_chosen_tiles(backends: Sequence[Backend], chosen: ChosenTiles) -> tuple[Backend, ...]:
    """Return the backends, of which those with kernels of our own take decisions; others are as they were."""
    if not chosen:
        return tuple(backends)
    return tuple(each.with_tiles(chosen) if isinstance(each, TunedKernels) else each for each in backends)

"""Decisions that a backend builds its kernels with, by kernel, as text that travels with its reference.

A backend that is told decisions passes every kernel that it writes through `ChosenTiles.applied`; who wants
to know which kernels a program has passes a `KernelList` in its place, so that both see the same ones.
Checked in tests/tuner/backends/cpu/tuned/test_chosen_tiles.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import msgspec

from tuner.backends.cpu.tuned.families import (
    BACKEND_BY_FAMILY,
    Decisions,
    OwnKernel,
    family_of,
    space_of,
)

_Kernel = TypeVar("_Kernel", bound=OwnKernel)


@dataclass(frozen=True)
class ChosenTiles:
    """Decisions by the name of a kernel; kernels that are not named take those of their rule."""

    decisions: Mapping[str, Decisions] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        for name, chosen in self.decisions.items():
            if space_of(name).row_of(chosen) is None:
                raise ValueError(
                    f"{dict(chosen)} is no candidate of kernel {name!r}; tune it again with this version"
                )

    def __bool__(self) -> bool:
        return bool(self.decisions)

    @property
    def text(self) -> str:
        """All of it as text, which `parse` reads; empty where nothing is chosen."""
        return msgspec.json.encode(self.decisions, order="sorted").decode() if self.decisions else ""

    @property
    def digest(self) -> str:
        """Name the choice by 16 hexadecimal digits; empty where nothing is chosen."""
        return hashlib.blake2b(self.text.encode(), digest_size=8).hexdigest() if self.decisions else ""

    def of_backend(self, backend: str) -> ChosenTiles:
        """Return the decisions about kernels that a backend runs."""
        return ChosenTiles(
            {
                name: chosen
                for name, chosen in self.decisions.items()
                if BACKEND_BY_FAMILY[family_of(name)] == backend
            }
        )

    def applied(self, kernel: _Kernel) -> _Kernel:
        """Return a kernel with its decisions."""
        chosen = self.decisions.get(kernel.name)
        if not chosen:
            return kernel
        made = kernel.with_decisions(chosen)
        assert isinstance(made, type(kernel)), "a kernel keeps its family"
        return made

    @classmethod
    def parse(cls, text: str) -> ChosenTiles:
        """Read what `text` wrote.

        Raises:
            ValueError: it is something else, or names what is no candidate of a kernel.
        """
        if not text:
            return cls()
        try:
            return cls(msgspec.json.decode(text, type=dict[str, dict[str, int]]))
        except msgspec.DecodeError as error:
            raise ValueError(
                f"tiles {text[:80]!r} are not written as JSON of decisions by kernel ({error})"
            ) from error


class KernelList:
    """Takes down every kernel that a backend writes, and changes none.

    Attributes:
        kernels: in the order in which they were written.
    """

    def __init__(self) -> None:
        self.kernels: list[OwnKernel] = []

    def applied(self, kernel: _Kernel) -> _Kernel:
        """Take a kernel down."""
        self.kernels.append(kernel)
        return kernel


Chooser: TypeAlias = ChosenTiles | KernelList
"""What every kernel that a backend writes passes through."""

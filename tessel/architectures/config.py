"""Values of a config file: each asked for by the names that it may have, checked, and refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tessel.documents import read_document
from tessel.errors import DocumentError, shown
from tessel.profiles.figures import decode_json, refusal

MAX_COUNT = 10**8
"""Largest extent of a config; vocabularies have less than a million tokens, contexts ten million."""


class Config:
    """The keys of one config, and the file for messages."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        """Keep the values.

        Args:
            values: as JSON gave them.
        """
        self._values = values
        self.path = path

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Return a whole number under the first of the names that the config has.

        Raises:
            DocumentError: there is none and no default, or it is no such number.
        """
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
                raise self.refusal(
                    f"{name} is {shown(value)}", f"give a whole number from {least} to {MAX_COUNT}"
                )
            return value
        if default is None:
            raise self.refusal(f"it has no {names[0]}", "give the config.json of the model, unchanged")
        return default

    def flag(self, *names: str, default: bool) -> bool:
        """Return a truth value under the first of the names that the config has.

        Raises:
            DocumentError: it is none.
        """
        for name in names:
            value = self._values.get(name)
            if isinstance(value, bool):
                return value
            if value is not None:
                raise self.refusal(f"{name} is {shown(value)}", "write true or false")
        return default

    def text(self, name: str) -> str:
        """Return a text, empty where the config has none."""
        value = self._values.get(name)
        return value if isinstance(value, str) else ""

    def words(self, name: str) -> tuple[str, ...]:
        """Return a list of texts, empty where the config has none."""
        return tuple(str(each) for each in self._list(name))

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return a list of whole numbers, empty where the config has none.

        Raises:
            DocumentError: it holds something else.
        """
        found = self._list(name)
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in found):
            raise self.refusal(f"{name} is {shown(found)}", "write a list of whole numbers")
        return tuple(found)

    def has(self, name: str) -> bool:
        """Whether the config gives a value."""
        return self._values.get(name) is not None

    def inner(self, name: str) -> Config | None:
        """Return a config within this one; None where there is none."""
        value = self._values.get(name)
        return Config(value, self.path) if isinstance(value, dict) else None

    def filled(self, **defaults: int) -> Config:
        """Return the config with values for keys that it leaves out."""
        return Config({**defaults, **self._values}, self.path)

    def refusal(self, problem: str, remedy: str) -> DocumentError:
        """Return the error of a value that cannot be used."""
        return refusal(self.path, "", problem, remedy)

    def _list(self, name: str) -> list[Any]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.refusal(f"{name} is {shown(value)}", "write a list")
        return value


def read_config(path: Path) -> Config:
    """Read a config file; a folder stands for the `config.json` in it.

    Raises:
        DocumentError: it cannot be read, or is no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    return Config(decode_json(read_document(file), dict[str, Any], file), file)


def is_config(text: bytes) -> bool:
    """Whether a text is a JSON object that names the type of a model."""
    try:
        keys = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return "model_type" in keys

"""Public names of a package that are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping


def names_on_demand(package: str, names_by_module: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__`, which imports the module that has a name.

    Args:
        package: its `__name__`.
        names_by_module: the names that each module has, separated by spaces, by the module's full name.
    """
    modules = {name: module for module, names in names_by_module.items() for name in names.split()}

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return find

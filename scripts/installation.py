"""Installation advice that fits how the project was installed: from a clone or from a wheel.

A clone has `constraints.txt` and a Makefile; a wheel has neither, and says in its metadata what it needs.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PROJECT = "tessel-tuner"
ROOT = Path(__file__).resolve().parent.parent


def is_clone() -> bool:
    """Whether this is a clone of the repository, not an installed wheel."""
    return all((ROOT / name).is_file() for name in ("pyproject.toml", "constraints.txt", "Makefile"))


def install(*requirements: str, again: bool = False) -> str:
    """Return the command that installs distributions.

    Args:
        requirements: what pip is given, such as `numpy>=2.1`.
        again: whether to replace what is there.
    """
    flags = " --force-reinstall" * again + " -c constraints.txt" * is_clone()
    return f"python -m pip install{flags} {' '.join(map(_quoted, requirements))}"


def install_extra(extra: str) -> str:
    """Return the command that installs what an extra brings."""
    return (
        f"python -m pip install -c constraints.txt -e '.[{extra}]'"
        if is_clone()
        else install(f"{PROJECT}[{extra}]")
    )


def install_all() -> str:
    """Return the command that installs everything that is required."""
    return "make tune installs it" if is_clone() else install(*_required())


def install_project() -> str:
    """Return the command that installs this project itself."""
    if is_clone():
        return "python -m pip install -c constraints.txt -e ."
    return f"install its wheel: {_install_wheel()}"


def other_python() -> str:
    """Return how to come to a Python that this project is tested with."""
    if is_clone():
        return "make clean; make PYTHON=python3.12 test"
    return f"python3.12 -m venv new, and in there: {_install_wheel()}"


def _install_wheel() -> str:
    """Return the command that installs this project from its wheel: no registry has it."""
    return f"python -m pip install {PROJECT.replace('-', '_')}-*.whl"


def _required() -> list[str]:
    """Return the distributions that this platform needs, extras left out."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(PROJECT) or []
    except importlib.metadata.PackageNotFoundError:
        return [PROJECT]
    found = [requirement for requirement in map(Requirement, lines) if is_required(requirement)]
    return [f"{requirement.name}{requirement.specifier}" for requirement in found]


def is_for_this_platform(requirement: Requirement, extra: str) -> bool:
    """Whether an extra brings it here: some distributions have no builds for this system."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def is_required(requirement: Requirement) -> bool:
    """Whether this platform needs it without any extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _quoted(requirement: str) -> str:
    return requirement if requirement.replace("-", "").isalnum() else f"'{requirement}'"

"""Parts of a rule: conditions on a command line, and why an option then has no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What one command was given.

    Attributes:
        given: the options that were written, by their long name; a flag by the name it was turned by, so that
            `--train/--infer` is one of the two.
        values: the value of every option by its long name, and of every argument by its name in Python.
    """

    given: frozenset[str]
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that a command line may say.

    Attributes:
        text: as it reads after "with" or "without", such as `--price active`.
        holds: whether a command line says so.
    """

    text: str
    holds: Callable[[CommandLine], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When an option has no effect.

    Attributes:
        needs: at least one of these must hold; nothing is needed where there is none.
        excludes: none of these may hold.
        why: what makes the option ignored, as a clause.
        remedy: what to do, beside leaving the option out; nothing else if empty.
    """

    needs: tuple[Condition, ...] = ()
    excludes: tuple[Condition, ...] = ()
    why: str
    remedy: str = ""

    def problem(self, option: str, line: CommandLine) -> str | None:
        """Return why the option has no effect on this command line, or None where it has."""
        found = next((condition for condition in self.excludes if condition.holds(line)), None)
        if found is not None:
            place = f"with {found.text}"
        elif self.needs and not any(condition.holds(line) for condition in self.needs):
            place = f"without {either(self.needs)}"
        else:
            return None
        if not self.remedy:
            remedy = (
                "leave one out" if found is not None and found.text in line.given else f"leave {option} out"
            )
        else:
            remedy = f"{self.remedy}, or leave {option} out"
        return f"{option} has no effect {place}, since {self.why}; {remedy}"


def either(conditions: tuple[Condition, ...]) -> str:
    """Return conditions as they read after "with" or "without", such as `--train or --infer`."""
    *first, last = [condition.text for condition in conditions]
    return f"{', '.join(first)} or {last}" if first else last


def given(*options: str) -> tuple[Condition, ...]:
    """Return one condition for each option: that it was written."""
    return tuple(map(_is_given, options))


def _is_given(option: str) -> Condition:
    return Condition(option, lambda line: option in line.given)


def valued(option: str, *values: object) -> Condition:
    """Return the condition that an option, written or by default, has one of these values."""
    text = f"{option} {' or '.join(map(str, values))}"
    return Condition(text, lambda line: line.values.get(option) in values)


PICTURES = (".svg", ".png", ".pdf")
"""Endings of what is drawn once, without a page around it."""


def written_as(option: str, *suffixes: str) -> Condition:
    """Return the condition that an option names a file with one of these endings."""

    def holds(line: CommandLine) -> bool:
        out = line.values[option]
        return out is not None and Path(str(out)).suffix in suffixes

    return Condition(f"{option} with one of {', '.join(suffixes)}", holds)

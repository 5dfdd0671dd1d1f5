"""Options by name, as a caller writes them, made into the one value that a job takes."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from tessel.errors import UsageError

_Options = TypeVar("_Options")


def options_of(kind: type[_Options], named: Mapping[str, Any]) -> _Options:
    """Return the options of a job.

    Args:
        kind: a dataclass.
        named: values of its fields by name.

    Raises:
        UsageError: there is no such option, or one is missing; says which comes near.
    """
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]  # a dataclass, as the caller says
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? There are" if near else "there are"
            raise UsageError(f"there is no option {name}; {hint} {', '.join(known)}")
    missing = [
        name
        for name, each in known.items()
        if each.default is MISSING and each.default_factory is MISSING and name not in named
    ]
    if missing:
        raise UsageError(f"the option {missing[0]} is missing; give {missing[0]}=…")
    return kind(**named)


def with_signature(job: Callable[..., Any], kind: type) -> None:
    """Let `help` and completion show a job's options in place of `**options`."""
    own = inspect.signature(job)
    first = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=each.type,
        )
        for each in fields(kind)
    ]
    progress = inspect.Parameter("progress", inspect.Parameter.KEYWORD_ONLY, default=True, annotation="bool")
    vars(job)["__signature__"] = own.replace(parameters=[*first, *named, progress])

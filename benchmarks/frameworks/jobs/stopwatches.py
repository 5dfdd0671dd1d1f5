"""Stopwatches around functions, against which what a framework's own timers say is held."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Stopwatches:
    """Milliseconds of each call, by a name.

    Attributes:
        taken_ms: by name, in order of the calls.
    """

    def __init__(self) -> None:
        self.taken_ms: dict[str, list[float]] = defaultdict(list)

    def around(self, function: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        """Return a function that times another, under a name that its arguments give."""

        def timed(*arguments: Any, **options: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                taken = (time.perf_counter() - begun) * 1e3
                self.taken_ms[name(*arguments, **options)].append(round(taken, 3))

        return timed

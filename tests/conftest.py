"""The processes of the suite share a machine, at times with other work: none is slowed, or failed, by that.

In each, libraries run on one thread. pytest-xdist starts as many processes as there are cores, and threads of
OpenMP spin where they wait for one another: with two in each process, a small network of torch is ten times
slower. Whatever measures, and each rank, sets the threads of its own processes. No example of Hypothesis has
a deadline, and each run draws the same ones: what passed once passes again. New ones are drawn by
`pytest --hypothesis-profile explore`.

Sessions measure for a tenth of the usual time: no test says how fast a program is, and a decision between two
is right by its record, whatever that says.

Folders with long files come first: a long one at the end would keep one core busy and the others idle. What
is imported while tests are collected, with torch and TVM millions of objects, is no garbage: none is looked
for until then, and later not among these. Nor are torch's operators looked through anew for each model that
is exported, some thirty times, and no trace of its exports is written.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, settings

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile the project

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # what a shell's `&` does, and every child inherits
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()

_LOADED = [HealthCheck.too_slow]  # measures the machine's load
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=_LOADED)
settings.register_profile("explore", deadline=None, suppress_health_check=_LOADED)
settings.load_profile("repeatable")

_LONG = ("tuner", "software_gpu", "scripts", "cost_model", "test_fuzzing.py")
"""Folders, and files beside them, whose files take longest."""


def pytest_collection_finish() -> None:
    _measure_briefly()
    _export_briefly()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        folder = item.path.relative_to(root).parts[0]
        return _LONG.index(folder) if folder in _LONG else len(_LONG)

    items.sort(key=place)


class _Untyped(type):
    """What torch writes types of functions with: some ten thousand for a model, which nobody reads."""

    def __getitem__(cls, types: object) -> type:
        return cls

    def __instancecheck__(cls, value: object) -> bool:
        return callable(value)


class _Function(metaclass=_Untyped):
    """Any function."""


def _export_briefly() -> None:
    exporting = sys.modules.get("torch._export.utils")
    if exporting is not None:  # else nothing that was collected exports
        find = exporting._materialize_cpp_cia_ops  # which finds the same: no test registers such operators
        exporting._materialize_cpp_cia_ops = functools.cache(find)
        trace = logging.getLogger("torch.__trace")
        trace.handlers.clear()
        trace.propagate = True  # else pytest has a handler for it, for which torch writes
        sys.modules["torch._ops"].Callable = _Function


def _measure_briefly() -> None:
    request = sys.modules.get("tuner.measuring.request")
    if request is not None:  # else nothing that was collected measures
        usual = request.DEFAULT_LIMITS
        brief = msgspec.structs.replace(usual.timing, budget_s=usual.timing.budget_s / 10)
        for field, value in (("timing", brief), ("race_s", usual.race_s / 10)):
            object.__setattr__(usual, field, value)  # the default of many functions

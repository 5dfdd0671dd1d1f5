"""Logs of training jobs, told apart by their timers.

torchtitan's log has whole steps alone, and is refused with what to do instead. Checked in
tests/tessel/profiles/traces/test_logs.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from tessel.profiles.figures import refusal
from tessel.profiles.reading import Reading
from tessel.profiles.traces.deepspeed_log import is_deepspeed_log, read_deepspeed_log
from tessel.profiles.traces.megatron_log import is_megatron_log, read_megatron_log

_TORCHTITAN = re.compile(r"step:\s*[0-9]+.{1,200}tps:\s*[0-9]")


def is_log(text: str) -> bool:
    """Whether a text is the log of a job of a known framework."""
    return is_megatron_log(text) or is_deepspeed_log(text) or _TORCHTITAN.search(text) is not None


def read_log(path: Path, text: bytes) -> Reading:
    """Read the timers of a job's log.

    Raises:
        DocumentError: it has none of single stages or micro-batches.
    """
    lines = text.decode()
    if is_megatron_log(lines):
        return read_megatron_log(path, lines)
    if is_deepspeed_log(lines):
        return read_deepspeed_log(path, lines)
    raise refusal(
        path,
        "",
        "it has whole steps alone, no times of stages",
        "trace with torchtitan's profiling.enable_profiling (0.2.2) or profiler.enable_profiling, and give "
        "the folder of a step's traces",
    )

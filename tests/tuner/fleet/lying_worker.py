"""A machine of a fleet that answers tasks with what it likes: a preload of Dask workers.

What it answers is a document in the file that `LIE` names, taken as it is; tasks are carried out where there
is no such file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from tuner.fleet import device_tasks
from tuner.fleet.documents import Answer, Request

LIE = "TESSEL_LIE"
"""Environment variable: path of a file with MessagePack: the list that a task returns, or another value."""

STALL = "stall"
"""What is no answer: the machine goes on, and ends nothing while the file is there, and `begun` beside it."""

_honest = device_tasks.carry_out


def carry_out(document: bytes, *arrays: bytes) -> Any:
    """Return the lie, or what the task asks for."""
    path = Path(os.environ[LIE])
    if not path.exists():
        return _honest(document, *arrays)
    said = msgspec.msgpack.decode(path.read_bytes())
    if said == STALL:
        path.with_name("begun").touch()
        while path.exists():
            time.sleep(0.05)
        path.with_name("begun").unlink()
    asked = msgspec.msgpack.decode(document, type=Request).asked
    return tuple(_as_asked(each, asked) for each in said) if isinstance(said, list) else said


def _as_asked(said: Any, asked: str) -> Any:
    """Let an answer that names no request name the one that was asked."""
    try:
        answer = msgspec.msgpack.decode(said, type=Answer)
    except (msgspec.MsgspecError, TypeError):
        return said
    return msgspec.msgpack.encode(Answer(asked=answer.asked or asked, result=answer.result))


def dask_setup(worker: object) -> None:
    """Take the place of what carries tasks out; Dask calls this in the worker alone."""
    device_tasks.carry_out = carry_out

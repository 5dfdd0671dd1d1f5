"""Results of architectures in a file, so that nothing is compared twice and an interrupted run goes on.

Each architecture is checked in a process of its own, with a time limit for each step, so that a crash or an
endless search is a result as well. The child is forked: importing torch, TVM and transformers takes longer
than most architectures.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.architectures.check import STEPS, check
from benchmarks.architectures.finding import Finding
from benchmarks.architectures.models import MODELS


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one architecture.

    Attributes:
        parameters: number of its weights.
        operators: of the imported program.
        torch_calls: distinct operators that stay calls of torch.
        import_cpu_s: processor time of the import, with the export.
        findings: by step.
    """

    parameters: int = 0
    operators: int = 0
    torch_calls: tuple[str, ...] = ()
    import_cpu_s: float = 0.0
    findings: dict[str, Finding] = {}


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    """What a child reports of one step."""

    step: str
    size: dict[str, Any]
    finding: Finding


def load_results(path: Path) -> dict[str, Row]:
    """Return the rows of a file by name of the architecture; none where it does not exist."""
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Row]) if path.exists() else {}


def save_results(path: Path, rows: dict[str, Row]) -> None:
    """Write rows to a file, in the order of the list of architectures."""
    ordered = {name: rows[name] for name in MODELS if name in rows}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(ordered)) + b"\n")


def check_all(
    names: Iterable[str], steps: Sequence[str], known: dict[str, Row], *, limit_s: float, again: bool = False
) -> Iterator[tuple[str, Row]]:
    """Check the steps that are not known yet, and yield each architecture's row after each of them.

    Args:
        names: of architectures.
        steps: some of `STEPS`.
        known: rows by name of what was checked before.
        limit_s: longest that one step may take.
        again: whether steps that are not equal count as not known.
    """
    for name in names:
        row = known.get(name, Row())
        settled = {step for step, finding in row.findings.items() if not again or finding.outcome == "equal"}
        missing = [step for step in steps if step not in settled]
        if not missing:
            yield name, row
            continue
        for step, size, finding in _in_child(name, missing, limit_s):
            row = msgspec.structs.replace(row, **size, findings={**row.findings, step: finding})
            yield name, row


def _in_child(
    name: str, steps: Sequence[str], limit_s: float
) -> Iterator[tuple[str, dict[str, Any], Finding]]:
    """Check an architecture in a process of its own; what it does not tell in time is refused."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(sender, name, tuple(steps)))
    process.start()
    sender.close()
    waiting = [step for step in STEPS if step in steps]
    try:
        for message in _messages(receiver, limit_s):
            waiting.remove(message.step)
            yield message.step, message.size, message.finding
        if waiting:
            process.join(1)
            told = "it takes too long" if process.is_alive() else f"it ends with {process.exitcode}"
            yield waiting[0], {}, Finding(outcome="refused", reason=told)
    finally:
        process.kill()
        process.join()


def _messages(receiver: Connection, limit_s: float) -> Iterator[_Message]:
    deadline = time.monotonic() + limit_s
    while receiver.poll(max(0.0, deadline - time.monotonic())):
        try:
            yield msgspec.json.decode(receiver.recv_bytes(), type=_Message)
        except EOFError:
            return
        deadline = time.monotonic() + limit_s


def _work(sender: Connection, name: str, steps: Sequence[str]) -> None:
    for step, size, finding in check(name, MODELS[name], steps):
        sender.send_bytes(msgspec.json.encode(_Message(step=step, size=asdict(size), finding=finding)))
    sender.close()

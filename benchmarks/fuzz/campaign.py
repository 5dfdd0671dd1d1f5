"""Read mutants of a format in workers, and report what became of each.

A worker is forked for a run of mutants; when one ends it, the next goes on after that mutant. Limits are of
processor time and memory, and audit hooks watch for code that a reader runs. Checked in
tests/test_fuzzing.py.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz.mutation import MARKER

TIME_LIMIT_S = 5


MEMORY_LIMIT_BYTES = 2**30


SILENCE_S = 900.0
"""Seconds without any mutant done after which a worker is given up; only one that sleeps takes them."""


MAX_MESSAGE = 5000


_WATCHED = frozenset(
    (
        *(
            "os.exec",
            "os.posix_spawn",
            "os.spawn",
            "os.startfile",
            "os.system",
            "pickle.find_class",
            "pty.spawn",
        ),
        *("socket.connect", "webbrowser.open", "marshal.loads.code"),
    )
)
"""Events of Python's audit hooks that no reader causes."""


Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format of files.

    Attributes:
        name: for people.
        count: mutants of a whole run.
        samples: makes valid files to start from, each a folder's files by name.
        change: makes a mutant of one.
        read: reads the files in a folder, as the commands do; raises what they would print.
        own_errors: errors that a reader may raise.
        may_start: whether reading starts processes and opens connections to them by itself.
    """

    name: str
    count: int
    samples: Callable[[], list[Files]]
    change: Callable[[random.Random, Files], Files]
    read: Callable[[Path], None]
    own_errors: tuple[type[Exception], ...]
    may_start: bool = False


@dataclass(slots=True)
class Report:
    """What became of the mutants of one format."""

    name: str
    count: int = 0
    read: int = 0
    refused: int = 0
    findings: dict[int, str] = field(default_factory=dict)
    longest_s: float = 0.0
    most_bytes: int = 0
    processor_s: float = 0.0


class CodeRunError(BaseException):
    """Say that a reader ran code; not an `Exception`, so that no reader catches it."""


def fuzz(
    form: Format, *, seed: int, count: int, on_progress: Callable[[int], None] = lambda _: None
) -> Report:
    """Read so many mutants of a format, from a seed on, and return what became of them."""
    report = Report(form.name)
    samples = form.samples()
    Path(MARKER).unlink(missing_ok=True)
    at = seed
    while at < seed + count:
        at = _run_worker(form, samples, range(at, seed + count), report, on_progress)
    return report


def make_mutant(form: Format, samples: list[Files], seed: int) -> Files:
    """Return the files of a seed."""
    rng = random.Random(f"{form.name} {seed}")
    return form.change(rng, rng.choice(samples))


def _run_worker(
    form: Format, samples: list[Files], seeds: range, report: Report, on_progress: Callable[[int], None]
) -> int:
    """Fork a worker for the seeds, take what it says, and return the first seed that it did not get to."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _work(form, samples, seeds, writing)
    os.close(writing)
    done = seeds.start
    with os.fdopen(reading, "rb") as stream:
        for line in _lines(stream):
            outcome = json.loads(line)
            report.count += 1
            report.longest_s = max(report.longest_s, outcome["s"])
            report.processor_s += outcome["s"]
            report.most_bytes = max(report.most_bytes, outcome["bytes"])
            report.read += outcome["read"]
            report.refused += outcome["refused"]
            if outcome["finding"]:
                report.findings[outcome["seed"]] = outcome["finding"]
            done = outcome["seed"] + 1
            on_progress(report.count)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if done == seeds.stop:
        return done
    report.count += 1
    report.findings[done] = _ended(status)
    return done + 1


def _lines(stream: Any) -> Iterator[bytes]:
    """Yield the lines of a pipe until it is closed, or nothing has come for a long time."""
    held = b""
    while select.select([stream], [], [], SILENCE_S)[0]:
        more = os.read(stream.fileno(), 1 << 16)
        if not more:
            return
        *lines, held = (held + more).split(b"\n")
        yield from lines


def _ended(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGPROF:
            return f"takes more than {TIME_LIMIT_S} s"
        if number == signal.SIGKILL:
            return "hangs without using the processor, or was killed for its memory"
        return f"crashes with {signal.Signals(number).name}"
    return f"ends the process with status {os.WEXITSTATUS(status)}"


def _work(form: Format, samples: list[Files], seeds: range, writing: int) -> None:
    """Read the mutants of the seeds, say of each what became of it, and end the process."""
    try:
        _limit()
        if not form.may_start:
            sys.addaudithook(_watch)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        with tempfile.TemporaryDirectory(prefix="tessel-fuzz-") as root:
            for seed in seeds:
                outcome = _try(form, make_mutant(form, samples, seed), Path(root) / "files")
                os.write(writing, json.dumps({"seed": seed, **outcome}).encode() + b"\n")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sizes = dict(
        line.split(":")
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Vm")
    )
    for kind, name in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
        most = int(sizes[name].split()[0]) * 1024 + MEMORY_LIMIT_BYTES
        resource.setrlimit(kind, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in _WATCHED or (event == "subprocess.Popen"):
        raise CodeRunError(f"{event} {arguments!r}"[:200])


def _try(form: Format, files: Files, folder: Path) -> dict[str, object]:
    """Return what became of one mutant."""
    _write(files, folder)
    started = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, TIME_LIMIT_S)
    finding = ""
    is_read = is_refused = False
    try:
        form.read(folder)
        is_read = True
    except form.own_errors as error:
        is_refused = True
        finding = _fault_of(error)
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        finding = f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}:{place.lineno})"
        if os.environ.get("FUZZ_VERBOSE"):
            traceback.print_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    if os.path.exists(MARKER):
        finding = "runs code: the marker appeared"
        os.unlink(MARKER)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "s": round(time.process_time() - started, 4),
        "bytes": peak,
        "read": is_read and not finding,
        "refused": is_refused and not finding,
        "finding": finding,
    }


def _fault_of(error: Exception) -> str:
    """Return what is wrong with a refusal; empty where it is one line for people."""
    if (
        isinstance(error, ValueError)
        and type(error) is not ValueError
        and "tuner" not in type(error).__module__
    ):
        return f"{type(error).__name__} of a library: {str(error)[:200]}"
    text = str(error)
    if not text.strip() or len(text) > MAX_MESSAGE:
        return f"{type(error).__name__} with a message of {len(text)} characters"
    return ""


def _write(files: Files, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)

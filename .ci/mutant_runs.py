"""Tests of mutants, each mutant in a process forked from one where pytest has collected the tests already.

The modules that share their tests form a group, which has a process of its own. It imports each module with a
mark in front of every statement of its functions, lets pytest collect, and runs each test once, alone in a
fork: that says which statements a test runs, and how long it takes. A mutant is then a fork in which the live
functions of its module get the code of the mutant, and the tests that run its statement follow, the quickest
first, up to the first that fails. What a module runs while it is imported is changed before the import
instead, in a process that collects anew.

Left out: a cache that is filled while pytest imports the tests keeps what the module as it is has put there.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType

from mutations import Mutant

MARK = "_statement_runs"
HANGS_S = 120.0
"""A mutant that takes so long beside twenty times its tests' time waits for something that never comes."""
LONGEST_S = 15.0
"""Processor time of one test; those that take more are left out, since each mutant would wait for them."""
ENOUGH_S = 30.0
"""Time of all tests that a mutant has to pass; where more run its statement, the slowest are left out."""
BUSY_S = 5.0
"""Processor time that a test may take beside five times its own."""


@dataclass(frozen=True, slots=True)
class Group:
    """Modules that share their tests.

    Attributes:
        root: the project.
        modules: their paths below the root.
        tests: files and folders of tests below the root.
        options: what pytest is to leave out.
    """

    root: Path
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(slots=True)
class Outcome:
    """What became of mutants: how many were noticed in each module, which survived or took too long, how many
    never ran."""

    noticed: Counter[str] = field(default_factory=Counter)
    survivors: list[tuple[str, int, str]] = field(default_factory=list)
    undecided: list[tuple[str, int, str]] = field(default_factory=list)
    num_left: int = 0

    def add(self, other: Outcome) -> None:
        """Add the mutants of another outcome."""
        self.noticed += other.noticed
        self.survivors += other.survivors
        self.undecided += other.undecided
        self.num_left += other.num_left

    def count(self, module: str, mutant: Mutant, answer: object) -> None:
        """Add one mutant by what its tests said, and print it unless it was noticed."""
        if answer is False or answer == _TOO_LONG:
            (self.survivors if answer is False else self.undecided).append((module, mutant.line, mutant.key))
            word = "survived " if answer is False else "undecided"
            os.write(_STDOUT, f"{word} {module}:{mutant.line}  {mutant.key}\n".encode())
        else:
            self.noticed[module] += 1


_STDOUT = os.dup(1)
_AT_IMPORT = "at import"
_TOO_LONG = "too long"
_BROKEN = 70
"""Exit status of a process that failed outside its tests."""


def outcome_of(group: Group, mutants: list[tuple[str, Mutant]], *, jobs: int, minutes: float) -> Outcome:
    """Run the mutants of a group.

    Args:
        group: the modules and tests.
        mutants: each with its module, in the order in which to run them.
        jobs: how many processes at a time.
        minutes: after so long, counted from when the tests have passed, no further mutant starts.

    Raises:
        RuntimeError: a test fails on the modules as they are, or pytest imports none of their functions.
    """
    session = _MutantsOf(group, mutants, jobs, 60 * minutes)
    [(_, said)] = _forked([("", lambda: _in_pytest(group, session, marks=session.marks), 1e9)], 1)
    if not isinstance(said, dict):
        raise RuntimeError(f"no run on the code as it is: pytest {' '.join(group.tests)} ({said})")
    survivors, undecided = ([tuple(each) for each in said[name]] for name in ("survivors", "undecided"))
    outcome = Outcome(Counter(said["noticed"]), survivors, undecided, said["left"])
    for index in said["at_import"]:
        module, mutant = mutants[index]
        run = ("", lambda m=module, t=mutant.tree: _in_pytest(group, _EveryTest(), {m: t}), 900.0)
        [(_, failed)] = _forked([run], 1)
        outcome.count(module, mutant, failed)
    return outcome


def _in_pytest(group: Group, plugin, trees=None, marks=None) -> object:
    """Collect the tests of a group, with changed or marked modules, and return what the plugin then says."""
    import hypothesis  # noqa: PLC0415 (imported before the fork)
    import numba  # noqa: PLC0415
    import pytest  # noqa: PLC0415

    # What fails need not be made small.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, deadline=None, database=None, phases=phases
    )
    texts = {module: (group.root / module).read_text() for module in group.modules}
    numba.config.DISABLE_JIT = any("@compiled" in text for text in texts.values())
    if trees is None:
        trees = {module: marked(ast.parse(text), module) for module, text in texts.items()}
    codes = {
        module.removesuffix(".py").replace("/", "."): compile(tree, str(group.root / module), "exec")
        for module, tree in trees.items()
    }
    sys.meta_path.insert(0, _Finder(codes, marks))
    options = ["-q", "-n0", "--capture=sys", "-p", "no:cacheprovider", "--hypothesis-profile", "mutants"]
    where = ["--rootdir", str(group.root), *group.options, *group.tests]
    status = pytest.main([*options, *where], plugins=[plugin])
    return plugin.said if plugin.said is not None else int(status)


class _EveryTest:
    """A plugin of pytest that says whether a test fails."""

    said: object = None

    def pytest_runtestloop(self, session) -> bool:
        self.said = _fails(session.items)
        return True


class _MutantsOf:
    """A plugin of pytest that runs a group's tests as they are, and then on each mutant."""

    said: object = None

    def __init__(self, group: Group, mutants: list[tuple[str, Mutant]], jobs: int, limit_s: float) -> None:
        self.group, self.mutants, self.jobs, self.limit_s = group, mutants, jobs, limit_s
        self.marks: set[tuple[str, int]] = set()

    def pytest_runtestloop(self, session) -> bool:
        at_import = set(self.marks)
        self.functions = _live_functions()
        unseen = [m for m in self.group.modules if str(self.group.root / m) not in self.functions]
        if unseen:
            self.said = f"none of its functions was found: {', '.join(unseen)}"
            return True
        gc.freeze()
        tests = [(item, lambda item=item: self._alone(item), 900.0) for item in session.items]
        seconds, ran = {}, {}
        for item, answer in _forked(tests, self.jobs):
            if isinstance(answer, list) and answer[0]:
                self.said = item.nodeid
                return True
            if isinstance(answer, list):
                seconds[item], ran[item] = answer[1], {tuple(mark) for mark in answer[2]}
        quickest = sorted(seconds, key=lambda item: seconds[item])
        statements = {module: _statements(self.group.root / module) for module in self.group.modules}

        outcome, anew, runs = Outcome(), [], []
        for index, (module, mutant) in enumerate(self.mutants):
            mark = (module, statements[module].get(mutant.line, 0))
            if mark[1] == 0 or mark in at_import:
                anew.append(index)
                continue
            chosen = [item for item in quickest if mark in ran[item]]
            sums = itertools.accumulate(seconds[item] for item in chosen)
            chosen = [item for item, total in zip(chosen, sums, strict=True) if total < ENOUGH_S]
            limit_s = HANGS_S + 20 * sum(seconds[item] for item in chosen)
            run = functools.partial(self._on_mutant, module, mutant, chosen, seconds)
            runs.append(((module, mutant), run, limit_s))
        outcome.num_left = len(runs)
        for (module, mutant), failed in _forked(runs, self.jobs, time.monotonic() + self.limit_s):
            outcome.num_left -= 1
            if failed == _AT_IMPORT:
                anew.append(self.mutants.index((module, mutant)))
            else:
                outcome.count(module, mutant, failed)
        self.said = {
            "noticed": outcome.noticed,
            "survivors": outcome.survivors,
            "undecided": outcome.undecided,
            "left": outcome.num_left,
            "at_import": anew,
        }
        return True

    def _alone(self, item) -> list[object]:
        self.marks.clear()
        signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
        started = time.process_time()
        failed = _fails([item])
        return [failed, time.process_time() - started, sorted(self.marks)]

    def _on_mutant(self, module: str, mutant: Mutant, items: list, seconds: dict) -> bool | str:
        path = str(self.group.root / module)
        try:
            _replace(self.functions[path], compile(mutant.tree, path, "exec"))
        except ValueError:  # a function reads other variables around it than it did
            return _AT_IMPORT
        return _fails(items, seconds)


def _fails(items: list, seconds: dict | None = None) -> bool:
    """Run tests up to the first that fails; one that computes for too long ends the process."""
    for item, following in zip(items, [*items[1:], None], strict=False):
        if seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, BUSY_S + 5 * seconds[item])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            return True
    return False


def marked(tree: ast.Module, module: str) -> ast.Module:
    """Return the tree with a call before every statement of its functions, which says that it runs."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = {node: None for function in functions for node in ast.walk(function)}
    for node in inside:
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):
                setattr(node, name, [each for s in statements for each in (_mark_before(s, module), s)])
    return ast.fix_missing_locations(tree)


def _mark_before(statement: ast.stmt, module: str) -> ast.stmt:
    where = ast.Tuple([ast.Constant(module), ast.Constant(statement.lineno)], ast.Load())
    call = ast.Call(ast.Name(MARK, ast.Load()), [where], [])
    return ast.copy_location(ast.Expr(call), statement)


def _statements(path: Path) -> dict[int, int]:
    """Return, of each line within a function, the line where its innermost statement begins."""
    found = {}
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for statement in (node for each in function.body for node in ast.walk(each)):
                if isinstance(statement, ast.stmt):
                    found.update(dict.fromkeys(range(statement.lineno, statement.end_lineno + 1), statement))
    return {line: statement.lineno for line, statement in found.items()}


def _live_functions() -> dict[str, list[FunctionType]]:
    """Return every function there is, by the file of its code."""
    found = defaultdict(list)
    gc.unfreeze()  # tests/conftest.py freezes what it has collected, and `get_objects` leaves that out
    for each in gc.get_objects():
        if type(each) is FunctionType:
            found[each.__code__.co_filename].append(each)
    return found


def _replace(functions: Iterable[FunctionType], code: CodeType) -> None:
    """Give each function the code of the same name and line."""
    changed = {(each.co_qualname, each.co_firstlineno): each for each in _codes(code)}
    for function in functions:
        function.__code__ = changed[function.__code__.co_qualname, function.__code__.co_firstlineno]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of which it has other code than that of their files."""

    def __init__(self, codes: dict[str, CodeType], marks: set[tuple[str, int]] | None) -> None:
        self.codes, self.marks = codes, marks

    def find_spec(self, fullname, path, target=None):
        if fullname not in self.codes:
            return None
        code = self.codes[fullname]
        loader = _Loader(fullname, code.co_filename)
        loader.code, loader.marks = code, self.marks
        return importlib.util.spec_from_file_location(fullname, code.co_filename, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    code: CodeType
    marks: set[tuple[str, int]] | None

    def get_code(self, fullname: str) -> CodeType:
        return self.code

    def exec_module(self, module) -> None:
        if self.marks is not None:
            setattr(module, MARK, self.marks.add)
        super().exec_module(module)


def _forked(
    tasks: Iterable[tuple[object, Callable[[], object], float]], jobs: int, end: float = float("inf")
) -> Iterator[tuple[object, object]]:
    """Run each task in a process of its own; yield its label and answer, None where it died.

    Where it was ended because it took too long, the answer is `_TOO_LONG`.

    Args:
        tasks: label, function and limit in seconds.
        jobs: how many at a time.
        end: of `time.monotonic()`; no task starts later.
    """
    waiting, running = list(reversed(list(tasks))), {}
    while running or (waiting and time.monotonic() < end):
        while waiting and len(running) < jobs and time.monotonic() < end:
            label, function, limit_s = waiting.pop()
            reading, writing = os.pipe()
            process = os.fork()
            if process == 0:
                _answer(function, writing)
            os.close(writing)
            running[process] = (label, reading, time.monotonic() + limit_s)
        time.sleep(0.005)
        for process, (label, reading, latest) in list(running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended or time.monotonic() > latest:
                _end_all_of(process)
                if not ended:
                    os.waitpid(process, 0)
                del running[process]
                if ended and os.waitstatus_to_exitcode(status) == _BROKEN:
                    raise RuntimeError(f"a run of {label} broke off; were its files changed meanwhile?")
                if ended and status == 0:
                    yield label, json.loads(os.read(reading, 1 << 20))
                else:
                    is_late = not ended or os.WTERMSIG(status) == signal.SIGPROF
                    yield label, _TOO_LONG if is_late else None
                os.close(reading)


def _answer(function: Callable[[], object], writing: int) -> None:
    """Write what a function returns, silently, and end the process."""
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        os.write(writing, json.dumps(function()).encode())
        os._exit(0)
    finally:
        os._exit(_BROKEN)


def _end_all_of(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)

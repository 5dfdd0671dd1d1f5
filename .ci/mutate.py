"""Change the code in small ways, one at a time, and see whether its tests notice.

    python .ci/mutate.py                                  twelve mutants of each module, 30 minutes at most
    python .ci/mutate.py --only validation --each 1000    every mutant of the modules whose path holds a word

Each mutant runs in a process of its own, forked from one that has imported what the tests need beside the
project: neither files nor other processes see the change, and a mutant costs its tests alone. The first test
that fails decides. The mutants are drawn by a seed. Printed are a table of the modules and all survivors; the
exit status is 1 where fewer than 95 % of those decided were noticed. `.ci/equivalent_mutants.txt` names those
that change nothing that anyone sees, with the reason; they are not run.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / ".ci" / "equivalent_mutants.txt"
WANTED = 0.95

NEEDED = (
    "pytest", "hypothesis", "numpy", "scipy.stats", "networkx", "numba", "msgspec", "sqlalchemy",
    "matplotlib", "ortools.sat.python.cp_model", "jsonschema", "torch", "tvm.relax",
)  # fmt: skip
"""What forked processes find imported; nothing of this project."""

BOUNDS = (
    "search/test_every_bound.py",
    "search/makespan/bounds",
    "search/makespan/exact/test_device_subsets.py",
)
PERIODS = ("search/repetend/test_period_bounds.py", "search/test_every_bound.py")
MODEL = ("search/model", "search/test_every_bound.py")
STEADY = ("search/repetend/test_steady_state_memory.py",)
GRADIENTS = ("stages/gradients/test_operator_gradients.py", "stages/gradients/test_borders.py")
NORMS = (*GRADIENTS, "stages/test_batch_norm.py")
RULES = ("shards/test_rules.py", "shards/test_tensor_parallel.py", "shards/test_vocabulary.py")
TESTS: dict[str, tuple[str, ...]] = {
    "tessel/validation.py": ("test_validation.py",),
    "records/database/store.py": ("database/test_store.py", "database/test_pruning.py"),
    "records/database/pruning.py": ("database/test_pruning.py",),
    "tessel/search/makespan/bounds/": BOUNDS,
    "tessel/search/repetend/period_bounds.py": PERIODS,
    "tessel/search/repetend/steady_state_memory.py": STEADY,
    "tessel/search/model/": MODEL,
    "tuner/stages/liveness.py": ("stages/test_liveness.py", "stages/test_placed_stages.py"),
    "tuner/stages/lanes.py": ("stages/test_lanes.py",),
    "tuner/stages/balance.py": ("stages/test_balance.py",),
    "tuner/stages/transpositions.py": ("stages/test_transpositions.py",),
    "tuner/stages/layers.py": ("stages/test_layers.py",),
    "tuner/stages/missing_gradients.py": ("stages/test_missing_gradients.py",),
    "tuner/stages/differentiate.py": (*GRADIENTS, "stages/test_missing_gradients.py"),
    "tuner/stages/gradients/": NORMS,
    "tuner/shards/rules/": RULES,
    "tuner/measuring/race.py": ("measuring/test_race.py",),
    "tuner/measuring/raced_programs.py": ("measuring/test_raced_programs.py",),
    "tessel/exports/": ("exports",),
}
"""By module or folder of modules, the tests that must notice a change, the fastest first."""

MARKS = "not slow and not postgres and not gpu"
SLOW = (
    "tests/tessel/exports/test_recipe.py::test_a_tuned_plan_has_its_modules",
    "tests/tessel/search/makespan/exact/test_diagrams.py::test_known_totals_are_proven_least",
    "tests/records/database/test_store.py::test_eight_processes_that_append_and_four_that_read_lose_nothing",
)
"""Tests that are left out: each mutant would wait for them."""


@dataclass(slots=True)
class Run:
    """A process that runs tests: of a mutant, or of the code as it is."""

    module: str
    mutant: Mutant | None
    process: int
    started: float
    limit_s: float


def main(arguments: Sequence[str]) -> int:
    """Run the mutants, print what became of them, and return the exit status."""
    options = _parsed(arguments)
    sys.path[:0] = [str(ROOT)]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    for name in NEEDED:
        importlib.import_module(name)
    modules = [module for module in _modules() if any(word in module for word in options.only or [""])]
    seconds = _baselines(modules, options.jobs)
    chosen = _drawn(modules, options.each, options.seed)
    end = time.monotonic() + 60 * options.minutes
    killed: Counter[str] = Counter()
    survivors: list[tuple[str, Mutant]] = []
    num_run = 0

    for module, mutant, status in _results(chosen, seconds, options.jobs, end):
        num_run += 1
        if status == 0:
            survivors.append((module, mutant))
            print(f"survived  {module}:{mutant.line}  {mutant.key}", flush=True)
        else:
            killed[module] += 1
    return _report(modules, killed, survivors, left=len(chosen) - num_run)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", metavar="WORD", help="modules whose path holds this; may be repeated"
    )
    parser.add_argument("--each", type=int, default=12, help="mutants of a module (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="no mutant starts later (default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def _modules() -> list[str]:
    """Return the modules that `TESTS` names, those of its folders one by one."""
    found = []
    for name in TESTS:
        paths = sorted((ROOT / name).glob("*.py")) if name.endswith("/") else [ROOT / name]
        found += [str(path.relative_to(ROOT)) for path in paths if path.name != "__init__.py"]
    return found


def _tests_of(module: str) -> list[str]:
    names = TESTS.get(module) or TESTS[module[: module.rindex("/") + 1]]
    return [f"tests/{module.split('/')[0]}/{name}" for name in names]


def _drawn(modules: Sequence[str], each: int, seed: int) -> list[tuple[str, Mutant]]:
    """Return so many mutants of each module, those of all modules mixed, so that a budget cuts none short."""
    equivalent = {line.split("\t")[0] for line in EQUIVALENT.read_text().splitlines() if "\t" in line}
    chosen = []
    for module in modules:
        found = [m for m in mutants_of((ROOT / module).read_text()) if f"{module} {m.key}" not in equivalent]
        drawn = random.Random(f"{seed} {module}").sample(found, min(each, len(found)))
        chosen += [(module, mutant) for mutant in drawn]
    random.Random(seed).shuffle(chosen)
    return chosen


def _baselines(modules: Sequence[str], jobs: int) -> dict[str, float]:
    """Return the seconds that each module's tests take as it is; exit where they fail.

    The first run of all compiles what the machine keeps, and does not count.
    """
    seconds = {}
    for run, status, took in _finished([(module, None, 900.0) for module in modules], jobs):
        if status != 0:
            sys.exit(f"the tests of {run.module} fail as it is: pytest {' '.join(_tests_of(run.module))}")
        seconds[run.module] = took
    return seconds


def _results(chosen, seconds, jobs, end):
    asked = [(module, mutant, 10 + 5 * seconds[module]) for module, mutant in chosen]
    for run, status, _ in _finished(asked, jobs, end):
        yield run.module, run.mutant, status


def _finished(asked, jobs, end=float("inf")):
    """Yield runs with their status (that of pytest, or -1 where it took too long) and seconds as they end."""
    waiting, running = list(reversed(asked)), []
    while running or (waiting and time.monotonic() < end):
        while waiting and len(running) < jobs and time.monotonic() < end:
            module, mutant, limit_s = waiting.pop()
            running.append(Run(module, mutant, _forked(module, mutant), time.monotonic(), limit_s))
        time.sleep(0.01)
        for run in list(running):
            took = time.monotonic() - run.started
            process, status = os.waitpid(run.process, os.WNOHANG)
            if not process and took > run.limit_s:
                os.killpg(run.process, signal.SIGKILL)
                os.waitpid(run.process, 0)
            elif not process:
                continue
            running.remove(run)
            yield run, os.waitstatus_to_exitcode(status) if process else -1, took


def _forked(module: str, mutant: Mutant | None) -> int:
    """Start a process that runs the tests of a module; its exit status is pytest's."""
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        os._exit(_tested(module, mutant))
    finally:
        os._exit(70)


def _tested(module: str, mutant: Mutant | None) -> int:
    import hypothesis  # noqa: PLC0415 (imported before the fork)
    import numba  # noqa: PLC0415
    import pytest  # noqa: PLC0415

    # What fails need not be made small.
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "mutants", derandomize=True, deadline=None, database=None, phases=phases
    )
    text = (ROOT / module).read_text()
    numba.config.DISABLE_JIT = "@compiled" in text
    if mutant is not None:
        code = compile(mutant.tree, str(ROOT / module), "exec")
        sys.meta_path.insert(0, _MutantFinder(module.removesuffix(".py").replace("/", "."), code))
    options = [
        "-q",
        "-x",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "--hypothesis-profile",
        "mutants",
        "-m",
        MARKS,
    ]
    deselected = [f"--deselect={test}" for test in SLOW]
    return int(pytest.main([*options, *deselected, "--rootdir", str(ROOT), *_tests_of(module)]))


class _MutantFinder(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Finds one module, and gives it other code than that of its file."""

    def __init__(self, name: str, code: CodeType) -> None:
        importlib.machinery.SourceFileLoader.__init__(self, name, code.co_filename)
        self.code = code

    def find_spec(self, fullname, path, target=None):
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def _report(
    modules: Sequence[str], killed: Counter[str], survivors: Sequence[tuple[str, Mutant]], *, left: int
) -> int:
    survived = Counter(module for module, _ in survivors)
    print("\n| module | run | noticed | survived |\n|---|---|---|---|")
    for module in modules:
        print(f"| `{module}` | {killed[module] + survived[module]} | {killed[module]} | {survived[module]} |")
    total = killed.total() + len(survivors)
    share = killed.total() / total if total else 1.0
    print(f"\n{killed.total()} of {total} mutants noticed: {share:.1%}; {left} not run, for want of time")
    return int(share < WANTED)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from mutations import Mutant, mutants_of

    sys.exit(main(sys.argv[1:]))

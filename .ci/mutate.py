"""Change the code in small ways, one at a time, and see whether its tests notice.

    python .ci/mutate.py                                  twelve mutants of each module, 30 minutes at most
    python .ci/mutate.py --only validation --each 1000    every mutant of the modules whose path holds a word

Each mutant runs in a process of its own, forked from one that has collected the tests: neither files nor
other processes see the change, and a mutant costs the tests alone that run what it changed, up to the first
that fails. One that takes far longer than the code as it is counts as undecided. The mutants are drawn by a
seed. Printed are a table of the modules and all survivors; the exit status is 1 where fewer than 95 % of
those decided were noticed. `.ci/equivalent_mutants.txt` names those
that change nothing that anyone sees, with the reason; they are not run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = ROOT / ".ci" / "equivalent_mutants.txt"
WANTED = 0.95

NEEDED = (
    "pytest", "hypothesis", "numpy", "scipy.stats", "networkx", "numba", "msgspec", "sqlalchemy",
    "matplotlib", "ortools.sat.python.cp_model", "jsonschema",
)  # fmt: skip
"""What forked processes find imported; nothing of this project."""

NEEDED_BY_TUNER = ("torch", "tvm.relax")
"""What the tests of `tuner` need beside, which takes as long as some groups' tests; those come last."""

STORE = tuple(
    f"database/test_{name}.py" for name in ("store", "pruning", "connection", "damage", "migration")
)
BOUNDS = (
    "search/test_every_bound.py",
    "search/makespan/bounds",
    "search/makespan/exact/test_device_subsets.py",
)
PERIODS = ("search/repetend/test_period_bounds.py", "search/test_every_bound.py")
MODEL = ("search/model", "search/test_every_bound.py")
STEADY = ("search/repetend/test_steady_state_memory.py",)
GRADIENTS = (
    *(f"stages/gradients/test_{name}.py" for name in ("operator_gradients", "borders", "torch_calls")),
    *(f"stages/test_{name}.py" for name in ("batch_norm", "missing_gradients")),
    "stages/test_users_training.py::test_rows_of_padding_get_no_gradient_from_look_ups[dtype0]",
)
RULES = ("shards/test_rules.py", "shards/test_tensor_parallel.py", "shards/test_vocabulary.py")
TESTS: dict[str, tuple[str, ...]] = {
    "tessel/validation.py": ("test_validation.py", "test_validation_of_unequal.py"),
    "records/database/store.py": STORE,
    "records/database/pruning.py": ("database/test_pruning.py",),
    "tessel/search/makespan/bounds/": BOUNDS,
    "tessel/search/repetend/period_bounds.py": PERIODS,
    "tessel/search/repetend/steady_state_memory.py": STEADY,
    "tessel/search/model/": MODEL,
    "tuner/stages/liveness.py": ("stages/test_liveness.py", "stages/test_placed_stages.py"),
    "tuner/stages/task_pool.py": ("stages/test_task_pool.py",),
    "tuner/stages/balance.py": ("stages/test_balance.py",),
    "tuner/stages/transpositions.py": ("stages/test_transpositions.py",),
    "tuner/stages/layers.py": ("stages/test_layers.py",),
    "tuner/stages/missing_gradients.py": ("stages/test_missing_gradients.py",),
    "tuner/stages/differentiate.py": GRADIENTS,
    "tuner/stages/gradients/": GRADIENTS,
    "tuner/shards/rules/movement.py": ("shards/test_reshaping.py", "shards/test_rules.py"),
    "tuner/shards/rules/": RULES,
    "tuner/measuring/race.py": ("measuring/test_race.py",),
    "tuner/measuring/raced_programs.py": ("measuring/test_raced_programs.py",),
    "tessel/exports/": ("exports",),
}
"""By module or folder of modules, the tests that must notice a change, the fastest first."""

MARKS = "not slow and not postgres and not gpu"
WITH_OTHERS = (
    "tests/tessel/exports/test_recipe.py::test_a_tuned_plan_has_its_modules",
    "tests/records/database/test_store.py::test_eight_processes_that_append_and_four_that_read_lose_nothing",
)
"""Tests that wait for other processes, as each mutant would; they are left out."""


def main(arguments: Sequence[str]) -> int:
    """Run the mutants, print what became of them, and return the exit status."""
    options = _parsed(arguments)
    sys.path[:0] = [str(ROOT)]
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    _import(NEEDED)
    modules = [module for module in _modules() if any(word in module for word in options.only or [""])]
    again = None if options.again is None else options.again.read_text().splitlines()
    chosen = {module: _drawn(module, options.each, options.seed, again) for module in modules}
    num_waiting = sum(len(mutants) for mutants in chosen.values())
    end = time.monotonic() + 60 * options.minutes
    outcome = Outcome()

    for group in sorted(_groups(modules), key=_is_of_tuner):
        mutants = [(module, mutant) for module in group.modules for mutant in chosen[module]]
        random.Random(options.seed).shuffle(mutants)
        if time.monotonic() > end:
            outcome.num_left += len(mutants)
            continue
        minutes = (end - time.monotonic()) / 60 * len(mutants) / max(1, num_waiting)
        num_waiting -= len(mutants)
        _import(NEEDED_BY_TUNER if _is_of_tuner(group) else ())
        outcome.add(outcome_of(group, mutants, jobs=options.jobs, minutes=minutes))
        counts = (
            f"{outcome.noticed.total()} noticed, {len(outcome.survivors)} survived, {num_waiting} to come"
        )
        print(f"{counts}; done: {', '.join(group.modules)}", file=sys.stderr, flush=True)
    return _report(modules, outcome)


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)


def _is_of_tuner(group: Group) -> bool:
    return any(module.startswith("tuner/") for module in group.modules)


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
        "--again", type=Path, metavar="FILE", help="the survivors in an earlier run's output, and no others"
    )
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
    return list(dict.fromkeys(found))


def _tests_of(module: str) -> list[str]:
    names = TESTS.get(module) or TESTS[module[: module.rindex("/") + 1]]
    return [f"tests/{module.split('/')[0]}/{name}" for name in names]


def _groups(modules: Sequence[str]) -> list[Group]:
    """Return the modules by their tests; those with compiled functions apart, whose tests are slower."""
    shared: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for module in modules:
        is_compiled = "@compiled" in (ROOT / module).read_text()
        shared.setdefault((is_compiled, tuple(_tests_of(module))), []).append(module)
    options = ("-m", MARKS, *(f"--deselect={test}" for test in WITH_OTHERS))
    return [Group(ROOT, tuple(members), tests, options) for (_, tests), members in shared.items()]


def _drawn(module: str, each: int, seed: int, again: Sequence[str] | None) -> list[Mutant]:
    """Draw mutants of a module, or take those that the output of an earlier run has as survivors."""
    equivalent = {line.split("\t")[0] for line in EQUIVALENT.read_text().splitlines() if "\t" in line}
    found = [m for m in mutants_of((ROOT / module).read_text()) if f"{module} {m.key}" not in equivalent]
    if again is not None:
        keys = [line.split("  ", 2)[2] for line in again if line.startswith(f"survived  {module}:")]
        return [mutant for mutant in found if mutant.key in keys]
    return random.Random(f"{seed} {module}").sample(found, min(each, len(found)))


def _report(modules: Sequence[str], outcome: Outcome) -> int:
    survived = Counter(module for module, _, _ in outcome.survivors)
    noticed = outcome.noticed
    undecided = Counter(module for module, _, _ in outcome.undecided)
    print("\n| module | run | noticed | survived | undecided |\n|---|---|---|---|---|")
    for module in modules:
        counts = (noticed[module], survived[module], undecided[module])
        print(f"| `{module}` | {sum(counts)} | {' | '.join(map(str, counts))} |")
    total = noticed.total() + len(outcome.survivors)
    share = noticed.total() / total if total else 1.0
    print(
        f"\n{noticed.total()} of {total} mutants noticed: {share:.1%};"
        f" {undecided.total()} took too long, {outcome.num_left} not run, for want of time"
    )
    return int(share < WANTED)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from mutant_runs import Group, Outcome, outcome_of
    from mutations import Mutant, mutants_of

    sys.exit(main(sys.argv[1:]))

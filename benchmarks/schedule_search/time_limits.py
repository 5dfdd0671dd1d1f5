"""How well a search keeps its limit on time, in fresh processes and on large problems.

    python -m benchmarks.schedule_search.time_limits --limits 0.2 0.5 2 10

Each search is the first of its process. Its limit is one on processor seconds, so that the ratio of what it
took to the limit does not depend on how busy the machine is; wall-clock seconds stand beside it. Neither
holds the imports, nor what it takes to load machine code, which no limit is meant for and which has a column
of its own. Hand-written rules are written before any limit counts, so that no answer is longer than one of
them, and the answer is written down after it: a column has what both take, seen with next to no limit.
The last ratio leaves it out: it is what the search did with its limit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

CASES = {
    "vshape, 4 devices, M=16": ("shapes.vshape(4, lag=2)", 16, "memory=3"),
    "zbv with a choice, 8 devices, M=32": ("shapes.zbv(8, choose_backward=True, lag=1)", 32, "memory=12"),
    "vshape, 128 devices, M=512": ("shapes.vshape(128)", 512, "memory=128"),
    "zbv, 64 devices, M=512": ("shapes.zbv(64, split_backward=True, lag=1)", 512, "memory=128"),
    "vshape, 512 devices, M=512": ("shapes.vshape(512)", 512, "memory=512"),
}
"""Placement, micro-batches and memory."""

NEXT_TO_NONE = 1e-6
"""A limit in seconds that ends as soon as it begins to count."""

SEARCH = """
import json, sys, time
from tessel import find_schedule, shapes
from tessel.search import SearchBudget
from tessel.search.budget import processor_clock, search_clock
budget = SearchBudget(work_limit=None, time_limit_s={limit}, clock=processor_clock)
searching, processor, all_of_it = search_clock(), processor_clock(), time.process_time()
budget.begin()
found = find_schedule({placement}, micro_batches={micro_batches}, {memory}, budget=budget)
taken = processor_clock() - processor
print(json.dumps([taken, search_clock() - searching, time.process_time() - all_of_it - taken,
                  found.makespan, found.lower_bound]))
"""


def search(placement: str, micro_batches: int, memory: str, limit: float) -> tuple[float, ...]:
    """Return the seconds of processor and wall, those of loading, the makespan and the bound."""
    text = SEARCH.format(placement=placement, micro_batches=micro_batches, memory=memory, limit=limit)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return tuple(found)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limits", type=float, nargs="+", default=[0.2, 0.5, 2.0, 10.0], help="seconds")
    parser.add_argument("--cases", type=int, nargs="+", help="numbers of the cases, from 0; all if left out")
    arguments = parser.parse_args()
    print(
        "| case | limit s | processor s | ratio | rules, answer s | ratio of the rest | wall s | loading s | "
        "makespan | bound | gap |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for number, (name, (placement, micro_batches, memory)) in enumerate(CASES.items()):
        if arguments.cases is not None and number not in arguments.cases:
            continue
        fixed = search(placement, micro_batches, memory, NEXT_TO_NONE)[0]
        for limit in arguments.limits:
            taken, wall, loading, makespan, bound = search(placement, micro_batches, memory, limit)
            gap = makespan / bound - 1
            print(
                f"| {name} | {limit:g} | {taken:.2f} | {taken / limit:.2f} | {fixed:.2f} | "
                f"{max(0.0, taken - fixed) / limit:.2f} | {wall:.2f} | {loading:.2f} | "
                f"{makespan:.0f} | {bound:.0f} | {gap:.1%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

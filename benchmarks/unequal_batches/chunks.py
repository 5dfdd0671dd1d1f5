"""Chunks of prompts: those found, equal ones and SGLang's dynamic ones, simulated.

    python -m benchmarks.unequal_batches.chunks

Laws are of a stage, by the number of tokens after which attention takes as long as all else, and by what a
launch takes; stages are alike, or one takes longer. Rules stand at their best size and smoothing, and the
dynamic one also at the setting that its guide recommends: twice or three times the best equal size, smoothing
0.75.
"""

from __future__ import annotations

import time
from itertools import product

from tessel.batches.chunk_law import ChunkLaw
from tessel.search.batches.chunk_rules import dynamic_chunks
from tessel.search.batches.chunks import Prefill, find_chunks

PROMPT, TOKEN_US = 131072, 60.0
LAUNCHES_US = (300.0, 3000.0, 20000.0)
EVEN_AT = (32768, 131072)
"""Tokens before a chunk after which its attention takes as long as the rest."""
FACTORS = {
    "4 alike": (1.0,) * 4,
    "8 alike": (1.0,) * 8,
    "4, last +7 %": (1.0, 1.0, 1.0, 1.07),
    "4, first +7 %": (1.07, 1.0, 1.0, 1.0),
}
SMOOTHING = 0.75


def main() -> None:
    print("| stages | launch us | even at | chunks | predicted s | gap | equal | dynamic | recommended | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (name, factors), launch_us, even_at in product(FACTORS.items(), LAUNCHES_US, EVEN_AT):
        law = ChunkLaw(launch_us=launch_us, token_us=TOKEN_US, pair_us=TOKEN_US / even_at)
        prefill = Prefill(prompt=PROMPT, law=law, factors=factors)
        began = time.process_time()
        found = find_chunks(prefill)
        took = time.process_time() - began
        best = {each.rule: each for each in found.rules}
        equal, dynamic = best["equal"], best["dynamic"]
        guided = min(
            prefill.time_us(
                dynamic_chunks(
                    law, PROMPT, initial=times * equal.initial, smoothing=SMOOTHING, multiple=prefill.multiple
                )
            )
            for times in (2, 3)
        )
        longer = " | ".join(
            f"{each / found.time_us - 1:.2%}" for each in (equal.time_us, dynamic.time_us, guided)
        )
        gap = "proven" if found.optimal else f"{found.gap:.2%}"
        seconds = found.time_us / 1e6
        print(
            f"| {name} | {launch_us:g} | {even_at} | {len(found.chunks)} | {seconds:.3f} | {gap} | {longer} "
            f"| {took:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

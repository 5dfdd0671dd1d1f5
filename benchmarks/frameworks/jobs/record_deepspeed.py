"""Train a small model in DeepSpeed's engine on one rank, with its wall-clock breakdown on.

Usage: RANK=0 WORLD_SIZE=1 python record_deepspeed.py STORE STEPS anything
"""

from __future__ import annotations

from typing import Any

import deepspeed

from benchmarks.frameworks.jobs import deepspeed_job
from benchmarks.frameworks.jobs.one_process import LENGTH, loss_of, random_tokens, run_job, small_model
from benchmarks.frameworks.jobs.stopwatches import Stopwatches

BLOCKS, MICRO_BATCHES = 4, 2


def main() -> None:
    run_job(_record, deepspeed_job.begin)


def _record(_: str, steps: int) -> dict[str, Any]:
    engine, *_others = deepspeed.initialize(
        model=small_model(BLOCKS),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "wall_clock_breakdown": True,
        },
    )
    watches = Stopwatches()
    forward, backward, update = (
        watches.around(each, lambda *_, name=name: name)
        for name, each in (("forward", engine), ("backward", engine.backward), ("update", engine.step))
    )
    engine.allreduce_gradients = watches.around(engine.allreduce_gradients, lambda *_, **__: "allreduce")
    for step in range(steps * MICRO_BATCHES):
        tokens = random_tokens(step, (1, LENGTH))
        backward(loss_of(forward(tokens), tokens))
        update()
    return {"taken_ms": watches.taken_ms}


if __name__ == "__main__":
    main()

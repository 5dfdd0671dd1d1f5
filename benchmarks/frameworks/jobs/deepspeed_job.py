"""Train a small model by exported files in DeepSpeed's engine, one rank of several, over gloo on CPUs.

Each rank holds its loss and the weights of its stage against the whole model, trained in this process.

Usage: RANK=0 WORLD_SIZE=2 python deepspeed_job.py STORE STEPS FILE…
"""

from __future__ import annotations

import sys
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from benchmarks.frameworks.jobs.one_process import (
    LENGTH,
    RATE,
    distance,
    import_file,
    loss_of,
    random_tokens,
    run_job,
    small_model,
    train_whole,
)


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    run_job(_train, begin)


def begin() -> None:
    """Let DeepSpeed take the ranks that there are."""
    # It would compile collectives over one machine's memory, and wait for a lock of another job's compiler.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    deepspeed.init_distributed("gloo", dist_init_required=False)


def _train(path: str, steps: int) -> dict[str, Any]:
    exported = import_file(path)
    exported.use_plan()
    rank, replicas = dist.get_rank(), dist.get_world_size() // exported.STAGES
    stage, blocks = rank // replicas, len(exported.LAYERS) - 2
    layers, whole, start = (small_model(blocks) for _ in range(3))
    own_layers = slice(exported.PARTS[stage], exported.PARTS[stage + 1])
    engine, *_ = deepspeed.initialize(
        model=exported.PlannedPipelineModule(layers, num_stages=exported.STAGES, loss_fn=loss_of),
        optimizer=torch.optim.SGD(layers[own_layers].parameters(), lr=RATE),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": exported.MICRO_BATCHES,
            "train_batch_size": exported.MICRO_BATCHES * replicas,
            "zero_optimization": {"stage": 0},
            "gradient_clipping": 0.0,  # which is 1.0 where nothing is said
        },
    )
    difference = 0.0
    for step in range(steps):
        tokens = random_tokens(step, (replicas, exported.MICRO_BATCHES, 1, LENGTH))
        found = float(engine.train_batch(iter([(each, each) for each in tokens[rank % replicas]])))
        batch = tokens.flatten(0, 2)
        difference = max(difference, abs(found - train_whole(whole, loss_of(whole(batch), batch), RATE)))
    difference = max(difference, distance(whole[own_layers], layers[own_layers]))
    return {"difference": difference, "moved": distance(whole, start)}


if __name__ == "__main__":
    main()

"""Train a small model by exported arguments in Megatron-Core's schedules on one rank of several, over gloo.

Megatron's configuration parses the layout, its groups of processes place the ranks, and its schedules run the
chunks; the layers are this module's. What the schedules ask of a GPU, memory and a wait for it, is given on
the CPU. Sends and receives are single ones: batched, two ranks with several chunks get wrong gradients over
gloo. Each rank holds its losses and weights against the whole model, trained in this process.

Usage: RANK=0 WORLD_SIZE=2 python megatron_job.py STORE STEPS FILE…
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from benchmarks.frameworks.jobs.one_process import (
    LENGTH,
    RATE,
    WIDTH,
    Block,
    descend,
    distance,
    loss_of,
    random_tokens,
    run_job,
    small_model,
    train_whole,
)

TIMERS = ("forward-backward", "forward-compute", "backward-compute", "forward-recv", "backward-recv")
"""Of those that Megatron's training logs."""


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if str(options.get("device")).startswith("cuda"):
            options["device"] = "cpu"
        return func(*args, **options)


class Chunk(torch.nn.Module):
    """Layers of one stage, as Megatron's schedules know a model."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config: TransformerConfig, number: int | None, layers: list[torch.nn.Module]) -> None:
        super().__init__()
        self.config, self.vp_stage, self.taken = config, number, None
        self.layers = torch.nn.ModuleList(layers)
        self.done: dict[str, int] = {"F": 0, "B": 0}

    def note(self, letter: str, order: list[str]) -> None:
        """Add to this rank's order that a micro-batch, which they take in turn, is run."""
        ranks = parallel_state.get_pipeline_model_parallel_world_size()
        rank = parallel_state.get_pipeline_model_parallel_rank()
        order.append(f"{rank + ranks * (self.vp_stage or 0)}{letter}{self.done[letter]}")
        self.done[letter] += 1

    def set_input_tensor(self, tensors: Any) -> None:
        """Take what the stage before has sent; nothing in a first one."""
        self.taken = tensors[0] if isinstance(tensors, list) else tensors

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = tokens if self.taken is None else self.taken
        for layer in self.layers:
            recomputes = self.config.recompute_granularity == "full" and isinstance(layer, Block)
            hidden = checkpoint(layer, hidden, use_reentrant=False) if recomputes else layer(hidden)
        return hidden


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    torch.cuda.synchronize = lambda *_: None
    with OnCpu():
        run_job(lambda file, steps: train_by(arguments_of(Path(file)), steps))


def arguments_of(file: Path) -> dict[str, str]:
    """Return the values of an exported file by their flags."""
    lines = [shlex.split(line) for line in file.read_text().splitlines() if not line.startswith("#")]
    return {words[0]: " ".join(words[1:]) for words in lines if words}


def train_by(given: dict[str, str], steps: int, timers: Any = None) -> dict[str, Any]:
    """Return how far this rank is from the whole model after training by exported arguments.

    Args:
        given: the arguments.
        steps: how many.
        timers: Megatron's, which are logged after each step; None for none.
    """
    ranks = int(given["--pipeline-model-parallel-size"])
    size = int(given["--micro-batch-size"])
    group = given.get("--microbatch-group-size-per-virtual-pipeline-stage")
    count = int(given["--num-layers"])
    config = TransformerConfig(
        num_layers=count,
        hidden_size=WIDTH,
        num_attention_heads=1,
        pipeline_model_parallel_size=ranks,
        pipeline_model_parallel_layout=given["--pipeline-model-parallel-layout"],
        microbatch_group_size_per_vp_stage=int(group) if group else None,
        recompute_granularity=given.get("--recompute-granularity"),
        recompute_method=given.get("--recompute-method"),
        recompute_num_layers=int(given["--recompute-num-layers"])
        if "--recompute-num-layers" in given
        else None,
        pipeline_dtype=torch.float32,
        batch_p2p_comm=False,
    )
    config.timers = timers
    chunks = len(config.pipeline_model_parallel_layout.layout[0])
    config.virtual_pipeline_model_parallel_size = chunks if chunks > 1 else None
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
    )
    replicas = parallel_state.get_data_parallel_world_size()
    micro_batches = int(given["--global-batch-size"]) // (size * replicas)
    layers, whole, start = (small_model(count) for _ in range(3))
    held = _held(config, layers)
    difference, order = 0.0, list[str]()
    for step in range(steps):
        tokens = random_tokens(step, (replicas, micro_batches, LENGTH, size))
        own = tokens[parallel_state.get_data_parallel_rank()]
        losses = get_forward_backward_func()(
            forward_step_func=partial(_forward, order),
            data_iterator=[iter(own) for _ in held] if chunks > 1 else iter(own),
            model=held if chunks > 1 else held[0],
            num_microbatches=micro_batches,
            seq_length=LENGTH,
            micro_batch_size=size,
            forward_only=False,
        )
        if timers is not None:
            timers.log(TIMERS)  # in one order on all ranks, whose columns are gathered
        expected = train_whole(whole, loss_of(whole(tokens), tokens), RATE)
        if losses and replicas == 1:
            difference = max(difference, abs(float(torch.stack(losses).mean()) - expected))
        for value in (value for chunk in held for value in chunk.parameters()):
            dist.all_reduce(value.grad, group=parallel_state.get_data_parallel_group())
        descend((value for chunk in held for value in chunk.parameters()), RATE / replicas)
    own_layers = {layer for chunk in held for layer in chunk.layers}
    pairs = [(one, other) for one, other in zip(layers, whole, strict=True) if one in own_layers]
    difference = max(difference, *(distance(one, other) for one, other in pairs))
    parallel_state.destroy_model_parallel()
    return {
        "difference": difference,
        "moved": distance(whole, start),
        "order": order[: len(order) // steps],
    }


def _held(config: TransformerConfig, layers: torch.nn.Sequential) -> list[Chunk]:
    """Return this rank's chunks, of the layers that Megatron's layout gives each."""
    layout = config.pipeline_model_parallel_layout.layout
    chunks, remaining = [], iter(layers)
    for number in range(len(layout[0])):
        for rank, own in enumerate(layout):
            taken = [next(remaining) for _ in own[number]]
            if rank == parallel_state.get_pipeline_model_parallel_rank():
                chunks.append(Chunk(config, number if len(layout[0]) > 1 else None, taken))
    return chunks


def _forward(
    order: list[str], tokens: Iterator[torch.Tensor], chunk: Chunk
) -> tuple[torch.Tensor, Callable[..., Any]]:
    own = next(tokens)
    chunk.note("F", order)

    def loss(output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = loss_of(output, own)
        return found, found.detach().clone()

    output = chunk(own)
    output.register_hook(lambda _: chunk.note("B", order))
    return output, loss


if __name__ == "__main__":
    main()

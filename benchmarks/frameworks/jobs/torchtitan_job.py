"""Train torchtitan's own debug model by exported files on one rank of several, over gloo, without a GPU.

torchtitan parses the file, splits its model, parallelises the parts and builds the schedule; the loop around
is this one, since the trainer of these releases asks for a GPU. Each rank holds its losses and weights
against the whole model, trained in this process on the batch of all replicas.

Usage: RANK=0 WORLD_SIZE=2 python titan.py STORE STEPS FILE…
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LENGTH, VOCABULARY, RATE = 16, 2048, 0.05


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    store, steps, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch._utils._get_available_device_type = lambda: "cpu"  # what torchtitan takes its device from
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for file in files:
        _train(Path(file), world, steps)
    dist.barrier()
    dist.destroy_process_group()


def _train(path: Path, world: int, steps: int) -> None:
    os.chdir(path.parent)  # where TOML's path of the orders begins
    load = _load_toml if path.suffix == ".toml" else _load_python
    size, micro_batches, replica, replicas, model, split = load(path, world)
    whole = copy.deepcopy(model)
    schedule, parts, first, last = split()
    difference, before = 0.0, copy.deepcopy(whole)
    for step in range(steps):
        tokens = torch.randint(
            VOCABULARY,
            (replicas, size * micro_batches, LENGTH),
            generator=torch.Generator().manual_seed(step),
        )
        losses: list[torch.Tensor] = []
        own = tokens[replica]
        schedule.step(
            *([own] if first else []), target=own if last else None, losses=losses if last else None
        )
        loss = _train_whole(whole, tokens.flatten(0, 1))
        if last:
            total = torch.stack([each.detach().float() for each in losses]).sum()
            difference = max(difference, _across(replicas, total, loss))
        _update(parts, tokens.numel())
    for part in parts:
        expected = dict(whole.named_parameters())
        for name, value in part.named_parameters():
            name = name.replace("_checkpoint_wrapped_module.", "")
            difference = max(difference, float((_full(value) - expected[name]).detach().abs().max()))
    start = dict(before.named_parameters())
    moved = max(float((value - start[name]).detach().abs().max()) for name, value in whole.named_parameters())
    print("RESULT", json.dumps({"difference": difference, "moved": moved}), flush=True)


def _across(replicas: int, total: torch.Tensor, loss: torch.Tensor) -> float:
    """Return how far the loss is from the whole one; of replicas each has a part, which is only bounded."""
    return abs(float(total - loss)) / float(loss) if replicas == 1 else 0.0


def _load_python(path: Path, world: int) -> Any:
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None
    assert spec.loader is not None
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    _import_without_triton("torchtitan.models.llama3")
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    base = llama3_debugmodel()
    base.model_spec = model_registry("debugmodel")
    for layer in base.model_spec.model.layers:  # its own kernels are compiled ones
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    base.training.mixed_precision_param = "float32"
    base.parallelism.spmd_backend = "partial_dtensor"  # the other one asks for a later torch with replicas
    config = exported.planned(base)
    set_spmd_backend(config.parallelism.spmd_backend)
    config.model_spec.model.update_from_config(config=config)
    dims = ParallelDims.from_config(config.parallelism, world)
    dims.build_mesh()
    torch.manual_seed(0)
    model = config.model_spec.model.build()
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))

    def split() -> Any:
        return config.model_spec.pipelining_fn(
            model,
            parallel_dims=dims,
            training=config.training,
            parallelism=config.parallelism,
            compile_config=config.compile,
            ac_config=config.activation_checkpoint,
            dump_folder="",
            device=torch.device("cpu"),
            model_config=config.model_spec.model,
            parallelize_fn=config.model_spec.parallelize_fn,
            loss_fn=lambda *arguments: (_loss(*arguments), {}),
        )

    size = config.parallelism.pipeline_parallel_microbatch_size
    replica = dims.get_mesh("dp_replicate").get_local_rank() if dims.dp_replicate > 1 else 0
    return size, config.training.local_batch_size // size, replica, dims.dp_replicate, model, split


def _load_toml(path: Path, world: int) -> Any:
    _import_without_triton("torchtitan.models.llama3")
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed import ParallelDims
    from torchtitan.models.llama3 import get_train_spec

    config = ConfigManager().parse_args(["--job.config_file", str(path)])
    parallelism = config.parallelism
    dims = ParallelDims(
        dp_replicate=parallelism.data_parallel_replicate_degree,
        dp_shard=parallelism.data_parallel_shard_degree,
        cp=parallelism.context_parallel_degree,
        tp=parallelism.tensor_parallel_degree,
        pp=parallelism.pipeline_parallel_degree,
        ep=1,
        etp=1,
        world_size=world,
    )
    dims.build_mesh()
    spec = get_train_spec()
    arguments = spec.model_args["debugmodel"]
    torch.manual_seed(0)
    model = spec.model_cls(arguments)
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cpu"))

    def split() -> Any:
        return spec.pipelining_fn(
            model, dims, config, torch.device("cpu"), arguments, spec.parallelize_fn, _loss
        )

    size = parallelism.pipeline_parallel_microbatch_size
    return size, config.training.local_batch_size // size, 0, 1, model, split


def _loss(predicted: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the sum over tokens, as torchtitan's own loss."""
    return torch.nn.functional.cross_entropy(
        predicted.flatten(0, 1).float(), tokens.flatten(), reduction="sum"
    )


def _train_whole(whole: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    whole.zero_grad()
    loss = _loss(whole(tokens), tokens)
    loss.backward()
    with torch.no_grad():
        for value in whole.parameters():
            assert value.grad is not None
            value.sub_(value.grad, alpha=RATE / tokens.numel())
    return loss.detach()


def _update(parts: list[torch.nn.Module], count: int) -> None:
    """Take a step of gradient descent; torchtitan sums over replicas, and divides the loss."""
    with torch.no_grad():
        for value in (value for part in parts for value in part.parameters()):
            assert value.grad is not None
            value.sub_(value.grad, alpha=RATE / count)
            value.grad = None


def _full(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else value.detach()


class _Absent(types.ModuleType):
    """A module whose every name is a decorator that leaves a function as it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return arguments[0] if arguments and callable(arguments[0]) else self


def _import_without_triton(name: str) -> None:
    """Import torchtitan without the compiler of its GPU kernels, none of which is called here."""
    if importlib.util.find_spec("triton") is not None:
        return

    importlib.import_module("torch._inductor.compile_fx")  # which finds no compiler, and remembers that
    stand_ins = {each: _Absent(each) for each in ("triton", "triton.language")}
    sys.modules.update(stand_ins)
    importlib.import_module(name)
    for each in stand_ins:
        del sys.modules[each]


if __name__ == "__main__":
    main()

"""Train torchtitan's own debug model by exported files on one rank of several, over gloo, without a GPU.

torchtitan parses the file, splits its model, parallelises the parts and builds the schedule; the loop around
is this one, since the trainer of these releases asks for a GPU. Each rank holds its losses and weights
against the whole model, trained in this process on the batch of all replicas.

Usage: RANK=0 WORLD_SIZE=2 python titan.py STORE STEPS FILE…
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from benchmarks.frameworks.jobs.one_process import (
    descend,
    import_file,
    loss_of,
    random_tokens,
    run_job,
    train_whole,
)

LENGTH, VOCABULARY, RATE = int(os.environ.get("LENGTH", "16")), 2048, 0.05


def main() -> None:
    """Train and print how far losses and weights are from those of one process."""
    torch._utils._get_available_device_type = lambda: "cpu"  # what torchtitan takes its device from
    run_job(lambda file, steps: _train(Path(file), steps))


class Job(NamedTuple):
    """What an exported file makes of the debug model.

    Attributes:
        micro_batches: of one replica in a step.
        shape: of the tokens of one.
        replica: which of them this rank is of.
        replicas: how many there are.
        model: the whole one.
        split: returns schedule and parts of this rank, and whether the first and the last stage are there.
        names: of the configuration's options, by table, and of the model's modules.
    """

    micro_batches: int
    shape: tuple[int, ...]
    replica: int
    replicas: int
    model: torch.nn.Module
    split: Callable[[], Any]
    names: dict[str, list[str]]


def _train(path: Path, steps: int) -> dict[str, Any]:
    os.chdir(path.parent)  # where TOML's path of the orders begins
    load = load_toml if path.suffix == ".toml" else load_python
    job = load(path, dist.get_world_size())
    whole, start = copy.deepcopy(job.model), copy.deepcopy(job.model)
    schedule, parts, first, last = job.split()
    difference = 0.0
    for step in range(steps):
        tokens = random_tokens(step, (job.replicas, job.micro_batches, *job.shape), VOCABULARY)
        losses: list[torch.Tensor] = []
        own = tokens[job.replica].flatten(0, 1)
        schedule.step(
            *([own] if first else []), target=own if last else None, losses=losses if last else None
        )
        rate = RATE / tokens.numel()  # torchtitan sums over replicas, and divides the loss
        loss = train_whole(
            whole,
            torch.stack([loss_of_tokens(whole(each), each) for each in tokens.flatten(0, 1)]).sum(),
            rate,
        )
        if last:
            total = torch.stack([each.detach().float() for each in losses]).sum()
            difference = max(difference, _across(job.replicas, float(total), loss))
        descend((value for part in parts for value in part.parameters()), rate)
    expected, begun = dict(whole.named_parameters()), dict(start.named_parameters())
    for part in parts:
        for name, value in part.named_parameters():
            name = name.replace("_checkpoint_wrapped_module.", "")
            difference = max(difference, float((_full(value) - expected[name]).detach().abs().max()))
    moved = max(float((value - begun[name]).detach().abs().max()) for name, value in expected.items())
    return {"difference": difference, "moved": moved, "names": job.names}


def _across(replicas: int, total: float, loss: float) -> float:
    """Return how far the loss is from the whole one; of replicas each has a part, which is only bounded."""
    return abs(total - loss) / loss if replicas == 1 else 0.0


def load_python(path: Path, world: int) -> Job:
    """Return what a file of 0.3.0 or main makes of the debug model."""
    exported = import_file(path)
    import_models()
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend
    from torchtitan.models.common.attention import ScaledDotProductAttention as Attention
    from torchtitan.models.llama3 import model_registry
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    base = llama3_debugmodel()
    base.model_spec = model_registry("debugmodel")
    has_tokens = hasattr(base.training, "max_context_length")
    for layer in base.model_spec.model.layers:  # its own kernels are compiled ones
        layer.attention.inner_attention = (_packed_attention() if has_tokens else Attention).Config()
    if has_tokens:
        base.training.max_context_length = LENGTH
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
        spec = config.model_spec
        options = {
            "parallel_dims": dims,
            "training": config.training,
            "parallelism": config.parallelism,
            "compile_config": config.compile,
            "ac_config": config.activation_checkpoint,
            "dump_folder": "",
        }
        if not dims.pp_enabled:
            return None, [spec.parallelize_fn(model, **options)], True, True
        return spec.pipelining_fn(
            model,
            **options,
            device=torch.device("cpu"),
            model_config=spec.model,
            parallelize_fn=spec.parallelize_fn,
            loss_fn=lambda *arguments: (loss_of_tokens(*arguments), {}),
        )

    replica = dims.get_mesh("dp_replicate").get_local_rank() if dims.dp_replicate > 1 else 0
    return Job(*_batches(config), replica, dims.dp_replicate, model, split, _names(config, model))


def _names(config: Any, model: torch.nn.Module) -> dict[str, list[str]]:
    """Return the options that there are, and the modules with parameters, in order."""
    tables = {"training": config.training, "parallelism": config.parallelism}
    found = {table: sorted(each.name for each in dataclasses.fields(own)) for table, own in tables.items()}
    return found | {"modules": [name for name, part in model.named_children() if [*part.parameters()]]}


def _packed_attention() -> Any:
    """Return attention over tokens in a row, of which main's own takes batches alone."""
    from torchtitan.models.common.attention import ScaledDotProductAttention

    class PackedAttention(ScaledDotProductAttention):
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(ScaledDotProductAttention.Config):
            pass

        def forward(self, *packed: torch.Tensor, **options: Any) -> torch.Tensor:
            return super().forward(*(each.unsqueeze(0) for each in packed), **options).squeeze(0)

    return PackedAttention


def _batches(config: Any) -> tuple[int, tuple[int, ...]]:
    """Return the number of micro-batches of a replica and their shape; main's are of tokens in a row."""
    training, parallelism = config.training, config.parallelism
    if not hasattr(parallelism, "num_pp_microbatches"):
        size = parallelism.pipeline_parallel_microbatch_size
        return training.local_batch_size // size, (size, LENGTH)
    size = training.num_tokens_per_microbatch_per_dp_rank
    replicas = parallelism.data_parallel_replicate_degree
    count, left_over = divmod(training.num_tokens_per_train_step, size * replicas)
    assert (count, left_over) == (parallelism.num_pp_microbatches, 0), (
        "the trainer would accumulate gradients"
    )
    return count, (size,)


def load_toml(path: Path, world: int) -> Job:
    """Return what a file of 0.2.2 makes of the debug model."""
    import_models()
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
            model, dims, config, torch.device("cpu"), arguments, spec.parallelize_fn, loss_of_tokens
        )

    size = parallelism.pipeline_parallel_microbatch_size
    return Job(
        config.training.local_batch_size // size, (size, LENGTH), 0, 1, model, split, _names(config, model)
    )


def loss_of_tokens(predicted: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Return the sum over tokens, as torchtitan's own loss."""
    return loss_of(predicted, tokens, "sum")


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


STAND_INS = ("triton", "triton.language", "datasets", "datasets.distributed", "torch.utils.tensorboard")
"""What compiles kernels, reads data and shows curves: imported with the models, and never called here."""


def import_models() -> None:
    """Import torchtitan's models and their configuration, without those of `STAND_INS` that are not there."""
    importlib.import_module("torch._inductor.compile_fx")  # which finds no compiler, and remembers that
    own = {"torch.utils.tensorboard": "tensorboard"}
    absent = [
        each for each in STAND_INS if importlib.util.find_spec(own.get(each, each.split(".")[0])) is None
    ]
    sys.modules.update((each, _Absent(each)) for each in absent)
    importlib.import_module("torchtitan.models.llama3")
    if importlib.util.find_spec("torchtitan.models.llama3.config_registry") is not None:
        importlib.import_module("torchtitan.models.llama3.config_registry")
    for each in absent:
        del sys.modules[each]


if __name__ == "__main__":
    main()

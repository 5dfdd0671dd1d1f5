"""A pipeline of two stages in two replicas; prints how far gradients are from the whole model's.

It forks four processes, which import torch once together: rank 2r + s holds stage s of replica r. Every
replica has rows of its own, so without an exchange between them gradients differ from the mean over all rows.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from planned_models import WORDS, encoder_decoder
from torch import nn
from torch.multiprocessing import start_processes
from torch.nn.parallel import DistributedDataParallel

from tessel.engine import EngineError, build_schedule
from tessel.handwritten import HANDWRITTEN
from tessel.schedule import Schedule
from tessel.shapes import vshape
from tuner.stages.torch_stages import split_module

WIDTH, ROWS, MICRO_BATCHES = 6, 2, 4

Group = dist.ProcessGroup


def schedule_of(rule: str) -> Schedule:
    builder = next(each for each in HANDWRITTEN if each.name == rule)
    return builder.build(vshape(2, split_backward=rule == "zb-h1"), micro_batches=MICRO_BATCHES)


def chain() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2)]


def square_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def word_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def error(found: nn.Module, expected: nn.Module) -> float:
    """Return the largest error over this rank's weights; a gradient that is missing has one without bound."""
    true = dict(expected.named_parameters(remove_duplicate=False))
    errors = []
    for name, weight in found.named_parameters():
        gradient = true[name].grad
        if weight.grad is None:
            return float("inf")
        errors.append(float((weight.grad - gradient).abs().max() / gradient.abs().max()))
    return max(errors)


def of_chain(rule: str, stage: int, replica: int, across: Group, along: Group) -> float:
    torch.manual_seed(1)
    x, target = (torch.randn(2, MICRO_BATCHES * ROWS, WIDTH) for _ in range(2))
    own = chain()[stage]
    replicated = DistributedDataParallel(own, process_group=across)
    runtime = build_schedule(schedule_of(rule), {stage: replicated}, square_loss, group=along)
    for _ in range(2):  # The second step starts from what the first one left.
        replicated.zero_grad()
        runtime.step(*([x[replica]] if stage == 0 else []), **({"target": target[replica]} if stage else {}))
    whole = chain()
    torch.autograd.backward(square_loss(nn.Sequential(*whole)(x.flatten(0, 1)), target.flatten(0, 1)))
    return error(own, whole[stage])


def of_words(rule: str, stage: int, replica: int, across: Group, along: Group) -> float:
    """An encoder and a decoder whose embeddings are one tensor, of which each rank has a copy."""
    torch.manual_seed(2)
    source, target = torch.randint(0, WORDS, (2, 2, MICRO_BATCHES * ROWS, 3))
    module, example = encoder_decoder()
    cut = split_module(module, example, ["decoder.0"]).stages[stage].module
    replicated = DistributedDataParallel(cut, process_group=across)
    runtime = build_schedule(schedule_of(rule), {stage: replicated}, word_loss, group=along)
    given = [source[replica], target[replica]] if stage == 0 else []
    runtime.step(*given, **({"target": target[replica]} if stage else {}))
    whole, _ = encoder_decoder()
    words = target.flatten(0, 1)
    word_loss(whole(source.flatten(0, 1), words), words).backward()
    return error(cut, whole)


def hook_is_refused(stage: int, across: Group, along: Group) -> str:
    replicated = DistributedDataParallel(chain()[stage], process_group=across)
    replicated.register_comm_hook(None, lambda state, bucket: bucket.buffer())
    try:
        build_schedule(schedule_of("zb-h1"), {stage: replicated}, square_loss, group=along)
    except EngineError as refusal:
        return str(refusal)
    return ""


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=4)
    replica, stage = divmod(dist.get_rank(), 2)
    # Every process makes every group, in the same order.
    along = [dist.new_group([0, 1]), dist.new_group([2, 3])][replica]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])][stage]
    cases: dict[str, Callable[..., float]] = {"chain": of_chain, "words": of_words}
    found: dict[str, float | str] = {
        f"{name} {rule}": case(rule, stage, replica, across, along)
        for name, case in cases.items()
        for rule in ("1f1b", "zb-h1")
    }
    found["hook"] = hook_is_refused(stage, across, along)
    gathered: list[object] = [None] * 4
    dist.all_gather_object(gathered, found)
    if dist.get_rank() == 0:
        print(json.dumps(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        start_processes(run_rank, (folder,), nprocs=4, start_method="fork")

"""Train the model of a tuned plan: compiled stages in its order, AdamW, clipping, a checkpoint half-way.

    tessel tune examples/own_model.py:build --devices 2 --micro-batches 4 --out out/own
    torchrun --nproc-per-node 2 examples/train_plan.py out/own/plan.json examples/own_model.py:build 100

A process for each device of the plan. The plan names the code that it was tuned for; naming that again says
that it may run. Half-way every rank saves its weights and the state of its optimizer, everything is built
anew, and training goes on from the files. At the end losses and norms of gradients are compared with those of
the user's own module, trained by plain torch in one process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from tessel.engine.import_function import find_function
from tessel.engine.training import TrainingPipeline, own_stages
from tessel.loading import load_plan
from tessel.tuned_plan import TunedPlan
from tuner.frontend.model import Model
from tuner.programs.compiled_stages import ProgramSpec, load_planned_model, load_programs
from tuner.programs.inputs import draw_inputs

Batch = Callable[[int], dict[str, torch.Tensor]]
"""Gives the inputs and labels of a micro-batch by name."""

RATE, MAX_NORM = 1e-3, 0.5
TOLERANCE = 1e-3
"""Relative; what another order of float32 sums comes to in a hundred steps of AdamW."""

Curve = list[tuple[float, float]]
"""The mean loss and the norm of the gradients of each step."""


def build(plan: TunedPlan, batch: Batch) -> tuple[TrainingPipeline, torch.optim.Optimizer]:
    """Return this rank's stages in the plan's order, and an optimizer of their weights."""
    stages = own_stages(plan.schedule, dist.get_rank())
    programs = load_programs(ProgramSpec(plan=plan, trust_model=True), stages, inputs=batch)
    pipeline = TrainingPipeline(
        plan.schedule, programs, tied=plan.tied, copies=plan.replicas, branches=plan.stages_before
    )
    return pipeline, torch.optim.AdamW(pipeline.parameters(), lr=RATE)


def train(pipeline: TrainingPipeline, optimizer: torch.optim.Optimizer, steps: int) -> Curve:
    """Return the steps' losses and norms; losses are known to the ranks of the last stage of each replica."""
    curve = []
    for _ in range(steps):
        known: list[dict[int, float]] = [{}] * dist.get_world_size()
        dist.all_gather_object(known, pipeline.step())
        losses = {micro_batch: loss for each in known for micro_batch, loss in each.items()}
        norm = pipeline.clip_grad_norm_(MAX_NORM)
        optimizer.step()
        curve.append((sum(losses.values()) / len(losses), norm))
    return curve


def train_in_one_process(module: nn.Module, model: Model, batch: Batch, plan: TunedPlan, steps: int) -> Curve:
    """Return what plain torch makes of the same steps."""
    module.eval()
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE)
    num_micro_batches = plan.schedule.micro_batches * plan.replicas
    curve = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros(())
        for micro_batch in range(num_micro_batches):
            known = batch(micro_batch)
            *inputs, labels = (known[spec.name] for spec in model.inputs)
            logits = module(*inputs)
            loss = loss + nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        torch.autograd.backward(loss / num_micro_batches)
        norm = torch.nn.utils.clip_grad_norm_(module.parameters(), MAX_NORM)
        optimizer.step()
        curve.append((loss.item() / num_micro_batches, norm.item()))
    return curve


def main() -> None:
    plan_path, model_name, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plan = load_plan(Path(plan_path))
    if plan.model != model_name:
        sys.exit(f"{plan_path} was tuned for {plan.model}, not for {model_name}; name that, if you trust it")
    model = load_planned_model(ProgramSpec(plan=plan, trust_model=True))
    drawn = [draw_inputs(model, 0, m) for m in range(plan.schedule.micro_batches * plan.replicas)]
    batch: Batch = drawn.__getitem__  # a loader's next batch, cut into micro-batches, in a real loop

    pipeline, optimizer = build(plan, batch)
    curve = train(pipeline, optimizer, steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"rank{dist.get_rank()}.pt"
        torch.save({"weights": pipeline.state_dict(), "optimizer": optimizer.state_dict()}, file)
        pipeline, optimizer = build(plan, batch)
        saved = torch.load(file, weights_only=True)
        pipeline.load_state_dict(saved["weights"])
        optimizer.load_state_dict(saved["optimizer"])
    curve += train(pipeline, optimizer, steps - steps // 2)

    if dist.get_rank() == dist.get_world_size() - 1:
        module, _ = find_function(model_name)()
        alone = train_in_one_process(module, model, batch, plan, steps)
        loss_error, norm_error = (
            max(abs(mine[column] / theirs[column] - 1) for mine, theirs in zip(curve, alone, strict=True))
            for column in (0, 1)
        )
        print(f"loss {curve[0][0]:.4f} at first, {curve[-1][0]:.4f} after {steps} steps")
        print(
            f"against training in one process, losses differ by at most {loss_error:.1e}, norms of gradients "
            f"by {norm_error:.1e}"
        )
        if not max(loss_error, norm_error) <= TOLERANCE:
            sys.exit(f"beyond {TOLERANCE:.0e}: the pipeline does not train as the module does")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

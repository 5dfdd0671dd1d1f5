"""The layout that a plan is compared with: cuts, a layout of Megatron, or a plan that was saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tessel.jobs.arguments import parse_cuts

if TYPE_CHECKING:
    from scripts.commands.plan.options import PlanCommandOptions
    from tessel.planning.layout import Layout
    from tessel.profiles.profile import Profile


def layout_by_hand(text: str, profile: Profile, options: PlanCommandOptions) -> Layout:
    """Return the layout that the user wrote.

    Of cuts and of a layout of Megatron, `--pipeline` says the devices of a pipeline (one stage each unless
    given), `--tensor-parallel` and `--micro-batch` what else is left open, and the rest of the devices are
    replicas.

    Raises:
        typer.BadParameter: degrees and stages do not go together.
        ScheduleError: the text is no layout of this profile.
    """
    from tessel.planning.layout import Layout
    from tessel.planning.saved_plan import load_saved_plan

    if Path(text).suffix == ".json":
        return load_saved_plan(Path(text)).layout
    tensor_parallel = options.tensor_parallel or 1
    micro_batch = options.micro_batch or min(profile.micro_batches)
    cuts = _cuts(text, profile, options)
    if cuts[-1][1] != len(profile.layers) - 1 or cuts[0][0] != 0:
        raise typer.BadParameter(
            f"--by-hand holds layers {cuts[0][0]} to {cuts[-1][1]}, and the profile has 0 to "
            f"{len(profile.layers) - 1}; give each layer a stage"
        )
    pipeline = options.pipeline or len(cuts)
    replicas, rest = divmod(options.devices, pipeline * tensor_parallel)
    micro_batches, left = divmod(options.samples_of_step(profile), max(replicas, 1) * micro_batch)
    if rest or not replicas or left or not micro_batches or len(cuts) % pipeline:
        raise typer.BadParameter(
            f"--by-hand has {len(cuts)} stages on pipelines of {pipeline} devices with tensor-parallel "
            f"degree {tensor_parallel}, which {options.devices} devices and "
            f"{options.samples_of_step(profile)} samples per step cannot be divided by; "
            "give --pipeline, --devices and the batch as you run it"
        )
    return Layout(
        data_parallel=replicas,
        pipeline=pipeline,
        tensor_parallel=tensor_parallel,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        placement="vshape" if len(cuts) == pipeline else "interleaved",
        cuts=cuts,
    )


def _cuts(text: str, profile: Profile, options: PlanCommandOptions) -> tuple[tuple[int, int], ...]:
    """Return the first and last layer of each stage."""
    from tessel.checking.sources import cuts_of_layout
    from tessel.exports.megatron import read_layout

    if not any(letter in text for letter in "EL|"):
        return parse_cuts("--by-hand", text)
    if options.pipeline is None:
        raise typer.BadParameter("--by-hand is a layout of Megatron, which does not say --pipeline; give it")
    return cuts_of_layout(read_layout(text, options.pipeline), profile)

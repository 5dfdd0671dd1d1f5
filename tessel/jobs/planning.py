"""`tessel.plan`: from a table of layer timings, or a model, to the best use of so many devices.

`PlanOptions` are the options of the command `tessel plan`, with its names and defaults; what a person writes
on a command line (`"80GiB"`, `"100GB/s"`) and plain numbers are both taken. Checked in
tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessel.errors import InfeasibleError, UsageError
from tessel.jobs import jit_fallback, search_thread
from tessel.jobs.inputs.arguments import (
    parse_cuts,
)
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.jobs.inputs.plan_options import PlanOptions
from tessel.jobs.plan import Plan
from tessel.jobs.sources import ProfileSource, profile_of_source
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.batches.mixture import Mixture
    from tessel.jobs.inputs.plan_view import PlanView
    from tessel.planning.layout import Layout
    from tessel.planning.plan_result import PlanProgress, PlanResult
    from tessel.profiles.profile import Profile
    from tessel.search.budget import SearchBudget


def plan(source: ProfileSource, example_inputs: Any = None, /, **options: Any) -> Plan:
    """Find degrees, cuts, placement and order of a training step: the fastest that fits.

        >>> import tessel
        >>> layer = {"forward_ms": 1, "backward_ms": 2, "weights_mib": 9, "saved_mib": 1, "boundary_mib": 1}
        >>> rows = [{"layer": name, **layer} for name in "abcdefgh"]
        >>> found = tessel.plan(rows, devices=2, micro_batches=8, work=2)
        >>> found.step_ms >= found.lower_bound_ms
        True

    Progress is shown on stderr, and Ctrl-C ends the search with the best plan so far. Where nothing fits the
    memory, the plan that comes nearest is returned, and says so in `fits` and `shortfall`.

    Args:
        source: a table of timings as a path, a list of rows, a pandas frame or a `Profile`; a plan; or a
            model, whose layers are measured: a torch module, an exported program, a file or a name.
        example_inputs: of a torch module: a tensor, a sequence of inputs by position, or a mapping by name.
        options: those of the command `tessel plan`, as `devices=16, memory="80GiB", global_batch=512`; see
            `PlanOptions`. `progress=False` shows nothing.

    Raises:
        UsageError: there is no such option, or a value is none.
        DocumentError: the source cannot be read.
        ScheduleError: no degrees use the devices for this batch; says what to change.
        TunerError: the model cannot be imported or measured.
        KeyboardInterrupt: interrupted before there was any plan.
    """
    with messages.verbosity(quiet=not options.pop("progress", True)):
        return plan_with(source, options_of(PlanOptions, options), example_inputs)


def plan_with(source: ProfileSource, options: PlanOptions, example_inputs: Any = None) -> Plan:
    """Return the plan that these options ask for; see `plan`."""
    from tessel.planning.saved_plan import SavedPlan

    options.check()
    options, profile, mixture = options.of_classes(profile_of_source(source, options, example_inputs))
    jit_fallback.compile_if_needed()
    budget = options.budget()
    result, shortfall = _find(profile, mixture, options, budget)
    return Plan(
        planned=SavedPlan.of(result, profile, result.job),
        found=result,
        stopped_by=result.stopped_by,
        fits=not shortfall,
        shortfall=shortfall,
    )


def _find(
    profile: Profile, mixture: Mixture | None, options: PlanOptions, budget: SearchBudget
) -> tuple[PlanResult, str]:
    """Return the best plan, and why it does not fit; an empty text where it does."""
    from tessel.planning.find_sharded import find_sharded

    by_hand = None if options.by_hand is None else layout_by_hand(options.by_hand, profile, options)
    choices, towers = options.choices(by_hand), options.towers(profile)
    texts = ["planning"]

    def tell(progress: PlanProgress) -> None:
        texts.append(
            f"best so far {progress.step_us / 1e3:.4g} ms, at least {progress.lower_bound_us / 1e3:.4g} ms"
        )

    def search(*, may_exceed_memory: bool) -> PlanResult:
        given = replace(choices, may_exceed_memory=may_exceed_memory)
        return search_thread.run_search(
            lambda: find_sharded(
                profile,
                options.open_jobs(profile, mixture),
                towers=towers,
                options=given,
                budget=budget,
                seed=options.seed,
                on_progress=tell,
            ),
            budget,
            description="planning",
            texts=texts,
        )

    try:
        return search(may_exceed_memory=False), ""
    except InfeasibleError as error:
        texts.append("nothing fits; looking for what comes nearest")
        return search(may_exceed_memory=True), str(error)


def layout_by_hand(
    given: str | os.PathLike[str] | PlanView, profile: Profile, options: PlanOptions
) -> Layout:
    """Return the layout that the user wrote.

    Of cuts and of a layout of Megatron, `pipeline` says the devices of a pipeline (one stage each unless
    given), the other degrees and `micro_batch` what else is left open, and the rest of the devices are
    replicas.

    Raises:
        UsageError: degrees and stages do not go together.
        ScheduleError: the text is no layout of this profile.
    """
    import msgspec

    from tessel.planning.layout import Layout
    from tessel.planning.saved_plan import load_saved_plan

    if not isinstance(given, str | os.PathLike):
        if given.planned is None:
            raise UsageError(f"--by-hand is {given!r}, of a model; give a plan of a table")
        return given.planned.layout
    text = os.fspath(given)
    if Path(text).suffix == ".json":
        return load_saved_plan(Path(text)).layout
    tensor_parallel, context_parallel = options.degree or 1, options.context_parallel or 1
    micro_batch = options.micro_batch or min(profile.micro_batches)
    cuts = _cuts(text, profile, options)
    if cuts[-1][1] != len(profile.layers) - 1 or cuts[0][0] != 0:
        raise UsageError(
            f"--by-hand holds layers {cuts[0][0]} to {cuts[-1][1]}, and the profile has 0 to "
            f"{len(profile.layers) - 1}; give each layer a stage"
        )
    pipeline = options.pipeline or len(cuts)
    degrees = (tensor_parallel,) * pipeline
    if isinstance(options.degrees, tuple) and len(options.degrees) == pipeline:
        degrees = options.degrees
    replicas, rest = divmod(options.devices, sum(degrees) * context_parallel)
    micro_batches, left = divmod(options.samples_of_step(profile), max(replicas, 1) * micro_batch)
    if rest or not replicas or left or not micro_batches or len(cuts) % pipeline:
        raise UsageError(
            f"--by-hand has {len(cuts)} stages on pipelines of {pipeline} positions with "
            f"{sum(degrees) * context_parallel} devices in all, which {options.devices} devices and "
            f"{options.samples_of_step(profile)} samples per step cannot be divided by; "
            "give --pipeline, --devices and the batch as you run it"
        )
    return Layout(
        data_parallel=replicas,
        pipeline=pipeline,
        tensor_parallel=max(degrees),
        stage_tensor_parallel=degrees if len(set(degrees)) > 1 else msgspec.UNSET,
        context_parallel=context_parallel,
        expert_parallel=options.expert_parallel or 1,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        placement="vshape" if len(cuts) == pipeline else "interleaved",
        cuts=cuts,
    )


def _cuts(text: str, profile: Profile, options: PlanOptions) -> tuple[tuple[int, int], ...]:
    """Return the first and last layer of each stage."""
    from tessel.checking.sources import cuts_of_layout
    from tessel.exports.megatron import read_layout

    if not any(letter in text for letter in "EL|"):
        return parse_cuts("--by-hand", text)
    if options.pipeline is None:
        raise UsageError("--by-hand is a layout of Megatron, which does not say --pipeline; give it")
    return cuts_of_layout(read_layout(text, options.pipeline), profile)


with_signature(plan, PlanOptions)

"""`tessel.tune`: from a model and a target to the plan of a pipeline of measured stages.

    model ─► layers measured ─► layout planned, or as asked for ─► stages measured ─► order searched

`TuneOptions` are the options of the command `tessel tune`, with its names and defaults. Checked in
tests/tessel/jobs/test_tuning.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tessel.errors import ScheduleError, UsageError
from tessel.jobs.inputs.arguments import (
    describe_shapes,
    sorted_shapes,
)
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.jobs.inputs.tune_options import Shapes, TuneOptions
from tessel.jobs.layouts.placement_schedules import find_plan
from tessel.jobs.layouts.placements import measure_placements, settings_by_placement
from tessel.jobs.plan import Plan
from tessel.jobs.sources import load_model
from tessel.progress import messages

if TYPE_CHECKING:
    from tessel.tuned_plan import TunedPlan
    from tuner.tuning.tune import TuningSettings


def tune(model: Any, example_inputs: Any = None, /, **options: Any) -> Plan:
    """Find a fast way to run a model on several devices, from what its parts take on the target.

        >>> import tessel
        >>> found = tessel.tune("mlp:tiny", devices=2, micro_batches=4, backends=["tvm"])  # doctest: +SKIP
        >>> found.compare()  # doctest: +SKIP

    Progress is shown on stderr. Ctrl-C ends a search of schedules with the best so far; while parts are
    measured it raises KeyboardInterrupt, and finished measurements are kept.

    Args:
        model: a torch module, an exported program, the path of a file `.onnx` or `.pt2`, or a name of the
            zoo or `module:function` as the command takes it.
        example_inputs: of a torch module: a tensor, a sequence of inputs by position, or a mapping by name.
        options: those of the command `tessel tune`, as `devices=4, micro_batches=16, memory="640MiB"`; see
            `TuneOptions`. `progress=False` shows nothing.

    Raises:
        UsageError: there is no such option, or a value is none.
        TunerError: the model cannot be imported or cut so, or nobody can run a part of it; names it.
        InfeasibleError: it does not fit the memory so.
    """
    with messages.verbosity(quiet=not options.pop("progress", True)):
        return tune_with(model, options_of(TuneOptions, options), example_inputs)


def tune_with(model: Any, options: TuneOptions, example_inputs: Any = None) -> Plan:
    """Return the plan that these options ask for; see `tune`."""
    import msgspec

    options.check()
    if options.threads is None and options.target == "cpu":
        # The pipeline's devices share this machine's cores, so each is measured with its share.
        options = replace(options, threads=threads_of_device(options.devices))
    placements = settings_by_placement(options)
    shapes, *others = sorted_shapes(options.shape)
    _check_other_shapes(others, placements, options)
    loaded = _load(model, example_inputs, shapes, options)
    tuned, choice = measure_placements(loaded, placements, shapes, options)
    plan, stopped_by = find_plan(tuned, choice, options)
    if others:
        found = [_plan_for(each, plan, placements, options, (model, example_inputs)) for each in others]
        plan = msgspec.structs.replace(plan, other_shapes=tuple(found))
    return Plan(tuned=plan, stopped_by=stopped_by)


def threads_of_device(devices: int) -> int:
    """Return how many threads each pipeline device gets if they share this machine, at least one."""
    from records.cores import num_usable_cores

    return max(1, num_usable_cores() // devices)


def _load(model: Any, example_inputs: Any, shapes: Shapes, options: TuneOptions) -> Any:
    return load_model(
        model,
        example_inputs,
        shape=shapes,
        value=options.value,
        batch=options.batch,
        training=options.train,
    )


def _plan_for(
    shapes: Shapes,
    plan: TunedPlan,
    placements: dict[str, TuningSettings],
    options: TuneOptions,
    source: tuple[Any, Any],
) -> TunedPlan:
    """Tune a planned model for other shapes, in the same stages.

    Raises:
        ScheduleError: for these shapes the stages hold other weights.
    """
    cuts = tuple(stage.layers[-1] for stage in plan.stages[: plan.stages_of_copy - 1])
    name = options.placement_name
    placements = {name: replace(placements[name], cuts=cuts)}
    tuned, _ = measure_placements(_load(*source, shapes, options), placements, shapes, options)
    other, _ = find_plan(tuned, None, options)
    for one, same in zip(plan.stages, other.stages, strict=True):
        if one.parameters != same.parameters:
            raise ScheduleError(
                f"{one.name} of {plan.model} holds other weights for {describe_shapes(shapes)} than for "
                f"{describe_shapes(plan.shapes)}; cut the model elsewhere with --cut, or tune them apart"
            )
    return other


def _check_other_shapes(
    others: Sequence[object], placements: Mapping[str, TuningSettings], options: TuneOptions
) -> None:
    """Refuse several shapes where stages are no chain that can be cut alike again."""
    from tessel.tuned_model.model_placement import AUTO

    is_chain = all(each.placed is None and not each.divides_ends for each in placements.values())
    if others and not (is_chain and options.placement_name != AUTO):
        raise UsageError(
            f"--shape gives an input several shapes, and stages of --placement {options.placement_name} "
            "cannot be cut alike for each; give one shape, or vshape, interleaved:C, zbv or xshape"
        )


with_signature(tune, TuneOptions)

"""`tessel.tune`: from a model and a target to the plan of a pipeline of measured stages.

    model ─► layers measured ─► layout planned, or as asked for ─► stages measured ─► order searched

`TuneOptions` are the options of the command `tessel tune`, with its names and defaults. Checked in
tests/tessel/jobs/test_tuning.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tessel.errors import ScheduleError, UsageError
from tessel.jobs.inputs.arguments import (
    check_choice,
    check_counts,
    describe_shapes,
    parse_bytes,
    sorted_shapes,
)
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.jobs.inputs.limits import make_budget
from tessel.jobs.inputs.sources import load_model
from tessel.jobs.layouts.placement_schedules import find_plan
from tessel.jobs.layouts.placements import measure_placements, settings_by_placement
from tessel.jobs.plan import Plan
from tessel.jobs.sessions import shown_report
from tessel.progress import messages
from tuner.tuning.search.options import SearchOptions

if TYPE_CHECKING:
    from tessel.tuned_plan import TunedPlan
    from tuner.tuning.tune import TuningSettings

OPTIMIZERS = ("none", "sgd", "momentum", "adam")

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class TuneOptions(SearchOptions):
    """How a model is cut into stages, placed and scheduled; those of `SearchOptions` say how it is measured.

    Attributes:
        devices: of the pipeline.
        micro_batches: of one step.
        memory: of one device, such as `16GiB`, or bytes; unlimited if None.
        train: whether forward and backward are tuned, or the forward alone.
        batch: samples of a micro-batch of a model of the zoo.
        shape: of inputs by name; several of these are planned in the same stages, cut for the largest.
        value: of inputs that become constants, by name.
        cut: modules after which the model is cut; as it marks them, or found, if None.
        optimizer: whose state each device keeps: one of `OPTIMIZERS`.
        hop_us: latency of one hop; measured if None.
        placement: `vshape`, `interleaved:2`, `zbv`, `xshape`, `mshape`, `nnshape`, `kshape`, the path of a
            placement, or `auto`: as planned from measured layers.
        link: bandwidth between devices in one direction, such as `10GB/s`, or bytes a second; measured
            between processes if None.
        no_recompute: whether all activations are kept.
        work: units of the search of schedules, of about a second each.
        time_limit: of that search, such as `10s`, or seconds.
        trial_budget: trials of all kernels of the model together.
        graph_level_search: whole programs that an evolutionary search may measure after the first answer.
    """

    devices: int = 4
    micro_batches: int = 16
    memory: str | int | None = None
    train: bool = True
    batch: int = 1
    shape: Shapes | Sequence[Shapes] | None = None
    value: Mapping[str, bool | int | float] | None = None
    cut: Sequence[str] | None = None
    optimizer: str = "sgd"
    hop_us: float | None = None
    placement: str | os.PathLike[str] = "vshape"
    link: str | float | None = None
    no_recompute: bool = False
    work: float | None = None
    time_limit: str | float | None = None
    trial_budget: int | None = None
    graph_level_search: int = 0

    @property
    def memory_limit_bytes(self) -> int | None:
        """Memory of one device; None without a limit.

        Raises:
            UsageError: it is no size.
        """
        return None if self.memory is None else parse_bytes(str(self.memory))

    @property
    def placement_name(self) -> str:
        """The placement as text."""
        return os.fspath(self.placement)

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is loaded.

        Raises:
            UsageError: there is one.
            ScheduleError: there is no such placement.
        """
        from tessel.tuned_model.model_placement import check_placement_name

        check_placement_name(self.placement_name)
        _ = self.memory_limit_bytes  # which refuses what is no size
        make_budget(self.work, self.time_limit)
        check_counts(self, ("devices", "micro_batches", "batch"))
        check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        if self.hop_us is not None and not 0 <= self.hop_us < 1e9:
            raise UsageError(f"--hop-us is {self.hop_us}; a latency is a number of microseconds >= 0")
        if self.devices > 1 and self.hop_us is None and self.target.startswith("rpc://"):
            raise UsageError(
                f"--target {self.target} is behind an RPC tracker, and what a tensor takes from one of its "
                "devices to another is not measured from here; give --hop-us, and --link where stages are "
                "divided"
            )


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
    options = _spend_trials(options, loaded)
    tuned, choice = measure_placements(loaded, placements, shapes, options)
    plan, stopped_by = find_plan(tuned, choice, options)
    if others:
        found = [_plan_for(each, plan, placements, options, (model, example_inputs)) for each in others]
        plan = msgspec.structs.replace(plan, other_shapes=tuple(found))
    return Plan(document=plan, stopped_by=stopped_by)


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


def _spend_trials(options: TuneOptions, model: Any) -> TuneOptions:
    from tuner.tuning.search.kernel_budget import spend_trials

    with messages.bar("tuning kernels") as update:
        return spend_trials(options, model, options.trial_budget, shown_report(update))


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

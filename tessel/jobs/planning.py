"""`tessel.plan`: from a table of layer timings, or a model, to the best use of so many devices.

`PlanOptions` are the options of the command `tessel plan`, with its names and defaults; what a person writes
on a command line (`"80GiB"`, `"100GB/s"`) and plain numbers are both taken. Checked in
tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tessel.errors import InfeasibleError, UsageError
from tessel.jobs import jit_fallback, search_thread
from tessel.jobs.inputs.arguments import (
    check_choice,
    check_counts,
    parse_bandwidth,
    parse_bytes,
    parse_cuts,
    parse_duration,
)
from tessel.jobs.inputs.keywords import options_of, with_signature
from tessel.jobs.inputs.limits import check_hop_us, make_budget, only_time
from tessel.jobs.inputs.sources import ProfileSource, profile_of_source
from tessel.jobs.plan import Plan
from tessel.progress import messages
from tuner.tuning.search.options import PriceName

if TYPE_CHECKING:
    from tessel.placement import Placement
    from tessel.planning.cluster import Cluster, Link
    from tessel.planning.job import Job
    from tessel.planning.layout import Layout, PlacementName
    from tessel.planning.options import CustomPlacement
    from tessel.planning.options import PlanOptions as Choices
    from tessel.planning.plan_result import PlanProgress, PlanResult
    from tessel.profiles.profile import Profile
    from tessel.search.budget import SearchBudget

RUNTIMES = ("overlapped", "deepspeed")
PLACEMENTS = ("auto", "vshape", "interleaved", "zbv", "xshape", "mshape", "kshape")
OPTIMIZERS = ("none", "sgd", "momentum", "adam", "adam-mixed")
"""As the planner's own tables, whose modules load more than a completion may; checked in
tests/scripts/commands/test_plan.py."""

DEFAULT_MICRO_BATCHES_A_DEVICE = 4
"""Micro-batches of a step unless told otherwise: with four a device, 1F1B idles for a fifth of the step."""

DEFAULT_LINK = "100GB/s"
DEFAULT_HOP_US = 10.0
DEFAULT_OPTIMIZER = "adam"
DEFAULT_WORK = 30.0
DEFAULT_TIME_LIMIT_S = 60.0

Size = str | int
"""Bytes: `16GiB`, or a number."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What a plan is made for, and what it is made from.

    Attributes:
        devices: in all.
        memory: of one device, such as `80GiB`, or bytes; unlimited if None.
        device_memory: of each device where they differ.
        device_speed: of each device, relative to the profiled one.
        link: bandwidth between devices in one direction, such as `100GB/s`, or bytes a second.
        hop_us: microseconds of a message between devices.
        collective_link: bandwidth of a device in an all-reduce of gradients; as `link` if None.
        node_devices: devices of a node, connected by `node_link`.
        node_link: bandwidth between devices of one node.
        optimizer: whose state is kept in memory: one of `OPTIMIZERS`.
        runtime: `overlapped`, transfers overlap computation; `deepspeed`, they block it.
        global_batch: samples of a training step.
        micro_batches: in place of that: micro-batches of a step over all replicas, of the smallest size.
        placement: which device runs which stage: one of `PLACEMENTS`, a placement, or its file.
        data_parallel: replicas; found if None. The same holds for
        pipeline: devices of a pipeline,
        tensor_parallel: the degree, of those in the profile,
        micro_batch: samples of a micro-batch, of the profile's sizes, and
        chunks: stages a device.
        by_hand: a layout to compare with: layers of each stage (`0-5,6-11`), a layout of Megatron, a saved
            plan or its file.
        no_recompute: whether all activations are kept.
        joint_backward: whether backwards are not split into halves.
        format: of the profile; detected if None.
        entry: which profile of a file that holds several.
        num_layers: of the model, where the profile repeats one block.
        batch: samples of a micro-batch of a model of the zoo.
        shape: of a model's inputs, by name.
        value: of a model's inputs that become constants, by name.
        target: what a model's layers are measured on. The same holds for
        records: SQLAlchemy URL or path of the records,
        backends: to choose among; all available if None,
        trials: of each kernel,
        threads: of each measurement,
        jobs: programs built at once,
        seed: of inputs and searches,
        price: where latencies come from, and
        cost_model: folder of a trained model.
        work: units of the search, of about a second each; `DEFAULT_WORK` if None.
        time_limit: of the search, such as `10s`, or seconds; `DEFAULT_TIME_LIMIT_S` if both are None.
    """

    devices: int
    memory: Size | None = None
    device_memory: str | Sequence[Size] | None = None
    device_speed: str | Sequence[float] | None = None
    link: str | float = DEFAULT_LINK
    hop_us: float = DEFAULT_HOP_US
    collective_link: str | float | None = None
    node_devices: int | None = None
    node_link: str | float | None = None
    optimizer: str = DEFAULT_OPTIMIZER
    runtime: str = "overlapped"
    global_batch: int | None = None
    micro_batches: int | None = None
    placement: str | os.PathLike[str] | Placement = "auto"
    data_parallel: int | None = None
    pipeline: int | None = None
    tensor_parallel: int | None = None
    micro_batch: int | None = None
    chunks: int | None = None
    by_hand: str | os.PathLike[str] | Plan | None = None
    no_recompute: bool = False
    joint_backward: bool = False
    format: str | None = None
    entry: str | None = None
    num_layers: int | None = None
    batch: int = 1
    shape: Mapping[str, tuple[int, ...]] | None = None
    value: Mapping[str, bool | int | float] | None = None
    target: str = "cpu"
    records: str = "sqlite:///out/records.db"
    backends: Sequence[str] | None = None
    trials: int = 0
    threads: int | None = None
    jobs: int = 1
    seed: int = 0
    price: PriceName = "measured"
    cost_model: Path | None = None
    work: float | None = None
    time_limit: str | float | None = None

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is read.

        Raises:
            UsageError: there is one.
        """
        counts = ("devices", "global_batch", "micro_batches", "data_parallel", "pipeline", "tensor_parallel")
        check_counts(self, (*counts, "micro_batch", "chunks", "num_layers", "node_devices", "batch"))
        for name in ("data_parallel", "pipeline", "tensor_parallel"):
            value = getattr(self, name)
            if value is not None and self.devices % value:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} {value} does not divide the {self.devices} devices; give one that does"
                )
        check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        check_choice("--runtime", self.runtime, RUNTIMES)
        check_hop_us(self.hop_us)
        self.cluster()
        self.budget()

    def cluster(self) -> Cluster:
        """Return the devices and links."""
        from tessel.planning.cluster import Cluster

        hop = _link(self.link, self.hop_us)
        return Cluster(
            devices=self.devices,
            hop=hop,
            collective=hop if self.collective_link is None else _link(self.collective_link, self.hop_us),
            memory_bytes=None if self.memory is None else parse_bytes(str(self.memory)),
            device_memory_bytes=_each("--device-memory", self.device_memory, self.devices, parse_bytes),
            device_speed=_each("--device-speed", self.device_speed, self.devices, _speed),
            devices_per_node=self.node_devices or 0,
            intra_node=None if self.node_link is None else _link(self.node_link, self.hop_us),
        )

    def budget(self) -> SearchBudget:
        """Return what the search may spend."""
        from tessel.search.budget import SearchBudget

        budget = make_budget(self.work, self.time_limit)  # which refuses what is no limit
        if self.work is not None:
            return budget  # equal work gives equal plans, however long it takes
        limit_s = DEFAULT_TIME_LIMIT_S if self.time_limit is None else parse_duration(str(self.time_limit))
        return SearchBudget(work_limit=DEFAULT_WORK, time_limit_s=limit_s)

    def samples_of_step(self, profile: Profile) -> int:
        """Return the global batch."""
        if self.global_batch is not None:
            return self.global_batch
        count = self.micro_batches or DEFAULT_MICRO_BATCHES_A_DEVICE * self.devices
        return count * min(profile.micro_batches)

    def job(self, profile: Profile) -> Job:
        """Return what is asked for."""
        from tessel.planning.cluster import OPTIMIZERS as OPTIMIZER_BY_NAME
        from tessel.planning.job import Job
        from tessel.planning.runtime import RUNTIMES as RUNTIME_BY_NAME

        return Job(
            cluster=self.cluster(),
            global_batch=self.samples_of_step(profile),
            optimizer=OPTIMIZER_BY_NAME[self.optimizer],
            runtime=RUNTIME_BY_NAME[self.runtime],
        )

    def choices(self, by_hand: Layout | None = None) -> Choices:
        """Return what the planner may choose from, and what it is compared with."""
        from tessel.planning.options import NAMED_PLACEMENTS
        from tessel.planning.options import PlanOptions as Choices

        return Choices(
            placements=NAMED_PLACEMENTS if self.placement == "auto" else (self._placement(),),
            split_backward=False if self.joint_backward else None,
            recompute=not self.no_recompute,
            data_parallel=self.data_parallel,
            pipeline=self.pipeline,
            tensor_parallel=self.tensor_parallel,
            micro_batch=self.micro_batch,
            chunks=self.chunks,
            by_hand=by_hand,
        )

    def _placement(self) -> PlacementName | CustomPlacement:
        """Return the placement named, or the devices of the chain that a placement or its file holds."""
        from tessel.documents import load_placement
        from tessel.placement import Placement
        from tessel.planning.candidates.families import chain_of
        from tessel.planning.options import NAMED_PLACEMENTS

        if isinstance(self.placement, Placement):
            return chain_of(self.placement)
        for name in NAMED_PLACEMENTS:
            if name == self.placement:
                return name
        path = Path(self.placement)
        if not path.suffix and not path.exists():
            check_choice("--placement", str(self.placement), PLACEMENTS)
        return chain_of(load_placement(path))


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
    profile = profile_of_source(source, options, example_inputs)
    jit_fallback.compile_or_do_without(only_time(options.work, options.time_limit))
    budget = options.budget()
    result, shortfall = _find(profile, options, budget)
    return Plan(
        document=SavedPlan.of(result, profile, options.job(profile)),
        found=result,
        stopped_by=result.stopped_by,
        fits=not shortfall,
        shortfall=shortfall,
    )


def _find(profile: Profile, options: PlanOptions, budget: SearchBudget) -> tuple[PlanResult, str]:
    """Return the best plan, and why it does not fit; an empty text where it does."""
    from tessel.planning.find_plan import find_plan

    by_hand = None if options.by_hand is None else layout_by_hand(options.by_hand, profile, options)
    job, choices = options.job(profile), options.choices(by_hand)
    texts = ["planning"]

    def tell(progress: PlanProgress) -> None:
        texts.append(
            f"best so far {progress.step_us / 1e3:.4g} ms, at least {progress.lower_bound_us / 1e3:.4g} ms"
        )

    def search(*, may_exceed_memory: bool) -> PlanResult:
        given = replace(choices, may_exceed_memory=may_exceed_memory)
        return search_thread.run_search(
            lambda: find_plan(
                profile, job, options=given, budget=budget, seed=options.seed, on_progress=tell
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


def layout_by_hand(given: str | os.PathLike[str] | Plan, profile: Profile, options: PlanOptions) -> Layout:
    """Return the layout that the user wrote.

    Of cuts and of a layout of Megatron, `pipeline` says the devices of a pipeline (one stage each unless
    given), `tensor_parallel` and `micro_batch` what else is left open, and the rest of the devices are
    replicas.

    Raises:
        UsageError: degrees and stages do not go together.
        ScheduleError: the text is no layout of this profile.
    """
    from tessel.planning.layout import Layout
    from tessel.planning.saved_plan import load_saved_plan

    if isinstance(given, Plan):
        if given.planned is None:
            raise UsageError(f"--by-hand is {given!r}, of a model; give a plan of a table")
        return given.planned.layout
    text = os.fspath(given)
    if Path(text).suffix == ".json":
        return load_saved_plan(Path(text)).layout
    tensor_parallel = options.tensor_parallel or 1
    micro_batch = options.micro_batch or min(profile.micro_batches)
    cuts = _cuts(text, profile, options)
    if cuts[-1][1] != len(profile.layers) - 1 or cuts[0][0] != 0:
        raise UsageError(
            f"--by-hand holds layers {cuts[0][0]} to {cuts[-1][1]}, and the profile has 0 to "
            f"{len(profile.layers) - 1}; give each layer a stage"
        )
    pipeline = options.pipeline or len(cuts)
    replicas, rest = divmod(options.devices, pipeline * tensor_parallel)
    micro_batches, left = divmod(options.samples_of_step(profile), max(replicas, 1) * micro_batch)
    if rest or not replicas or left or not micro_batches or len(cuts) % pipeline:
        raise UsageError(
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


def _cuts(text: str, profile: Profile, options: PlanOptions) -> tuple[tuple[int, int], ...]:
    """Return the first and last layer of each stage."""
    from tessel.checking.sources import cuts_of_layout
    from tessel.exports.megatron import read_layout

    if not any(letter in text for letter in "EL|"):
        return parse_cuts("--by-hand", text)
    if options.pipeline is None:
        raise UsageError("--by-hand is a layout of Megatron, which does not say --pipeline; give it")
    return cuts_of_layout(read_layout(text, options.pipeline), profile)


def _link(bandwidth: str | float, latency_us: float) -> Link:
    from tessel.planning.cluster import Link

    return Link(bytes_per_s=parse_bandwidth(bandwidth), latency_us=latency_us)


def _each(
    option: str, values: str | Sequence[Any] | None, num_devices: int, parse: Callable[[str], _Value]
) -> tuple[_Value, ...]:
    """Return one value a device, or none where the option is left out."""
    if values is None:
        return ()
    parts = [part.strip() for part in values.split(",")] if isinstance(values, str) else list(values)
    if len(parts) != num_devices:
        raise UsageError(f"{option} has {len(parts)} values for {num_devices} devices; give one for each")
    return tuple(parse(str(part)) for part in parts)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.001 <= speed <= 1000:
        raise UsageError(
            f"--device-speed has {text!r}; give speeds relative to the profiled device, such as 1 or 0.5"
        )
    return speed


with_signature(plan, PlanOptions)

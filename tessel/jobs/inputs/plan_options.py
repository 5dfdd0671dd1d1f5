"""Options of a plan, with the names and defaults of the command `tessel plan`.

What a person writes on a command line (`"80GiB"`, `"100GB/s"`) and plain numbers are both taken. Checked in
tests/tessel/jobs/test_planning.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tessel.errors import UsageError
from tessel.jobs.inputs.arguments import (
    Kinds,
    check_choice,
    check_counts,
    parse_bandwidth,
    parse_bytes,
    parse_degrees,
    parse_duration,
)
from tessel.jobs.inputs.config_options import ConfigOptions
from tessel.jobs.inputs.limits import check_hop_us, check_overlap_factor, make_budget
from tuner.tuning.search.options import PriceName

if TYPE_CHECKING:
    from tessel.batches.mixture import Mixture
    from tessel.batches.spread import Spread
    from tessel.jobs.inputs.plan_view import PlanView
    from tessel.placement import Placement
    from tessel.planning.cluster import Cluster, Link
    from tessel.planning.job import Job
    from tessel.planning.layout import Layout, PlacementName
    from tessel.planning.options import CustomPlacement
    from tessel.planning.options import PlanOptions as Choices
    from tessel.profiles.profile import Profile
    from tessel.search.budget import SearchBudget

DEGREES = ("data_parallel", "pipeline", "tensor_parallel", "context_parallel", "expert_parallel")
RUNTIMES = ("overlapped", "deepspeed")
SHARDINGS = ("none", "optimizer", "gradients", "parameters", "auto")
PLACEMENTS = ("auto", "vshape", "interleaved", "zbv", "xshape", "mshape", "kshape")
OFFLOADS = ("none", "optimizer", "activations", "optimizer+activations", "auto")
OPTIMIZERS = (
    *("none", "sgd", "momentum", "adam", "adam-mixed", "adam-fp16", "adam-bf16-gradients"),
    *("adam-bf16-moments", "adam-fp8-weights", "adam-8bit", "adam-fsdp"),
)
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
class PlanOptions(ConfigOptions):
    """What a plan is made for, and what it is made from.

    Attributes:
        devices: in all.
        memory: of one device, such as `80GiB`, or bytes; that of the GPU named, or unlimited, if None.
        device_memory: of each device where they differ.
        device_speed: of each device, relative to the profiled one.
        link: bandwidth between devices in one direction, such as `100GB/s`, or bytes a second; the network
            of the GPU named, or `DEFAULT_LINK`, if None.
        hop_us: microseconds of a message between devices.
        collective_link: bandwidth of a device in an all-reduce of gradients; as `link` if None.
        node_devices: devices of a node, connected by `node_link`; both as of the GPU named if None.
        node_link: bandwidth between devices of one node.
        optimizer: whose state is kept in memory: one of `OPTIMIZERS`; if None `DEFAULT_OPTIMIZER`, or
            `adam-mixed` where a GPU is named.
        runtime: `overlapped`, transfers overlap computation; `deepspeed`, they block it.
        sharding: what replicas divide among them: `none`; `optimizer`, its state (ZeRO-1, a distributed
            optimizer); `gradients` too (ZeRO-2); `parameters` too (ZeRO-3, FSDP); `auto`, the fastest. If
            None `none`, or `optimizer` where a GPU is named.
        offload: what lies in the hosts' memory: `none`; `optimizer`, its state; `activations`, from
            forward to backward; `optimizer+activations`; `auto`, the fastest.
        host_link: bandwidth between a device and its host one way, such as `50GB/s`, or bytes a second.
        overlap_factor: share of its sum that a forward takes with a backward that runs beside it on a device,
            such as 0.6; each block runs by itself if None.
        global_batch: samples of a training step.
        micro_batches: in place of that: micro-batches of a step over all replicas, of the smallest size.
        placement: which device runs which stage: one of `PLACEMENTS`, a placement, or its file.
        data_parallel: replicas; found if None. The same holds for
        pipeline: devices of a pipeline,
        tensor_parallel: the degree, of those in the profile, or one for each stage, such as `8,8,4x6`; or
            `own`, to search one for each stage,
        context_parallel: devices over which sequences are split, likewise,
        expert_parallel: devices over which routed experts are divided, likewise,
        micro_batch: samples of a micro-batch, of the profile's sizes, and
        chunks: stages a device.
        by_hand: a layout to compare with: layers of each stage (`0-5,6-11`), a layout of Megatron, a saved
            plan or its file.
        no_recompute: whether all activations are kept.
        joint_backward: whether backwards are not split into halves.
        format: of the profile; detected if None.
        num_layers: of the model, where the profile repeats one block.
        batch: micro-batches of a step by class of a table, such as `4096x6,8192x2`, a number of each, or one
            after the other; of a model of the zoo, samples of a micro-batch.
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
        spread: how the duration of each block varies, `lognormal:0.1`, `uniform:0.2` or as a file of recorded
            steps or records; as the table's column `spread` says if None.
        robust: percentile of the step by which the plan is chosen, such as `p95`; by the step itself if None.
        work: units of the search, of about a second each; `DEFAULT_WORK` if None. Where degrees of stages are
            searched, as many again.
        time_limit: of the search, such as `10s`, or seconds; `DEFAULT_TIME_LIMIT_S` if both are None.
    """

    devices: int
    memory: Size | None = None
    device_memory: str | Sequence[Size] | None = None
    device_speed: str | Sequence[float] | None = None
    link: str | float | None = None
    hop_us: float = DEFAULT_HOP_US
    collective_link: str | float | None = None
    node_devices: int | None = None
    node_link: str | float | None = None
    optimizer: str | None = None
    runtime: str = "overlapped"
    sharding: str | None = None
    offload: str = "none"
    host_link: str | float | None = None
    overlap_factor: float | None = None
    global_batch: int | None = None
    micro_batches: int | None = None
    placement: str | os.PathLike[str] | Placement = "auto"
    data_parallel: int | None = None
    pipeline: int | None = None
    tensor_parallel: int | str | Sequence[int] | None = None
    context_parallel: int | None = None
    expert_parallel: int | None = None
    micro_batch: int | None = None
    chunks: int | None = None
    by_hand: str | os.PathLike[str] | PlanView | None = None
    no_recompute: bool = False
    joint_backward: bool = False
    format: str | None = None
    num_layers: int | None = None
    batch: int | Kinds = 1
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
    spread: str | None = None
    robust: str | None = None
    work: float | None = None
    time_limit: str | float | None = None

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is read.

        Raises:
            UsageError: there is one.
        """
        counts = ("devices", "global_batch", "micro_batches", "micro_batch", "chunks", "num_layers")
        degrees = [name for name in DEGREES if isinstance(getattr(self, name), int)]
        check_counts(self, (*counts, *degrees, "node_devices"))
        if isinstance(self.batch, int):
            check_counts(self, ("batch",))
        self._check_stage_degrees()
        if "tensor_parallel" not in degrees and self.tensor_parallel is not None:
            degrees = [name for name in degrees if name != "pipeline"]  # whose positions differ in devices
        for name in degrees:
            value = getattr(self, name)
            if self.devices % value:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{option} {value} does not divide the {self.devices} devices; give one that does"
                )
        self.check_config()
        check_choice("--optimizer", self.chosen_optimizer, OPTIMIZERS)
        check_choice("--runtime", self.runtime, RUNTIMES)
        check_choice("--sharding", self.chosen_sharding, SHARDINGS)
        if self.runtime == "deepspeed" and self.chosen_sharding in SHARDINGS[2:4]:
            raise UsageError(
                f"--sharding {self.chosen_sharding} with --runtime deepspeed: its pipelines divide no more "
                "than the optimizer's state; give --sharding optimizer"
            )
        check_choice("--offload", self.offload, OFFLOADS)
        if self.offload != "none" and self.host_link is None:
            raise UsageError(
                f"--offload {self.offload} has no price without a link to the hosts' memory; give "
                "--host-link, such as 50GB/s"
            )
        check_overlap_factor(self.overlap_factor)
        if self.overlap_factor is not None and self.runtime == "deepspeed":
            raise UsageError(
                "--overlap-factor with --runtime deepspeed: its pipelines run one block at a time; leave "
                "one out"
            )
        check_hop_us(self.hop_us)
        self._spread()
        self.cluster()
        self.budget()

    @property
    def degrees(self) -> int | tuple[int, ...] | Literal["own"] | None:
        """The tensor-parallel degree given: of all stages, of each, `own`, or None for any.

        Raises:
            UsageError: the text is none.
        """
        return parse_degrees("--tensor-parallel", self.tensor_parallel)

    @property
    def degree(self) -> int | None:
        """The tensor-parallel degree of all stages; None where it is open, or stages have their own."""
        return self.degrees if isinstance(self.degrees, int) else None

    def _check_stage_degrees(self) -> None:
        """Refuse degrees of stages that do not go with the devices or the pipeline."""
        degrees, option = self.degrees, f"--tensor-parallel {self.tensor_parallel}"
        if degrees is None or isinstance(degrees, int):
            return
        if self.placement not in ("auto", "vshape") or self.chunks not in (None, 1):
            raise UsageError(
                f"{option} is of one stage a device of the pipeline, and another placement is asked for; "
                "give --placement vshape, or one degree"
            )
        if self.runtime == "deepspeed":
            raise UsageError(
                f"{option} with --runtime deepspeed: its pipelines have one tensor-parallel degree; give one"
            )
        if degrees == "own":
            return
        if self.pipeline not in (None, len(degrees)):
            raise UsageError(
                f"{option} are degrees of {len(degrees)} stages, and --pipeline is {self.pipeline}; give as "
                "many"
            )
        together = sum(degrees) * (self.context_parallel or 1) * (self.data_parallel or 1)
        if self.devices % together or (self.data_parallel and self.devices != together):
            raise UsageError(
                f"{option} takes {together} devices, all degrees that are given multiplied, which do not "
                f"make up the {self.devices} devices; give degrees that do"
            )

    @property
    def samples(self) -> int:
        """Samples of a micro-batch of a model.

        Raises:
            UsageError: classes are given, which a model has none of.
        """
        if isinstance(self.batch, int):
            return self.batch
        raise UsageError(
            f"--batch {self.batch} for a model, whose micro-batches are alike; give a number of samples, or "
            "a table with a column length or class"
        )

    def of_classes(self, profile: Profile) -> tuple[PlanOptions, Profile, Mixture | None]:
        """Return options, profile and micro-batches for a batch by class of the profile.

        Those of one class are a plan of equal micro-batches, like any other.

        Raises:
            UsageError: the profile has classes and no batch is given, or it is the other way round.
            ScheduleError: a length is beyond those that were measured.
        """
        from tessel.batches.mixture import Mixture
        from tessel.jobs.inputs.batches import read_kinds
        from tessel.profiles.classes import class_profile

        if self.robust is not None and self.spread is None and not profile.has_spreads:
            raise UsageError(
                f"--robust {self.robust} without --spread, and {profile.name} has no column spread: nothing "
                "says how durations vary; give one of them"
            )
        if not profile.classes:
            if not isinstance(self.batch, int):
                raise UsageError(
                    f"--batch {self.batch}, and {profile.name} has no column length or class that says what "
                    "such micro-batches take; measure it with several, or leave --batch out"
                )
            return self, profile, None
        known = ", ".join(map(str, profile.classes))
        if isinstance(self.batch, int):
            if len(profile.classes) > 1:
                raise UsageError(
                    f"{profile.name} was measured with micro-batches of {known}; say how many a step has of "
                    f"each, --batch {profile.classes[0]}x{DEFAULT_MICRO_BATCHES_A_DEVICE * self.devices}"
                )
            return self, class_profile(profile, profile.classes[0]), None
        if self.global_batch is not None or self.micro_batches is not None:
            raise UsageError("--batch says what a step has; leave --global-batch and --micro-batches out")
        if len(profile.micro_batches) > 1:
            sizes = ", ".join(map(str, profile.micro_batches))
            raise UsageError(f"--batch counts micro-batches of one size; choose --micro-batch of {sizes}")
        kinds = read_kinds(self.batch, profile)
        names = tuple(dict.fromkeys(kinds))
        options = replace(self, batch=1, micro_batches=len(kinds))
        if len(names) == 1:
            return options, class_profile(profile, names[0]), None
        mixture = Mixture(classes=names, sequence=tuple(map(names.index, kinds)))
        return options, profile, mixture

    @property
    def chosen_optimizer(self) -> str:
        """The optimizer given, or the usual one: of a GPU's data sheet, of weights in 16 bits."""
        return self.optimizer or (DEFAULT_OPTIMIZER if self.gpu is None else "adam-mixed")

    @property
    def chosen_sharding(self) -> str:
        """What is divided over replicas, as given, or as is usual: of a GPU's data sheet, the state."""
        return self.sharding or ("none" if self.gpu is None else "optimizer")

    def cluster(self) -> Cluster:
        """Return the devices and links."""
        from tessel.planning.cluster import Cluster

        sheet = self.sheet()
        hop = _link(self.link or DEFAULT_LINK, self.hop_us)
        memory = None if self.memory is None else parse_bytes(str(self.memory))
        node_devices, node_link = self.node_devices, self.node_link
        if sheet is not None:
            hop = hop if self.link else _link(sheet.network_gb_s * 1e9, self.hop_us)
            memory = memory or int(sheet.memory_gib * 2**30)
            node_devices = node_devices or sheet.domain
            node_link = node_link or sheet.fast_gb_s * sheet.shares.fast * 1e9
        return Cluster(
            devices=self.devices,
            hop=hop,
            collective=hop if self.collective_link is None else _link(self.collective_link, self.hop_us),
            memory_bytes=memory,
            device_memory_bytes=_each("--device-memory", self.device_memory, self.devices, parse_bytes),
            device_speed=_each("--device-speed", self.device_speed, self.devices, _speed),
            devices_per_node=node_devices or 0,
            intra_node=None if node_link is None else _link(node_link, self.hop_us),
            host=None if self.host_link is None else _link(self.host_link, 0.0),
        )

    def budget(self) -> SearchBudget:
        """Return what the search may spend."""
        from tessel.search.budget import SearchBudget

        budget = make_budget(self.work, self.time_limit)  # which refuses what is no limit
        times = 2 if self.degrees == "own" else 1  # a whole search of equal degrees comes first
        if self.work is not None:
            # equal work gives equal plans, however long it takes
            return budget if times == 1 else make_budget(times * self.work, self.time_limit)
        limit_s = DEFAULT_TIME_LIMIT_S if self.time_limit is None else parse_duration(str(self.time_limit))
        return SearchBudget(work_limit=times * DEFAULT_WORK, time_limit_s=limit_s)

    def samples_of_step(self, profile: Profile) -> int:
        """Return the global batch."""
        if self.global_batch is not None:
            return self.global_batch
        count = self.micro_batches or DEFAULT_MICRO_BATCHES_A_DEVICE * self.devices
        return count * min(profile.micro_batches)

    def job(self, profile: Profile) -> Job:
        """Return what is asked for; where sharding or offload are open, without them."""
        from tessel.planning.cluster import OPTIMIZERS as OPTIMIZER_BY_NAME
        from tessel.planning.job import Job
        from tessel.planning.runtime import RUNTIMES as RUNTIME_BY_NAME

        return Job(
            cluster=self.cluster(),
            global_batch=self.samples_of_step(profile),
            optimizer=OPTIMIZER_BY_NAME[self.chosen_optimizer],
            runtime=RUNTIME_BY_NAME[self.runtime],
            sharding="none" if self.chosen_sharding == "auto" else self.chosen_sharding,
            offload="none" if self.offload == "auto" else self.offload,
            overlap_factor=self.overlap_factor,
        )

    def open_jobs(self, profile: Profile, mixture: Mixture | None = None) -> list[Job]:
        """Return what is asked for, a job for each sharding and offload that are left open.

        Where micro-batches differ, nothing is exchanged in each of them, if that is left open.

        Raises:
            UsageError: what inference does not have is to lie in the hosts' memory.
        """
        job = replace(self.job(profile), mixture=mixture)
        offloads = OFFLOADS[:-1] if self.offload == "auto" else (self.offload,)
        if not profile.is_training:
            if self.offload not in ("none", "auto"):
                raise UsageError(
                    f"--offload {self.offload}: {profile.name} is not trained, and keeps neither state nor "
                    "activations for a backward; leave it out"
                )
            offloads = ("none",)
        return [
            replace(job, sharding=sharding, offload=offload)
            for sharding in (self.shardings[:2] if mixture is not None else self.shardings)
            for offload in offloads
        ]

    @property
    def shardings(self) -> tuple[str, ...]:
        """What may be divided over replicas: one, or all that the framework has."""
        if self.chosen_sharding != "auto":
            return (self.chosen_sharding,)
        return SHARDINGS[:2] if self.runtime == "deepspeed" else SHARDINGS[:4]

    def choices(self, by_hand: Layout | None = None) -> Choices:
        """Return what the planner may choose from, and what it is compared with."""
        from tessel.planning.options import NAMED_PLACEMENTS
        from tessel.planning.options import PlanOptions as Choices

        spread, robust = self._spread()
        degrees, pipeline = self.degrees, self.pipeline
        if isinstance(degrees, tuple) and len(set(degrees)) == 1:
            pipeline, degrees = len(degrees), degrees[0]
        return Choices(
            placements=NAMED_PLACEMENTS if self.placement == "auto" else (self._placement(),),
            split_backward=False if self.joint_backward else None,
            recompute=not self.no_recompute,
            data_parallel=self.data_parallel,
            pipeline=pipeline,
            tensor_parallel=degrees,
            context_parallel=self.context_parallel,
            expert_parallel=self.expert_parallel,
            micro_batch=self.micro_batch,
            chunks=self.chunks,
            by_hand=by_hand,
            spread=spread,
            robust=robust,
        )

    def _spread(self) -> tuple[Spread | None, float | None]:
        """Return how durations vary, and the percentile that plans are chosen by."""
        from tessel.jobs.inputs.spreads import spread_of

        spread = None if self.spread is None else spread_of(self.spread)
        if self.robust is None:
            return spread, None
        match = re.fullmatch(r"p(\d{1,2}(?:\.\d+)?)", self.robust)
        if match is None or float(match[1]) < 1:
            raise UsageError(f"--robust {self.robust!r} is no percentile; write p95, from p1 to p99")
        return spread, float(match[1])

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

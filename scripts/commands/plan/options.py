"""The options of `tessel plan`: the devices, the step, what may be chosen, and what is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from scripts.options import completion, search_options
from scripts.options.arguments import (
    check_choice,
    check_counts,
    check_folder,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
)
from scripts.options.cluster_options import (
    DEFAULT_HOP_US,
    DEFAULT_LINK,
    DEFAULT_OPTIMIZER,
    check_hop_us,
    hop_us_option,
    link_option,
    optimizer_option,
)
from scripts.options.gpu_prediction import is_predicted_for_gpu
from scripts.options.search_options import JsonOption, work_option
from scripts.options.tuning_options import (
    BatchOption,
    CostModelOption,
    MeasuringOptions,
    PriceOption,
    ShapeOption,
    ValueOption,
)
from scripts.reports.pictures import FORMATS as PICTURE_FORMATS

if TYPE_CHECKING:
    from tessel.planning.cluster import Cluster, Link
    from tessel.planning.layout import Layout, PlacementName
    from tessel.planning.options import CustomPlacement, PlanOptions
    from tessel.profiles.profile import Profile
    from tessel.search.budget import SearchBudget


RUNTIMES = ("overlapped", "deepspeed")
PLACEMENTS = ("auto", "vshape", "interleaved", "zbv", "xshape", "mshape", "kshape")
FORMATS = (
    "csv",
    "json",
    "sailor",
    "aceso",
    "metis",
    "pipedream",
    "neusight",
    "plan",
    "saved-plan",
    "stages",
)
"""Of profiles, placements and frameworks, written down since loading them takes longer than a completion may;
tests/scripts/commands/test_plan.py holds them against the real ones."""

DEFAULT_MICRO_BATCHES_A_DEVICE = 4
"""Micro-batches of a step unless told otherwise: with four a device, 1F1B idles for a fifth of the step."""

DEFAULT_WORK = 30.0
DEFAULT_TIME_LIMIT_S = 60.0

_Value = TypeVar("_Value")


def _check_runtime(text: str) -> str:
    return check_choice("--runtime", text, RUNTIMES)


def _check_format(text: str | None) -> str | None:
    return None if text is None else check_choice("--format", text, FORMATS)


@dataclass(frozen=True, kw_only=True)
class PlanCommandOptions(MeasuringOptions):
    """What a plan is made for and from, and where it goes."""

    devices: Annotated[int, typer.Option(help="Devices in all.", show_default=False)]
    memory: Annotated[
        str | None,
        typer.Option(help="Memory of one device, such as 80GiB; unlimited if left out."),
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(help="Memory of each device where they differ: 80GiB,80GiB,40GiB,40GiB."),
    ] = None
    device_speed: Annotated[
        str | None,
        typer.Option(help="Speed of each device, relative to the profiled one: 1,1,0.5,0.5."),
    ] = None
    link: Annotated[str, link_option()] = DEFAULT_LINK
    hop_us: Annotated[float, hop_us_option()] = DEFAULT_HOP_US
    collective_link: Annotated[
        str | None,
        typer.Option(
            help="Bandwidth of a device in an all-reduce of gradients.  [default: as --link]",
            show_default=False,
        ),
    ] = None
    node_devices: Annotated[
        int | None,
        typer.Option(help="Devices per node, connected by --node-link."),
    ] = None
    node_link: Annotated[
        str | None,
        typer.Option(help="Bandwidth between devices of one node, such as 450GB/s."),
    ] = None
    optimizer: Annotated[str, optimizer_option()] = DEFAULT_OPTIMIZER
    runtime: Annotated[
        str,
        typer.Option(
            help="Runtime: `overlapped`, transfers overlap computation; `deepspeed`, they block it.",
            autocompletion=completion.one_of(*RUNTIMES),
            callback=_check_runtime,
        ),
    ] = "overlapped"
    global_batch: Annotated[int | None, typer.Option(help="Samples of a training step.")] = None
    micro_batches: Annotated[
        int | None,
        typer.Option(
            help="In place of --global-batch: micro-batches of a step over all replicas, of the profile's "
            f"smallest size.  [default: {DEFAULT_MICRO_BATCHES_A_DEVICE} a device]",
            show_default=False,
        ),
    ] = None
    placement: Annotated[
        str,
        typer.Option(
            help=f"Which device runs which stage: {', '.join(PLACEMENTS)}, or a placement file.",
            autocompletion=completion.one_of(*PLACEMENTS),
        ),
    ] = "auto"
    data_parallel: Annotated[int | None, typer.Option(help="Replicas; found if left out.")] = None
    pipeline: Annotated[int | None, typer.Option(help="Devices of a pipeline; found if left out.")] = None
    tensor_parallel: Annotated[
        int | None,
        typer.Option(help="Tensor-parallel degree, of those in the profile; found if left out."),
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(
            help="Samples of a micro-batch: one of the profile's sizes, or what it was measured at where the "
            "file does not say.",
        ),
    ] = None
    chunks: Annotated[int | None, typer.Option(help="Stages per device; found if left out.")] = None
    by_hand: Annotated[
        str | None,
        typer.Option(
            help="Compare with a layout of yours: layers of each stage (0-5,6-11), a layout of Megatron "
            "(Et*5|t*6L), or a saved plan (.json).",
        ),
    ] = None
    no_recompute: Annotated[
        bool,
        typer.Option("--no-recompute", help="Keep all activations; no recomputation."),
    ] = False
    joint_backward: Annotated[
        bool,
        typer.Option("--joint-backward", help="Do not split backwards into halves."),
    ] = False
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"Format of the profile: {', '.join(FORMATS)}; detected if left out.",
            autocompletion=completion.one_of(*FORMATS),
            callback=_check_format,
        ),
    ] = None
    entry: Annotated[
        str | None,
        typer.Option(help="Which profile of a file that holds several: MODEL/GPU."),
    ] = None
    num_layers: Annotated[
        int | None,
        typer.Option(
            help="Layers of the model, first and last included, where the profile repeats one block.",
        ),
    ] = None
    batch: BatchOption = 1
    shape: ShapeOption = None
    value: ValueOption = None
    price: PriceOption = "measured"
    cost_model: CostModelOption = None
    work: Annotated[float | None, work_option(f"{DEFAULT_WORK:g}")] = None
    time_limit: Annotated[
        str | None,
        typer.Option(
            help=f"Time limit of the search, such as 10s.  [default: {DEFAULT_TIME_LIMIT_S:g}s]",
            show_default=False,
        ),
    ] = None
    save: Annotated[Path | None, typer.Option(help="Write the plan to this file (.json).")] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="Draw the plan: .svg .png .pdf a picture, .html a page, .json a trace for Perfetto, .txt "
            "text, .md a report.",
        ),
    ] = None
    json: JsonOption = False

    def check(self) -> None:
        """Refuse values that are wrong by themselves, before anything is read.

        Raises:
            typer.BadParameter: there is one.
        """
        counts = ("devices", "global_batch", "micro_batches", "data_parallel", "pipeline", "tensor_parallel")
        check_counts(self, (*counts, "micro_batch", "chunks", "num_layers", "node_devices"))
        for name in ("data_parallel", "pipeline", "tensor_parallel"):
            value = getattr(self, name)
            if value is not None and self.devices % value:
                option = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(
                    f"{option} {value} does not divide the {self.devices} devices; give one that does"
                )
        check_hop_us(self.hop_us)
        check_folder("--save", self.save)
        check_folder("--out", self.out, suffixes=PICTURE_FORMATS)
        if self.save is not None and self.out is not None and self.save.absolute() == self.out.absolute():
            raise typer.BadParameter(f"--save and --out are both {self.save}; name two files")
        self.cluster()
        self.budget()

    def cluster(self) -> Cluster:
        """Return the devices and links."""
        from tessel.planning.cluster import Cluster

        hop = _link(self.link, self.hop_us)
        collective = hop if self.collective_link is None else _link(self.collective_link, self.hop_us)
        node_link = None if self.node_link is None else _link(self.node_link, self.hop_us)
        return Cluster(
            devices=self.devices,
            hop=hop,
            collective=collective,
            memory_bytes=None if self.memory is None else parse_bytes(self.memory),
            device_memory_bytes=_each("--device-memory", self.device_memory, self.devices, parse_bytes),
            device_speed=_each("--device-speed", self.device_speed, self.devices, _speed),
            devices_per_node=self.node_devices or 0,
            intra_node=node_link,
        )

    def budget(self) -> SearchBudget:
        """Return what the search may spend."""
        from tessel.search.budget import SearchBudget

        budget = search_options.make_budget(self.work, self.time_limit)  # which refuses what is no limit
        if self.work is not None:
            return budget  # equal work gives equal plans, however long it takes
        limit_s = DEFAULT_TIME_LIMIT_S if self.time_limit is None else parse_duration(self.time_limit)
        return SearchBudget(work_limit=DEFAULT_WORK, time_limit_s=limit_s)

    @property
    def is_predicted_for_gpu(self) -> bool:
        """Whether the layers are priced for a GPU that is not here, from kernels measured on others.

        Raises:
            UnknownNameError: there is no such target.
        """
        return is_predicted_for_gpu(self)

    def samples_of_step(self, profile: Profile) -> int:
        """Return the global batch."""
        if self.global_batch is not None:
            return self.global_batch
        count = self.micro_batches or DEFAULT_MICRO_BATCHES_A_DEVICE * self.devices
        return count * min(profile.micro_batches)

    def plan_options(self, by_hand: Layout | None = None) -> PlanOptions:
        """Return what the planner may choose from, and what it is compared with."""
        from tessel.planning.cluster import OPTIMIZERS as OPTIMIZER_BY_NAME
        from tessel.planning.options import NAMED_PLACEMENTS, PlanOptions
        from tessel.planning.runtime import RUNTIMES as RUNTIME_BY_NAME

        placements: tuple[PlacementName | CustomPlacement, ...] = NAMED_PLACEMENTS
        if self.placement != "auto":
            placements = (self._placement(),)
        return PlanOptions(
            optimizer=OPTIMIZER_BY_NAME[self.optimizer],
            runtime=RUNTIME_BY_NAME[self.runtime],
            placements=placements,
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
        """Return the placement named, or the devices of the chain that a file holds."""
        from tessel.documents import load_placement
        from tessel.planning.candidates.families import chain_of
        from tessel.planning.options import NAMED_PLACEMENTS

        for name in NAMED_PLACEMENTS:
            if name == self.placement:
                return name
        if not Path(self.placement).suffix and not Path(self.placement).exists():
            check_choice("--placement", self.placement, PLACEMENTS)
        return chain_of(load_placement(self.placement))


def _link(text: str, latency_us: float) -> Link:
    from tessel.planning.cluster import Link

    return Link(bytes_per_s=parse_bandwidth(text), latency_us=latency_us)


def _each(
    option: str, text: str | None, num_devices: int, parse: Callable[[str], _Value]
) -> tuple[_Value, ...]:
    """Return one value a device, or none where the option is left out."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != num_devices:
        raise typer.BadParameter(
            f"{option} has {len(parts)} values for {num_devices} devices; give one for each"
        )
    return tuple(map(parse, parts))


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.001 <= speed <= 1000:
        raise typer.BadParameter(
            f"--device-speed has {text!r}; give speeds relative to the profiled device, such as 1 or 0.5"
        )
    return speed

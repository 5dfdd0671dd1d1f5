"""`tessel records collect`: measure a training set for the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from scripts.options import tuning_options
from scripts.options.dataclass_options import common_options, takes_options
from scripts.options.tuning_options import JsonOption, MeasuringOptions
from scripts.terminal import console
from tessel.jobs.inputs.arguments import check_folder, parse_duration, parse_names


@dataclass(frozen=True, kw_only=True)
class CollectOptions(MeasuringOptions):
    """Which programs are measured, how many and for how long."""

    networks: Annotated[
        str | None, "Models to take kernels from, separated by commas; default: small ones of the zoo."
    ] = None
    batches: Annotated[str, "Batch sizes, separated by commas."] = "1,2,4"
    lengths: Annotated[
        str | None,
        "Sequence lengths, separated by commas; each model's own if left out.",
    ] = None
    chains: Annotated[int, "Random chains of convolutions, and as many of products, to add."] = 0
    stages: Annotated[bool, "After the kernels, also measure layers as stages."] = False
    max_gflops: Annotated[float | None, "Leave out programs of more than this many GFLOP."] = None
    max_samples: Annotated[int | None, "Maximum number of programs to measure now."] = None
    time_limit: Annotated[str | None, "Time limit, such as 10m; none if left out."] = None
    save_networks: Annotated[Path, "Where to write which workloads belong to which network."] = Path(
        "out/networks.json"
    )
    json: JsonOption = False


@common_options("networks batches lengths chains stages time_limit target backends threads records json")
@takes_options
def collect(options: CollectOptions) -> None:
    """Measure kernels of many networks, shapes and backends; can be interrupted and resumed.

    Example: `tessel records collect --time-limit 10m`
    """
    import msgspec

    from tessel.documents import save_document
    from tuner.collecting.kernels import DEFAULT_NETWORKS, CollectionSettings
    from tuner.collecting.kernels import collect as collect_kernels
    from tuner.collecting.stages import collect_stages

    names = parse_names(options.networks) or DEFAULT_NETWORKS
    sizes = _parse_numbers("--batches", options.batches)
    tokens = [] if options.lengths is None else _parse_numbers("--lengths", options.lengths)
    tuning_options.check_writable_folder(options.save_networks.parent, option="--save-networks")
    check_folder("--save-networks", options.save_networks)
    limit_s = None if options.time_limit is None else parse_duration(options.time_limit)
    with tuning_options.open_session(options) as session:
        found = collect_kernels(
            session,
            CollectionSettings(
                networks=names,
                batches=sizes,
                lengths=tokens,
                num_chains=options.chains,
                max_gflops=options.max_gflops,
            ),
            max_samples=options.max_samples,
            time_limit_s=limit_s,
        )
        num_stages = 0
        if options.stages:
            num_stages = collect_stages(session, networks=names, batches=sizes, time_limit_s=limit_s)
    save_document(options.save_networks, msgspec.json.format(msgspec.json.encode(found.networks), indent=1))
    if options.json:
        from scripts.documents.tuning import CollectionDone

        console.print_json(
            CollectionDone(
                found=found.num_found,
                done=found.num_done,
                new_measurements=found.num_new,
                stages=num_stages,
                networks=str(options.save_networks),
            )
        )
        return
    console.print_line(
        f"{found.num_done} of {found.num_found} kernels measured, {found.num_new} of them now; "
        + (f"{num_stages} stages; " if options.stages else "")
        + f"networks in {options.save_networks}"
    )


def _parse_numbers(option: str, text: str) -> list[int]:
    numbers = [int(number) for number in parse_names(text) or () if number.isdigit() and int(number) > 0]
    if not numbers or len(numbers) < len(text.split(",")):
        raise typer.BadParameter(f"{option} is {text!r}; give whole numbers of at least 1, such as 1,2,4")
    return numbers

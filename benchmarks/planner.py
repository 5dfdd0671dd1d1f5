"""Plans for eight profiles on 4, 8 and 16 devices under two memory limits, beside hand-written schedules.

    python -m benchmarks.planner --work 25
    python -m benchmarks.planner --profiles examples/profiles --devices 4 8 --out table.md
    python -m benchmarks.planner --large             64 devices, 200 layers: time, first answer, memory

Each case is a pipeline over all devices, `--micro-batches` a device, and a memory limit: the least under
which 1F1B with its best cut fits (times 1.02), and none. Baselines have their own best cut under the same
limit. The rows are ratios to the searched step (above 1: the plan is faster); geometric means follow, apart
for limited memory. Without `--profiles`, profiles are made of a transformer's proportions: a head of so many
blocks, and halves of the backward. `--free-degrees` lets data parallelism compete.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tessel.errors import ScheduleError
from tessel.planning.cluster import OPTIMIZERS, Cluster, Link
from tessel.planning.find_plan import find_plan
from tessel.planning.options import PlanOptions
from tessel.planning.plan_result import PlanProgress, PlanResult
from tessel.profiles.load import load_profile
from tessel.profiles.profile import CostTable, Layer, LayerCost, Profile
from tessel.search import SearchBudget

MIB = 2**20

LINK = Link(bytes_per_s=25e9, latency_us=10.0)
"""Hops and collectives of the cases: 200 Gbit/s."""

ROWS = ("1f1b", "interleaved", "zb-h1", "zb-v", "torch-auto")


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer's proportions.

    Attributes:
        name: of the profile.
        blocks: transformer blocks.
        block_us: forward of one block.
        head: forward of the head in blocks.
        block_mib: weights of one block.
        saved_mib: what a block keeps of a micro-batch.
        vocabulary_mib: weights of embedding and of head.
    """

    name: str
    blocks: int
    block_us: float
    head: float
    block_mib: int
    saved_mib: int
    vocabulary_mib: int


SHAPES = (
    Shape("small, light head", 24, 1500.0, 0.5, 25, 40, 100),
    Shape("small, heavy head", 24, 1500.0, 3.6, 25, 40, 200),
    Shape("medium, light head", 32, 3500.0, 1.0, 150, 120, 250),
    Shape("medium, heavy head", 32, 3500.0, 3.6, 150, 120, 500),
    Shape("large, light head", 48, 9000.0, 0.7, 400, 300, 500),
    Shape("large, heavy head", 48, 9000.0, 2.5, 400, 300, 1000),
    Shape("wide vocabulary", 26, 2300.0, 5.0, 100, 80, 800),
    Shape("tied embeddings", 36, 2000.0, 2.0, 60, 60, 300),
)


def synthetic_profile(shape: Shape) -> Profile:
    """Return an embedding, equal blocks and a head; the input half takes 1.05 forwards, the weight half 1."""

    def cost(blocks: float, weights_mib: int, saved_mib: float) -> LayerCost:
        forward = shape.block_us * blocks
        return LayerCost(
            forward_us=forward,
            backward_us=2.0 * forward,
            backward_input_us=1.05 * forward,
            backward_weight_us=forward,
            weight_bytes=weights_mib * MIB,
            saved_bytes=int(saved_mib * MIB),
            boundary_bytes=shape.saved_mib * MIB // 16,
        )

    tie = "vocabulary" if shape.name == "tied embeddings" else ""
    return Profile(
        name=shape.name,
        layers=(
            Layer("embedding", tie=tie),
            *(Layer(f"block{index}") for index in range(shape.blocks)),
            Layer("head", tie=tie),
        ),
        tables=(
            CostTable(
                micro_batch=1,
                tensor_parallel=1,
                costs=(
                    cost(0.1, shape.vocabulary_mib, shape.saved_mib / 16),
                    *(cost(1.0, shape.block_mib, shape.saved_mib) for _ in range(shape.blocks)),
                    cost(shape.head, shape.vocabulary_mib, shape.saved_mib / 4),
                ),
            ),
        ),
    )


def profiles_of(folder: Path | None) -> Iterator[Profile]:
    """Yield the profiles of a folder, or those made of proportions."""
    if folder is None:
        yield from map(synthetic_profile, SHAPES)
        return
    for path in sorted(folder.iterdir()):
        if path.suffix in (".csv", ".json"):
            profile = load_profile(str(path))
            if profile.is_training:
                yield profile


def least_memory(profile: Profile, devices: int, options: PlanOptions, samples: int) -> int:
    """Return 1.02 times the bytes of the fullest device of 1F1B with its best cut and no recomputation."""
    found = find_plan(
        profile,
        cluster_of(devices, None),
        global_batch=samples,
        options=options,
        budget=SearchBudget(work_limit=0.5),
    )
    planned = next(row.planned for row in found.baselines if row.name == "1f1b")
    assert planned is not None  # without limits 1F1B always has a step
    return int(1.02 * max(planned.estimate.memory_bytes))


def cluster_of(devices: int, memory_bytes: int | None) -> Cluster:
    """Return equal devices."""
    return Cluster(devices=devices, hop=LINK, collective=LINK, memory_bytes=memory_bytes)


def ratios(found: PlanResult) -> dict[str, float]:
    """Return each row's step over the plan's; the best of all numbers of chunks for interleaving."""
    best: dict[str, float] = {}
    for row in found.baselines:
        name = "interleaved" if row.name.startswith("interleaved") else row.name
        if row.planned is not None:
            ratio = row.planned.estimate.step_us / found.best.estimate.step_us
            best[name] = min(ratio, best.get(name, math.inf))
    return best


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean, not a number of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def run_cases(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the table's lines, and the means."""
    yield "| profile | devices | memory | step ms | gap | order | " + " | ".join(ROWS) + " | seconds |"
    yield "|---" * (7 + len(ROWS)) + "|"
    every: dict[str, list[tuple[bool, float]]] = {name: [] for name in (*ROWS, "best baseline")}
    gaps = []
    for profile in profiles_of(arguments.profiles):
        for devices in arguments.devices:
            degrees = {} if arguments.free_degrees else {"pipeline": devices}
            options = PlanOptions(optimizer=OPTIMIZERS["adam-mixed"], what_if=False, **degrees)
            samples = arguments.micro_batches * devices * profile.micro_batches[0]
            try:
                limit = least_memory(profile, devices, options, samples)
            except ScheduleError as error:
                yield f"| {profile.name} | {devices} | - | {error} |"
                continue
            for memory in (limit, None):
                began = time.monotonic()
                found = find_plan(
                    profile,
                    cluster_of(devices, memory),
                    global_batch=samples,
                    options=options,
                    budget=SearchBudget(work_limit=arguments.work),
                )
                seconds = time.monotonic() - began
                found_ratios = ratios(found)
                gaps.append(1 + found.gap)
                for name, ratio in found_ratios.items():
                    if name in every:
                        every[name].append((memory is not None, ratio))
                every["best baseline"].append((memory is not None, min(found_ratios.values())))
                cells = [f"{found_ratios[name]:.3f}" if name in found_ratios else "-" for name in ROWS]
                held = "-" if memory is None else f"{memory / 2**30:.1f} GiB"
                yield (
                    f"| {profile.name} | {devices} | {held} | {found.best.estimate.step_us / 1e3:.1f} | "
                    f"{found.gap:.1%} | {found.best.layout.placement} {found.best.order} | "
                    f"{' | '.join(cells)} | {seconds:.0f} |"
                )
    yield ""
    for name, values in every.items():
        limited = geometric_mean([ratio for is_limited, ratio in values if is_limited])
        free = geometric_mean([ratio for is_limited, ratio in values if not is_limited])
        yield f"geometric mean over {name}: {limited:.3f} where memory is limited, {free:.3f} where not"
    yield f"geometric mean of the gap to the bound: {geometric_mean(gaps) - 1:.1%}"


def run_large(work: float) -> Iterator[str]:
    """Yield how long 64 devices and 200 layers take, when the first answer comes, and the peak memory."""
    profile = synthetic_profile(Shape("200 layers", 198, 2000.0, 3.6, 80, 50, 300))
    told: list[PlanProgress] = []
    began = time.monotonic()
    found = find_plan(
        profile,
        cluster_of(64, 16 * 2**30),
        global_batch=512,
        budget=SearchBudget(work_limit=work),
        on_progress=told.append,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    yield (
        f"{found.best.name}: {found.best.estimate.step_us / 1e3:.1f} ms, gap {found.gap:.1%}; "
        f"{time.monotonic() - began:.1f} s in all, first answer after {told[0].elapsed_s:.1f} s, "
        f"{peak:.2f} GiB at most; {found.counts}"
    )


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--profiles", type=Path, help="folder of profiles; made of proportions if left out")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--micro-batches", type=int, default=4, help="of a step, for each device")
    parser.add_argument("--work", type=float, default=25.0, help="units of work of each plan")
    parser.add_argument("--free-degrees", action="store_true", help="choose data parallelism too")
    parser.add_argument("--large", action="store_true", help="64 devices and 200 layers, nothing else")
    parser.add_argument("--out", type=Path, help="file for the table")
    arguments = parser.parse_args()
    lines = []
    for line in run_large(arguments.work) if arguments.large else run_cases(arguments):
        print(line, flush=True)
        lines.append(line)
    if arguments.out is not None:
        arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""How fast a kernel gets with so many trials of MetaSchedule, by who orders the schedules.

    python -m benchmarks.schedule_cost_model --folder out/schedules --trials 64 --seeds 1 2 3
    python -m benchmarks.schedule_cost_model --folder out/schedules --print-only
    python -m benchmarks.schedule_cost_model --folder out/schedules --replay

Contestants, each with the same builder, runner, batches of 16 and evolutionary search:

- `random`: every candidate gets a random score.
- `tvm`: TVM's model as it ships, which answers at random until it has 100 trials.
- `tvm-16`: TVM's model, told to begin with the first 16.
- `records`: the model of the records' trials. Those of the kernel at hand are left out: it has learnt from
  what `random` measured on the other kernels with one seed, and learns on as trials of its own arrive.

Every trial is kept in a store of its run under `--folder`, so that a run that was stopped goes on
(`--time-limit` seconds at most), and the table can be printed again. The table gives the median over seeds of
the best latency after so many trials, as a multiple of the best that anybody found for the kernel.

`--replay` measures nothing: of the trials that are there for a kernel, each contestant chooses eight at a
time, as if they were not measured yet. It leaves out the evolution of schedules, and whose scores steer it.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax
from tvm.s_tir import meta_schedule

from cost_model.schedule_model import MIN_TRIALS, Trials, train_schedule_model
from records import Status, open_store
from tuner.backends.metaschedule import MetaSchedule, tune_kernel, tuning_target, tuning_tasks
from tuner.backends.protocol import PARTITION_ATTRIBUTE, IRModule
from tuner.backends.schedule_cost_model import RecordsCostModel
from tuner.backends.schedule_trials import KeepTrials, load_trials, task_name
from tuner.backends.tvm_native import fuse_function
from tuner.target import Target
from tuner.target_resolution import environment_of, resolve_target

op = relax.op

CONTESTANTS = ("random", "tvm", "tvm-16", "records")
HISTORY_SEED = 1
_REPLAYED = 8
"""Trials that a replay chooses at once."""

FAILED_US = float("inf")


def dense(rows: int, inner: int, columns: int, activation: Callable[[Any], Any]) -> IRModule:
    shapes = [(rows, inner), (inner, columns), (columns,)]
    return kernel_of(shapes, lambda x, w, b: activation(op.add(op.matmul(x, w), b)))


def convolution(
    channels: int, extent: int, outputs: int, *, kernel: int, groups: int = 1, stride: int = 1
) -> IRModule:
    shapes = [(1, channels, extent, extent), (outputs, channels // groups, kernel, kernel)]
    padding = kernel // 2

    def body(x: Any, w: Any) -> Any:
        return op.nn.relu(op.nn.conv2d(x, w, strides=stride, padding=padding, groups=groups))

    return kernel_of(shapes, body)


def kernel_of(shapes: Sequence[tuple[int, ...]], body: Callable[..., Any]) -> IRModule:
    """Return the one kernel that a body fuses into."""
    builder = relax.BlockBuilder()
    parameters = [
        relax.Var(f"p{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(shapes)
    ]
    with builder.function("part", parameters, attrs={PARTITION_ATTRIBUTE: "metaschedule"}):
        with builder.dataflow():
            result = builder.emit_output(body(*parameters))
        builder.emit_func_output(result)
    module = relax.transform.Normalize()(builder.get())
    (task,) = tuning_tasks(fuse_function(module["part"]))
    return task


TASKS: dict[str, Callable[[], IRModule]] = {
    "dense 64×256×256, relu": lambda: dense(64, 256, 256, op.nn.relu),
    "dense 128×512×128, gelu": lambda: dense(128, 512, 128, op.nn.gelu),
    "batched product 8×64×64×64": lambda: kernel_of([(8, 64, 64), (8, 64, 64)], op.matmul),
    "convolution 3×3, 32→32, 28²": lambda: convolution(32, 28, 32, kernel=3),
    "convolution 1×1, 64→128, 28²": lambda: convolution(64, 28, 128, kernel=1),
    "depthwise 3×3, 96, 28²": lambda: convolution(96, 28, 96, kernel=3, groups=96),
}


def run(folder: Path, name: str, contestant: str, seed: int, trials: int, target: Target) -> None:
    """Tune one kernel once; what the store of the run holds already is done."""
    task, tuned_for = TASKS[name](), tuning_target(target)
    environment = environment_of(target, MetaSchedule())
    url = str(path_of(folder, name, contestant, seed))
    tune_kernel(
        task,
        tuned_for,
        trials=trials,
        work_dir=folder / "logs",
        database=meta_schedule.database.MemoryDatabase(),
        cost_model=model_of(folder, name, contestant, seed, task, tuned_for, target),
        callbacks=[KeepTrials(url, task, tuned_for, target, environment)],
        seed=seed,
    )


def model_of(
    folder: Path, name: str, contestant: str, seed: int, task: IRModule, tuned_for: Any, target: Target
) -> Any:
    np.random.seed(seed)  # TVM's model draws from numpy's own generator
    match contestant:
        case "random":
            return meta_schedule.cost_model.RandomModel(seed=seed)
        case "tvm":
            return meta_schedule.cost_model.XGBModel(num_tuning_cores=1)
        case "tvm-16":
            return meta_schedule.cost_model.XGBModel(num_tuning_cores=1, num_warmup_samples=16)
    return RecordsCostModel(
        task_name(task), history(folder, name, HISTORY_SEED, tuned_for, target), seed=seed
    )


def history(folder: Path, name: str, seed: int, tuned_for: Any, target: Target) -> list[Trials]:
    """Return what `random` measured on every other kernel with a seed."""
    environment = environment_of(target, MetaSchedule())
    return [
        trials
        for other in TASKS
        if other != name
        for trials in load_trials(str(path_of(folder, other, "random", seed)), tuned_for, target, environment)
    ]


def path_of(folder: Path, name: str, contestant: str, seed: int) -> Path:
    plain = "".join(letter if letter.isalnum() else "_" for letter in name)
    return folder / f"{plain}-{contestant}-{seed}.db"


def latencies_of(path: Path) -> list[float]:
    """Return the latency of each trial in the order of trials; those that failed took for ever."""
    with open_store(str(path)) as store:
        return [
            record.measurement.latency_us if record.measurement.status is Status.OK else FAILED_US
            for record in store.iterate(role="task")
        ]


def run_all(arguments: argparse.Namespace) -> bool:
    """Do what is not done yet; say whether everything is."""
    deadline = time.monotonic() + arguments.time_limit
    target = resolve_target("cpu", num_threads=1)
    # What `random` measures first is what `records` learns from; after that, contestants take turns.
    order = [("random", name, HISTORY_SEED) for name in TASKS]
    named = [name for name in TASKS if any(name.startswith(each) for each in arguments.tasks)]
    order += [
        (each, name, seed) for seed in arguments.seeds for name in named for each in arguments.contestants
    ]
    for contestant, name, seed in order:
        path = path_of(arguments.folder, name, contestant, seed)
        if path.exists() and len(latencies_of(path)) >= arguments.trials * 0.9:
            continue  # Small spaces run out of schedules before the trials do.
        if time.monotonic() > deadline:
            return False
        path.unlink(missing_ok=True)
        started = time.monotonic()
        run(arguments.folder, name, contestant, seed, arguments.trials, target)
        best_us = min(latencies_of(path))
        print(
            f"{name}, {contestant}, {seed}: {best_us:.1f} us, {time.monotonic() - started:.0f} s", flush=True
        )
    return True


def table(folder: Path, seeds: Sequence[int], counts: Sequence[int]) -> str:
    found = {
        (name, contestant): runs
        for name in TASKS
        for contestant in CONTESTANTS
        if (runs := [latencies_of(p) for s in seeds if (p := path_of(folder, name, contestant, s)).exists()])
    }
    present = {contestant for _, contestant in found}
    common = {name for name in TASKS if all((name, contestant) in found for contestant in present)}
    best = {
        name: min(min(each) for (task, _), runs in found.items() if task == name for each in runs)
        for name in {task for task, _ in found}
    }
    lines = [
        "| kernel | best of all | ordered by | " + " | ".join(f"after {n}" for n in counts) + " | seeds |",
        "|---|---|---|" + "---|" * (len(counts) + 1),
    ]
    ratios: dict[tuple[str, int], list[float]] = {}
    for (name, contestant), runs in found.items():
        cells = []
        for count in counts:
            ratio = statistics.median(min(each[:count]) for each in runs) / best[name]
            if name in common:
                ratios.setdefault((contestant, count), []).append(ratio)
            cells.append(f"{ratio:.2f}")
        lines.append(f"| {name} | {best[name]:.1f} µs | {contestant} | {' | '.join(cells)} | {len(runs)} |")
    for contestant in CONTESTANTS:
        if (contestant, counts[0]) in ratios:
            means = [statistics.geometric_mean(ratios[contestant, count]) for count in counts]
            number = len(ratios[contestant, counts[0]])
            lines.append(
                f"| geometric mean of {number} | | {contestant} | "
                + " | ".join(f"**{mean:.2f}**" for mean in means)
                + " | |"
            )
    return "\n".join(lines)


def replay_table(folder: Path, seeds: Sequence[int]) -> str:
    target = resolve_target("cpu", num_threads=1)
    tuned_for, environment = tuning_target(target), environment_of(target, MetaSchedule())
    counts = [_REPLAYED * number for number in (1, 2, 3, 4, 5, 6)]
    lines = [
        "| kernel | trials | chosen by | " + " | ".join(f"after {n}" for n in counts) + " |",
        "|---|---|---|" + "---|" * len(counts),
    ]
    ratios: dict[str, list[list[float]]] = {"random": [], "own trials": [], "records": []}
    for name in TASKS:
        pool = merged(
            [
                trials
                for path in sorted(folder.glob(path_of(folder, name, "*", 0).name.replace("-0.db", "-*.db")))
                for trials in load_trials(str(path), tuned_for, target, environment)
            ]
        )
        others = history(folder, name, HISTORY_SEED, tuned_for, target)
        for contestant, known in (("random", None), ("own trials", []), ("records", others)):
            runs = [replay(pool, known, seed, len(counts)) for seed in seeds]
            curve = [statistics.median(each) for each in zip(*runs, strict=True)]
            ratios[contestant].append(curve)
            cells = " | ".join(f"{ratio:.2f}" for ratio in curve)
            lines.append(f"| {name} | {len(pool.latencies_us)} | {contestant} | {cells} |")
    for contestant, curves in ratios.items():
        means = (statistics.geometric_mean(column) for column in zip(*curves, strict=True))
        cells = " | ".join(f"**{mean:.2f}**" for mean in means)
        lines.append(f"| geometric mean of {len(curves)} | | {contestant} | {cells} |")
    return "\n".join(lines)


def replay(pool: Trials, known: Sequence[Trials] | None, seed: int, rounds: int) -> list[float]:
    """Return best of what was chosen over best of all, after each round.

    Args:
        pool: trials to choose among.
        known: trials of other kernels; None to choose at random always.
        seed: of random choices, and of the model.
        rounds: how many.
    """
    rng = np.random.default_rng(seed)
    chosen: list[int] = []
    curve = []
    for _ in range(rounds):
        rest = [index for index in range(len(pool.latencies_us)) if index not in chosen]
        own = Trials(
            pool.task,
            tuple(pool.features[index] for index in chosen),
            tuple(pool.latencies_us[index] for index in chosen),
        )
        num_known = len(chosen) + sum(len(each.latencies_us) for each in known or ())
        if known is None or num_known < MIN_TRIALS:
            scores = rng.random(len(rest))
        else:
            model = train_schedule_model([*known, own], current=pool.task, seed=seed)
            scores = model.score([pool.features[index] for index in rest])
        chosen += [rest[index] for index in np.argsort(-scores)[:_REPLAYED]]
        curve.append(min(pool.latencies_us[index] for index in chosen) / min(pool.latencies_us))
    return curve


def merged(found: Sequence[Trials]) -> Trials:
    """Return the trials of one kernel by several runs as one."""
    return Trials(
        found[0].task,
        tuple(each for trials in found for each in trials.features),
        tuple(each for trials in found for each in trials.latencies_us),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("out/schedules"))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--tasks", nargs="+", default=[""], help="beginnings of names; all if left out")
    parser.add_argument("--contestants", nargs="+", default=CONTESTANTS, choices=CONTESTANTS)
    parser.add_argument(
        "--time-limit", type=float, default=float("inf"), help="seconds after which none starts"
    )
    parser.add_argument("--print-only", action="store_true")
    parser.add_argument("--replay", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.replay:
        print(replay_table(arguments.folder, arguments.seeds))
        return
    if not arguments.print_only and not run_all(arguments):
        print("not everything is done; run it again")
        return
    counts = [count for count in (1, 8, 16, 32, 48, 64, 96, 128) if count <= arguments.trials]
    print(table(arguments.folder, arguments.seeds, counts))


if __name__ == "__main__":
    main()

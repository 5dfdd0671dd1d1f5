"""Repetends: the exact search and CP-SAT in turn, from four devices to sixty-four.

    python -m benchmarks.schedule_search.period --repeats 5 --cpsat-seconds 20

Table 1 has Tessel's five training shapes on four devices, with the seconds its own authors' code took in
another run (z3; quoted, not run here); a second one adds the whole schedule of 64 micro-batches and its
independent check to the time. Table 2 grows the devices under a memory limit of as many units, and
of half. Table 3 has several copies, real spans and choices. Every repetend is unrolled and checked by
`tessel.validation`. Times are medians of processor seconds of the process, after one warm-up, so that other
work on the machine counts less; CP-SAT runs once a case, with one worker, its limit in wall-clock seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.cpsat.period import CpSatPeriod, solve_period
from tessel.placement import Placement
from tessel.schedule.schedule import Schedule
from tessel.search import RepetendResult, find_repetend, unroll_repetend
from tessel.shapes import make_shape
from tessel.validation import check_schedule

TESSEL_SECONDS = {"vshape": 0.97, "xshape": 5.9, "mshape": 32.4, "nnshape": 140.8, "kshape": 1.9}
"""Search time of Tessel's public code on a 2-core machine, z3 5.4; measured beforehand, not in this run."""

MEMORY = {"vshape": 4, "xshape": 4, "mshape": 6, "nnshape": 6, "kshape": 6}

SHAPES = tuple(MEMORY)

REAL_FORWARD = (4137, 5210, 4980, 6011, 4420, 5003, 5120, 4875)
REAL_BACKWARD = (8311, 9377, 9100, 12000, 8765, 9990, 10240, 9431)
"""Microseconds of unequal stages, as a span a stage."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A repetend and the seconds of its repeated searches."""

    found: RepetendResult
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> str:
        return f"{min(self.seconds) * 1e3:.1f}-{max(self.seconds) * 1e3:.1f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cpsat-seconds", type=float, default=20.0, help="time limit of each CP-SAT run; 0: none"
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[8, 16, 32, 64])
    options = parser.parse_args(arguments)

    def rival(placement: Placement, memory: int) -> CpSatPeriod | None:
        if not options.cpsat_seconds:
            return None
        return solve_period(placement, memory=memory, time_limit_s=options.cpsat_seconds)

    for line in chain(
        small_table(options.repeats, rival),
        whole_table(options.repeats, rival),
        large_table(options.repeats, options.devices, rival),
        further_table(options.repeats),
    ):
        print(line, flush=True)


Rival = Callable[[Placement, int], CpSatPeriod | None]


def small_table(repeats: int, rival: Rival) -> Iterator[str]:
    yield "| 4 devices | memory | period | ms (min-max) | CP-SAT ms | ratio | Tessel s, quoted | ratio |"
    yield "|---|---|---|---|---|---|---|---|"
    ratios: list[float] = []
    for shape in SHAPES:
        placement, memory = make_shape(shape, 4), MEMORY[shape]
        timed = search(placement, memory, repeats)
        other = rival(placement, memory)
        agree(timed.found, other)
        ratios.append(TESSEL_SECONDS[shape] / timed.median)
        yield (
            f"| {shape} | {memory} | {proven(timed.found)} | {timed.median * 1e3:.2f} ({timed.spread}) | "
            f"{rival_text(other, 1e3)} | {ratio_text(other, timed)} | {TESSEL_SECONDS[shape]} | "
            f"{ratios[-1]:.0f} |"
        )
    mean = statistics.geometric_mean(ratios)
    yield f"\nGeometric mean of the ratios to Tessel's quoted seconds: {mean:.0f}\n"


def whole_table(repeats: int, rival: Rival) -> Iterator[str]:
    """The period, a whole schedule of 64 micro-batches and its check, beside CP-SAT's period alone."""
    yield "| 4 devices | memory | period | 64 micro-batches, bound | ms (min-max) | CP-SAT's period | ratio |"
    yield "|---|---|---|---|---|---|---|"
    medians: list[float] = []
    for shape in SHAPES:
        placement, memory = make_shape(shape, 4), MEMORY[shape]
        seconds = []
        for _ in range(repeats + 1):
            started = time.process_time()
            found = find_repetend(placement, memory=memory, max_copies=1)
            whole = unroll_repetend(found, micro_batches=64)
            check_schedule(whole)
            seconds.append(time.process_time() - started)
        timed = Timed(found, tuple(seconds[1:]))
        medians.append(timed.median)
        other = rival(placement, memory)
        yield (
            f"| {shape} | {memory} | {proven(found)} | {whole.makespan}, {whole.lower_bound} | "
            f"{timed.median * 1e3:.2f} ({timed.spread}) | {rival_text(other, 1e3)} | "
            f"{'' if other is None else f'{other.seconds / timed.median:.1f}'} |"
        )
    yield f"\nGeometric mean: {statistics.geometric_mean(medians) * 1e3:.2f} ms\n"


def large_table(repeats: int, devices: Sequence[int], rival: Rival) -> Iterator[str]:
    yield "| shape | devices | memory | period | ms (min-max) | method | CP-SAT s | ratio |"
    yield "|---|---|---|---|---|---|---|---|"
    for num_devices in devices:
        for shape in SHAPES:
            for memory in (num_devices, num_devices // 2):
                placement = make_shape(shape, num_devices)
                timed = search(placement, memory, repeats)
                other = rival(placement, memory)
                agree(timed.found, other)
                yield (
                    f"| {shape} | {num_devices} | {memory} | {proven(timed.found)} | "
                    f"{timed.median * 1e3:.0f} ({timed.spread}) | {timed.found.found_by} | "
                    f"{rival_text(other, 1.0)} | {ratio_text(other, timed)} |"
                )
    yield ""


def further_table(repeats: int) -> Iterator[str]:
    yield "| case | memory | copies | period | steps a micro-batch | bound | ms (min-max) |"
    yield "|---|---|---|---|---|---|---|"
    for name, placement, memory, most in further_cases():
        timed = search(placement, memory, repeats, max_copies=most)
        found = timed.found
        yield (
            f"| {name} | {memory} | {found.copies} (of at most {most}) | {proven(found)} | "
            f"{float(found.rate):.6g} | {float(found.rate_lower_bound):.6g} | "
            f"{timed.median * 1e3:.1f} ({timed.spread}) |"
        )


def further_cases() -> Iterator[tuple[str, Placement, int, int]]:
    for most in (1, 2, 3):
        yield "vshape, 4 devices", make_shape("vshape", 4), 3, most
    for shape in ("vshape", "mshape", "nnshape"):
        for memory in (3, 4):
            yield f"{shape}, 4 devices, real spans", real_shape(shape, 4), memory, 1
    yield "xshape, 4 devices, real spans", real_shape("xshape", 8, num_devices=4), 4, 1
    yield "vshape, 8 devices, real spans", real_shape("vshape", 8), 6, 1
    yield "mshape, 8 devices, real spans", real_shape("mshape", 8), 6, 1
    yield "vshape, 4 devices, real spans", real_shape("vshape", 4), 3, 3
    yield "vshape, 4 devices, joint or split backward", real_choice(), 4, 1


def real_shape(shape: str, num_stages: int, *, num_devices: int | None = None) -> Placement:
    return make_shape(
        shape,
        num_devices or num_stages,
        forward_span=REAL_FORWARD[:num_stages],
        backward_span=REAL_BACKWARD[:num_stages],
        tensor_parallel_span=2500,
        lag=211,
    )


def real_choice() -> Placement:
    return make_shape(
        "vshape",
        4,
        choose_backward=True,
        forward_span=REAL_FORWARD[:4],
        backward_span=REAL_BACKWARD[:4],
        backward_input_span=tuple(span * 11 // 20 for span in REAL_BACKWARD[:4]),
        backward_weight_span=tuple(span // 2 for span in REAL_BACKWARD[:4]),
        forward_memory=2,
        backward_memory=-2,
        lag=211,
    )


def search(placement: Placement, memory: int, repeats: int, *, max_copies: int = 1) -> Timed:
    """Search once to warm up, then as often as asked for; check the last answer independently."""
    seconds = []
    for _ in range(repeats + 1):
        started = time.process_time()
        found = find_repetend(placement, memory=memory, max_copies=max_copies, time_limit_s=60.0)
        seconds.append(time.process_time() - started)
    check_schedule(unrolled(found))
    return Timed(found, tuple(seconds[1:]))


def unrolled(found: RepetendResult, periods: int = 4) -> Schedule:
    starts = {
        (block, copy + found.copies * n): found.starts[copy][here] + n * found.period
        for n in range(periods)
        for copy in range(found.copies)
        for here, block in enumerate(found.block_indices)
    }
    return Schedule.of(found.placement, starts, micro_batches=periods * found.copies, memory=found.memory)


def agree(found: RepetendResult, other: CpSatPeriod | None) -> None:
    if other is not None and other.period is not None and found.optimal and other.period != found.period:
        raise AssertionError(f"CP-SAT found {other.period}, the search {found.period}")


def proven(found: RepetendResult) -> str:
    return f"{found.period}, proven" if found.optimal else f"{found.period}, at least {found.lower_bound}"


def rival_text(other: CpSatPeriod | None, scale: float) -> str:
    if other is None:
        return "not run"
    if other.period is None:
        return f"none in {other.seconds:.0f} s, at least {other.lower_bound}"
    return f"{other.seconds * scale:.1f}"


def ratio_text(other: CpSatPeriod | None, timed: Timed) -> str:
    if other is None:
        return ""
    return f"{'' if other.period is not None else '> '}{other.seconds / timed.median:.0f}"


if __name__ == "__main__":
    main()

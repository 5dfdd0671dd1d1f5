from tessel.picture.bars import Phase, bars_of, idle_steps, memory_curves
from tessel.placement import Block, BlockKind, Edge, Placement
from tessel.schedule import Repetend, Schedule

# device 0   f0 .  b0 b0 .      one forward step and two backward steps a device, memory +1 and -1
# device 1   .  tp tp .  .      `tp` holds both devices in the second drawing only
PLACEMENT = Placement(
    devices=2,
    blocks=(
        Block(name="f0", kind=BlockKind.FORWARD, devices=(0,), span=1, memory=2),
        Block(name="t", kind=BlockKind.OTHER, devices=(0, 1), span=1, memory=1),
        Block(name="b0", kind=BlockKind.BACKWARD, devices=(0,), span=2, memory=-3),
    ),
    edges=(Edge("f0", "t"), Edge("t", "b0")),
)
SCHEDULE = Schedule.of(
    PLACEMENT,
    {(0, 0): 0, (1, 0): 2, (2, 0): 3},
    micro_batches=1,
    repetend=Repetend(period=3, micro_batches=1, lower_bound=3, optimal=True, start=1, end=3),
)


def test_a_block_on_two_devices_has_a_bar_on_each() -> None:
    rows = [(bar.device, bar.block, bar.start, bar.end) for bar in bars_of(SCHEDULE)]

    assert rows == [(0, "f0", 0, 1), (0, "t", 2, 3), (0, "b0", 3, 5), (1, "t", 2, 3)]


def test_bars_say_whether_they_lie_before_in_or_after_the_repeating_part() -> None:
    phases = {bar.block: bar.phase for bar in bars_of(SCHEDULE)}

    assert phases == {"f0": Phase.WARM_UP, "t": Phase.REPETEND, "b0": Phase.COOL_DOWN}


def test_idle_steps_are_the_makespan_less_what_runs() -> None:
    assert idle_steps(SCHEDULE) == (1, 4)


def test_memory_counts_from_the_start_of_each_block() -> None:
    first, second = memory_curves(SCHEDULE)

    assert list(zip(first.steps, first.units, strict=True)) == [(0, 2), (2, 3), (3, 0), (5, 0)]
    assert list(zip(second.steps, second.units, strict=True)) == [(0, 0), (2, 1), (5, 1)]

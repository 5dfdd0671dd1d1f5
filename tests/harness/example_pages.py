"""Pages that tests open in a browser: two devices, shared blocks, many blocks, and the graph of a model."""

from __future__ import annotations

from tessel.comparison import Comparison, ComparisonRow, compare_schedules
from tessel.handwritten import HANDWRITTEN
from tessel.picture.page.document import GraphPart, PageModel, PagePart, PageVariant, page_document
from tessel.placement import Block, Placement
from tessel.schedule import Schedule
from tessel.shapes import vshape

NUM_LAYERS = 12

PARTS = (
    PagePart(
        operators=("matmul", "add"),
        backend="blas",
        latency_us=1500.0,
        source="measured",
        occurrences=2,
        runner_up=("tvm", 2000.0),
        blocks=("f0", "f1"),
        layers="h.0.mlp",
    ),
    PagePart(
        operators=("nn.relu",),
        backend="tvm",
        latency_us=1000.0,
        source="predicted",
        occurrences=1,
        blocks=("b1",),
    ),
)


def repeated_layers() -> tuple[GraphPart, ...]:
    """A relu, twelve equal layers of a product and a relu, and the last product, each after the other."""
    nodes = [GraphPart(part=1, function="stage0.forward", layers=("wte",))]
    for layer in range(NUM_LAYERS):
        last = len(nodes) - 1
        nodes.append(
            GraphPart(
                part=0, function="stage0.forward", layers=(f"h.{layer}.mlp", f"h.{layer}.mlp"), inputs=(last,)
            )
        )
        nodes.append(
            GraphPart(part=1, function="stage0.forward", layers=(f"h.{layer}.act",), inputs=(last + 1, last))
        )
    nodes.append(
        GraphPart(part=0, function="stage0.forward", layers=("lm_head", "lm_head"), inputs=(len(nodes) - 1,))
    )
    return tuple(nodes)


MODEL = PageModel(
    parts=PARTS,
    graph=repeated_layers(),
    block_of_function={"stage0.forward": "f0"},
    layers={"f0": ("wte", "h.0"), "f1": ("h.1", "lm_head")},
)


def comparison(devices: int, micro_batches: int, memory: int | None = None) -> Comparison:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    limits = None if memory is None else (memory,) * devices
    return compare_schedules(rule.build(vshape(devices), micro_batches=micro_batches, memory=limits))


def variants(devices: int) -> tuple[PageVariant, ...]:
    """1F1B for some numbers of micro-batches, and one after the other, which holds one micro-batch."""
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    found = []
    for micro_batches in (2, 4):
        fast = rule.build(vshape(devices), micro_batches=micro_batches, memory=None)
        slow = _serial(vshape(devices), micro_batches)
        for memory, schedule in ((1, slow), (devices, fast)):
            found.append(
                PageVariant(
                    memory=memory,
                    schedule=schedule,
                    lower_bound=fast.makespan,
                    optimal=schedule is fast,
                )
            )
    return tuple(found)


def _serial(placement: Placement, micro_batches: int) -> Schedule:
    starts, time = {}, 0
    for micro_batch in range(micro_batches):
        for index, block in enumerate(placement.blocks):
            starts[index, micro_batch] = time
            time += block.span
    return Schedule.of(placement, starts, micro_batches=micro_batches)


def shared_blocks() -> bytes:
    """A page of four devices: `all` runs on each of them, `ends` on the first and the last, then `one`."""
    placement = Placement(
        devices=4,
        blocks=(
            Block(name="all", devices=(0, 1, 2, 3), span=4),
            Block(name="ends", devices=(0, 3), span=4),
            Block(name="one", devices=(1,), span=4),
        ),
    )
    schedule = Schedule.of(placement, {(0, 0): 0, (1, 0): 4, (2, 0): 8}, micro_batches=1)
    return page_document(compare_schedules(schedule), title="shared")


def large_comparison(devices: int, micro_batches: int) -> Comparison:
    """All forwards first and then all backwards, three times, ever later: written down, not searched."""
    placement = vshape(devices, backward_span=1)
    schedules = []
    for number, name in enumerate(("searched", "1f1b", "gpipe")):
        starts = {}
        for index, block in enumerate(placement.blocks):
            (device,) = block.devices
            forward = block.name.startswith("f")
            first = device if forward else micro_batches + 2 * devices + number - device
            starts.update({(index, m): first + m for m in range(micro_batches)})
        schedules.append((name, Schedule.of(placement, starts, micro_batches=micro_batches)))
    rows = tuple(
        ComparisonRow(
            schedule=name,
            makespan=schedule.makespan,
            bubble_ratio=schedule.bubble_ratio,
            peak_memory=schedule.peak_memory,
            fits=True,
        )
        for name, schedule in schedules
    )
    return Comparison(rows=rows, schedules=tuple(schedules), not_applicable=())

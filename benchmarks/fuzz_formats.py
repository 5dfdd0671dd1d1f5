"""The formats that commands read, for `fuzz`: samples, how they are changed, and how a command reads them."""

from __future__ import annotations

import html.parser
import io
import json
import random
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import mutation
from benchmarks.fuzz import Files, Format

TEXT_COUNT = 100_000
MODEL_COUNT = 5_000

Change = Callable[[random.Random, bytes], bytes]


def all_formats() -> dict[str, Callable[[], Format]]:
    """Return what makes each format, by name; making one imports what it needs."""
    return {
        "records": _records,
        "tvm-database": _tvm_database,
        "placement": _placement,
        "schedule": _schedule,
        "tessel-file": _tessel_file,
        "plan": _plan,
        "orders": _orders,
        "kernel-model": _kernel_model,
        "stage-model": _stage_model,
        "language-model": _language_model,
        "pt2": _exported,
        "onnx": _onnx,
    }


def _by_suffix(**changes: Change) -> Callable[[random.Random, Files], Files]:
    table = {f".{suffix}": change for suffix, change in changes.items()}
    return lambda rng, files: mutation.changed_folder(rng, files, table)


# Records


def _records() -> Format:
    from records import RecordError
    from records.exchange import read_records

    def read(folder: Path) -> None:
        for _ in read_records(folder / "records.jsonl"):
            pass

    return Format(
        name="records",
        count=TEXT_COUNT,
        samples=lambda: [{"records.jsonl": b"".join(line + b"\n" for line in _record_lines())}],
        change=lambda rng, files: {
            "records.jsonl": mutation.changed_text_file(rng, files["records.jsonl"])
        },
        read=read,
        own_errors=(RecordError,),
    )


def _record_lines() -> list[bytes]:
    from records import Record
    from records.exchange import encode_line

    return [
        encode_line(Record(record_id=number, workload=workload, measurement=measurement))
        for number, (workload, measurement) in enumerate(_measured_products())
    ]


def _measured_products(count: int = 3) -> list[Any]:
    """Return made-up measurements of small products."""
    from records import Measurement, Status, Workload
    from records.workload import Operator, Tensor

    found = []
    for size in range(8, 8 + count):
        tensors = [Tensor((size, 4), "float32"), Tensor((4, 6), "float32"), Tensor((size, 6), "float32")]
        workload = Workload(
            role="kernel",
            operators=(Operator("matmul", (0, 1), (2,)),),
            tensors=tuple(tensors),
            inputs=(0, 1),
            outputs=(2,),
            flops=48 * size,
            bytes_read=16 * size + 96,
            bytes_written=24 * size,
        )
        found.append((workload, Measurement, Status))
    return found


def _tvm_database() -> Format:
    raise NotImplementedError


# Documents of the scheduler


def _scheduler_errors() -> tuple[type[Exception], ...]:
    from tessel.errors import ScheduleError

    return (ScheduleError, ValueError)


def _placements() -> list[Any]:
    from tessel.shapes import make_shape

    return [
        make_shape("vshape", 3),
        make_shape("mshape", 2),
        make_shape("vshape", 2, choose_backward=True, lag=1),
    ]


def _schedules() -> list[Any]:
    from tessel.search import find_schedule

    return [
        find_schedule(placement, micro_batches=3, memory=memory, time_limit_s=2)
        for placement, memory in zip(_placements(), ((4, 4, 4), None, None), strict=True)
    ]


def _placement() -> Format:
    from tessel.documents import load_placement

    return Format(
        name="placement",
        count=TEXT_COUNT,
        samples=lambda: [{"placement.json": each.to_json()} for each in _placements()],
        change=_by_suffix(json=mutation.changed_text_file),
        read=lambda folder: _draw_placement(load_placement(folder / "placement.json")),
        own_errors=_scheduler_errors(),
    )


def _draw_placement(placement: Any) -> None:
    """Read what a placement means, as a command does before it searches."""
    from tessel.handwritten.stages import NotAPipelineError, read_pipeline

    try:
        read_pipeline(placement)
    except NotAPipelineError:
        pass


def _schedule() -> Format:
    from tessel.documents import load_schedule

    return Format(
        name="schedule",
        count=TEXT_COUNT,
        samples=lambda: [{"schedule.json": each.to_json()} for each in _schedules()],
        change=_by_suffix(json=mutation.changed_text_file),
        read=lambda folder: _write_all(load_schedule(folder / "schedule.json"), None, folder),
        own_errors=_scheduler_errors(),
    )


def _tessel_file() -> Format:
    from tessel.schedule.schedplan import SchedPlan

    def samples() -> list[Files]:
        saved = []
        for schedule in _schedules()[:2]:
            with tempfile.TemporaryDirectory() as root:
                SchedPlan.of_schedule(schedule).save(Path(root) / "plan.json")
                saved.append({"plan.json": (Path(root) / "plan.json").read_bytes()})
        block = {"mid": 0, "span": 1, "memory": 1.0, "btype": "FW", "gid": 0}
        saved.append({"plan.json": json.dumps({"ndevs": 1, "blocks": [block | {"step": 0, "device": [0]}]}).encode()})
        return saved

    def read(folder: Path) -> None:
        SchedPlan.load(folder / "plan.json")

    return Format(
        name="tessel-file",
        count=TEXT_COUNT,
        samples=samples,
        change=_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _plan() -> Format:
    from tessel.plan import load_plan

    def read(folder: Path) -> None:
        plan = load_plan(folder / "plan.json")
        _write_all(plan.schedule, plan, folder)

    return Format(
        name="plan",
        count=TEXT_COUNT,
        samples=_plans,
        change=_by_suffix(json=mutation.changed_text_file),
        read=read,
        own_errors=_scheduler_errors(),
    )


def _plans() -> list[Files]:
    import msgspec

    from tessel.comparison import compare_schedules
    from tessel.plan import Plan
    from tuner.plan import Figure, ModelPlan, PartitionPlan, StagePlan, TensorInfo

    measured = Figure(latency_us=7.5, source="measured", record_ids=(1, 2), interval_us=(7.0, 8.0))
    boundary = TensorInfo(name="x", shape=(4, 8), dtype="float32", num_bytes=128)
    schedule = _schedules()[0]
    stages = tuple(
        StagePlan(
            name=f"stage{number}",
            layers=(f"h.{number}",),
            inputs=(boundary,),
            outputs=(boundary,),
            relayed=(),
            parameters=(f"h.{number}.weight",),
            forward=measured,
            backward=measured,
            backward_input=measured if number else None,
            backward_weight=measured,
            weight_bytes=4000,
            saved_bytes=600,
            saved_for_weight_bytes=500,
            boundary_bytes=128,
        )
        for number in range(3)
    )
    part = PartitionPlan(
        operators=("matmul", "add"),
        backend="tvm",
        figure=measured,
        occurrences=3,
        workload_fingerprint="0" * 32,
        functions=("stage0.forward", "stage1.backward"),
        runner_up=("blas", 9.0),
    )
    tuned = ModelPlan(
        model="gpt2:tiny",
        model_fingerprint="0" * 32,
        training=True,
        target='{"kind":"llvm"}',
        device_model="a processor",
        num_threads=1,
        partition=(part,),
        end_to_end={"mix": measured, "tvm": measured},
        sum_of_parts=measured,
        launch_penalty_us=0.5,
        max_relative_error=1e-6,
        max_gradient_error=1e-6,
        stages=stages,
        tied=(),
        hop_latency_us=(5.0, 5.0),
        hop_source="given",
        new_measurements=0,
        reused_measurements=2,
    )
    plan = Plan(
        **{name: getattr(tuned, name) for name in tuned.__struct_fields__},
        step_us=10.0,
        memory_limit_bytes=10_000,
        static_bytes=(100, 100, 100),
        optimizer="sgd",
        placement=schedule.placement,
        schedule=schedule,
        comparison=compare_schedules(schedule).rows,
    )
    return [{"plan.json": msgspec.json.encode(plan, order="sorted")}]


def _write_all(schedule: Any, plan: Any, folder: Path) -> None:
    """Write a schedule as every kind of picture, and look at what was written.

    Raises:
        AssertionError: a name from the file is more than text in it.
    """
    from scripts.draw_command import write_picture

    suffixes = [".html", ".json", ".txt", ".md"]
    if len(schedule.starts) < 100 and hash(schedule.starts) % 25 == 0:
        suffixes.append(".svg")  # takes a hundred times as long as the others
    for suffix in suffixes:
        path = folder / f"drawn{suffix}"
        title = "title" if plan is None else f"{plan.model} on {plan.device_model}"
        write_picture(schedule, plan, path, title=title)
        _LOOKS[suffix](path.read_text())


def _look_at_page(text: str) -> None:
    page = _Page()
    page.feed(text)
    page.close()
    assert page.scripts.keys() == {"data", ""}, f"the page has scripts {sorted(page.scripts)}"
    assert "<" not in page.scripts["data"], "the page's data holds the beginning of a tag"
    json.loads(page.scripts["data"])


class _Page(html.parser.HTMLParser):
    """Collects the text of a page's scripts by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: dict[str, str] = {}
        self._name: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "img", "a name from the file became a tag of the page"
        if tag == "script":
            self._name = dict(attrs).get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._name = None

    def handle_data(self, data: str) -> None:
        if self._name is not None:
            self.scripts[self._name] = self.scripts.get(self._name, "") + data


def _look_at_text(text: str) -> None:
    control = {character for character in text if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    assert not control, f"the text holds control characters {sorted(control)}"


def _look_at_picture(text: str) -> None:
    ElementTree.fromstring(text)


_LOOKS: Mapping[str, Callable[[str], Any]] = {
    ".html": _look_at_page,
    ".json": json.loads,
    ".txt": _look_at_text,
    ".md": _look_at_text,
    ".svg": _look_at_picture,
}


def _orders() -> Format:
    from tessel.documents import read_document
    from tessel.engine import actions_from_csv, actions_of, actions_to_csv, schedule_of_actions

    placement = _placements()[0]

    def read(folder: Path) -> None:
        actions = actions_from_csv(read_document(folder / "orders.csv").decode())
        schedule_of_actions(placement, actions)

    def samples() -> list[Files]:
        return [{"orders.csv": actions_to_csv(actions_of(_schedules()[0])).encode()}]

    return Format(
        name="orders",
        count=TEXT_COUNT,
        samples=samples,
        change=_by_suffix(csv=mutation.changed_table),
        read=read,
        own_errors=_scheduler_errors(),
    )


# Folders of models


def _kernel_model() -> Format:
    raise NotImplementedError


def _stage_model() -> Format:
    raise NotImplementedError


def _language_model() -> Format:
    raise NotImplementedError


def _exported() -> Format:
    raise NotImplementedError


def _onnx() -> Format:
    raise NotImplementedError

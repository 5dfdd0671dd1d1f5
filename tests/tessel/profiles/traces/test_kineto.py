"""Traces of PyTorch's profiler, of real ranks and modules, against stopwatches beside the profiler."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from traced_job import ORDERS, STEPS, Pause

from tessel.engine.actions import actions_from_csv
from tessel.errors import DocumentError
from tessel.placement import BlockKind
from tessel.profiles import Profile, load_profile
from tessel.profiles.traces import Trace, load_trace

pytestmark = pytest.mark.torch

JOB = Path(__file__).parents[3] / "oracles" / "traced_job.py"
LETTER = {
    BlockKind.FORWARD: "F",
    BlockKind.BACKWARD: "B",
    BlockKind.BACKWARD_INPUT: "I",
    BlockKind.BACKWARD_WEIGHT: "W",
}
SLACK_US = 15_000.0
"""What an operation may take beside its pause where nothing disturbs it."""

TAKES = 20
"""Traces that are taken until a busy machine has disturbed nothing in one."""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a job of two ranks that traced itself."""
    folder = tmp_path_factory.mktemp("job")
    environment = os.environ | {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(JOB), str(folder)],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return folder


def taken(folder: Path, rank: int, direction: str) -> list[float]:
    times: list[float] = json.loads((folder / f"taken{rank}.json").read_text())[direction]
    return times


def times_of(trace: Trace, rank: int, kinds: str) -> list[float]:
    return [each.duration_us for each in trace.ranges if each.rank == rank and LETTER[each.kind] in kinds]


@pytest.mark.slow
def test_ranges_are_what_each_rank_was_told_to_run(job: Path) -> None:
    trace = load_trace(job / "traces")
    assert trace.stage_names == ("stage0", "stage1")
    assert {each.step for each in trace.ranges} == set(range(STEPS))
    for step in range(STEPS):
        for rank, own in enumerate(actions_from_csv(ORDERS)):
            found = [
                f"{each.stage}{LETTER[each.kind]}{each.micro_batch}"
                for each in trace.of_step(step)
                if each.rank == rank and each.duration_us
            ]
            # The first stage needs no gradient of its input: its input half holds nothing.
            assert found == [str(action) for action in own if (rank, action.kind) != (0, "I")]
    assert any("count 0" in note for note in trace.notes)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_durations_are_those_of_stopwatches_without_waits(job: Path, rank: int) -> None:
    trace = load_trace(job / "traces")
    for direction, kinds in (("forward", "F"), ("backward", "WB" if rank == 0 else "IB")):
        expected = taken(job, rank, direction)
        found = times_of(trace, rank, kinds)
        assert len(found) == len(expected) == 3 * STEPS
        beside = [one - other for one, other in zip(found, expected, strict=True)]
        assert min(beside) >= 0
        for micro_batch in range(3):
            assert min(beside[micro_batch::3]) <= SLACK_US


@pytest.mark.slow
def test_the_second_rank_really_waited(job: Path) -> None:
    """Its labels are longer than its work, which is what the reader has to tell apart."""
    text = gzip.decompress((job / "traces" / "rank1_trace.json.gz").read_bytes())
    labels = [event for event in json.loads(text)["traceEvents"] if event.get("name") == "PP:1F0"]
    trace = load_trace(job / "traces")
    first = [each for each in trace.ranges if (each.rank, each.kind, each.micro_batch) == (1, "forward", 0)]
    waits = [label["dur"] - own.duration_us for label, own in zip(labels, first, strict=True)]
    assert max(waits) > SLACK_US


@pytest.mark.slow
def test_clocks_of_ranks_are_one(job: Path) -> None:
    trace = load_trace(job / "traces")
    start = {(each.step, each.stage, each.kind, each.micro_batch): each for each in trace.ranges}
    for (step, stage, kind, micro_batch), own in start.items():
        if stage == 1 and kind is BlockKind.FORWARD:
            before = start[step, 0, kind, micro_batch]
            assert own.start_us >= before.start_us + before.duration_us


@pytest.mark.slow
def test_profile_of_a_folder_has_each_stage(job: Path) -> None:
    profile = load_profile(job / "traces")
    assert [layer.name for layer in profile.layers] == ["stage0", "stage1"]
    for rank, cost in enumerate(profile.tables[0].costs):
        assert cost.forward_us >= statistics.median(taken(job, rank, "forward"))
        traced_us = statistics.median(times_of(load_trace(job / "traces"), rank, "F"))
        assert cost.forward_us == pytest.approx(traced_us)
        assert cost.is_splittable
        assert (cost.backward_us or 0.0) >= 1e3
    assert any("no bytes" in note for note in profile.notes)


@pytest.mark.slow
def test_one_rank_of_two_is_told_or_refused(job: Path, tmp_path: Path) -> None:
    first = job / "traces" / "rank0_trace.json.gz"
    assert any("traces of 1 of 2 ranks" in note for note in load_profile(first).notes)
    with pytest.raises(
        DocumentError, match="stage0 of 2 have no forward in it; give the traces of all ranks"
    ):
        load_profile(job / "traces" / "rank1_trace.json.gz")
    for name in ("one.json.gz", "two.json.gz"):
        (tmp_path / name).write_bytes(first.read_bytes())
    with pytest.raises(DocumentError, match="two files are of rank 0"):
        load_profile(tmp_path)


class Block(nn.Module):
    def __init__(self, forward_ms: float, backward_ms: float) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.pause = Pause(forward_ms, backward_ms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + torch.tanh(self.pause(self.first(x)))
        return found


class Net(nn.Module):
    def __init__(self, *, recomputes: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.blocks = nn.ModuleList([Block(4.0, 12.0), Block(8.0, 4.0), Block(16.0, 8.0)])
        self.head = nn.Linear(8, 5)
        self.recomputes = recomputes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recomputes else block(x)
        found: torch.Tensor = self.head(x)
        return found

    def pauses(self) -> Iterator[Pause]:
        return (module for module in self.modules() if isinstance(module, Pause))


def traced(
    path: Path,
    *,
    recomputes: bool = False,
    run: Callable[[Net, torch.Tensor], torch.Tensor] | None = None,
    **options: Any,
) -> Net:
    """Trace three micro-batches of a small model into a file."""
    model, tokens = Net(recomputes=recomputes), torch.zeros(2, 3, dtype=torch.long)

    def step() -> None:
        output = model(tokens) if run is None else run(model, tokens)
        if output.requires_grad:
            output.square().mean().backward()

    step()
    for pause in model.pauses():
        pause.taken = {"forward": [], "backward": []}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profiler:
        for _ in range(3):
            step()
    profiler.export_chrome_trace(str(path))
    return model


def beside_pauses(profile: Profile, model: Net, *, forwards_each: int) -> list[float]:
    """Return what each block is said to take beside the stopwatches of its pauses, in microseconds."""
    found = []
    for cost, pause in zip(profile.tables[0].costs[1:4], model.pauses(), strict=True):
        assert len(pause.taken["forward"]) == 3 * forwards_each
        found.append(cost.forward_us - statistics.median(pause.taken["forward"][::forwards_each]))
        found.append((cost.backward_us or 0.0) - statistics.median(pause.taken["backward"]))
        if forwards_each > 1:
            again = statistics.median(pause.taken["forward"][1::forwards_each])
            found.append((cost.recompute_us or 0.0) - again)
    return found


def profiled(path: Path, *, forwards_each: int = 1, **options: Any) -> Profile:
    """Return what is read from a trace, and assert that blocks take their pauses and little more."""
    for _ in range(TAKES):
        model = traced(path, **options)
        profile = load_profile(path)
        beside = beside_pauses(profile, model, forwards_each=forwards_each)
        assert min(beside) >= 0
        if max(beside) <= SLACK_US:
            return profile
    raise AssertionError(f"beside its pause a block takes up to {max(beside)} us in each of {TAKES} traces")


def test_modules_are_layers_with_the_backwards_that_belong_to_them(tmp_path: Path) -> None:
    profile = profiled(tmp_path / "model.json", with_stack=True)
    assert [layer.name for layer in profile.layers] == [
        "Embedding_0",
        "Block_0",
        "Block_1",
        "Block_2",
        "Linear_6",
    ]


def test_recomputation_is_told_from_forward_and_backward(tmp_path: Path) -> None:
    profile = profiled(tmp_path / "model.json", forwards_each=2, with_stack=True, recomputes=True)
    assert len(profile.layers) == 5


def test_named_ranges_are_layers(tmp_path: Path) -> None:
    def run(model: Net, tokens: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("embed"):
            x = model.embed(tokens)
        for number, block in enumerate(model.blocks):
            with torch.profiler.record_function(f"block{number}"):
                x = block(x)
        with torch.profiler.record_function("head"):
            found: torch.Tensor = model.head(x)
            return found

    profile = profiled(tmp_path / "model.json", run=run)
    assert [layer.name for layer in profile.layers] == ["embed", "block0", "block1", "block2", "head"]


def test_inference_has_forwards_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.json"

    def run(model: Net, tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model(tokens)
            return found

    traced(path, with_stack=True, run=run)
    assert not load_profile(path).is_training


def test_traces_that_name_nothing_are_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    traced(path)
    with pytest.raises(DocumentError, match=r"no range in it says which stage or layer.*with_stack=True"):
        load_profile(path)


def kernel_trace(path: Path) -> None:
    """Write a trace in the form of one of a GPU: a backward's kernels are launched by another thread."""
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    ]

    def add(category: str, name: str, tid: int, ts: float, dur: float, **arguments: object) -> None:
        events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": tid,
                "ts": ts,
                "dur": dur,
                "args": arguments,
            }
        )

    add("user_annotation", "PP:0F0", 1, 0, 100)
    add("cpu_op", "aten::mm", 1, 40, 20)
    add("cuda_runtime", "cudaLaunchKernel", 1, 50, 2, correlation=1)
    add("kernel", "gemm", 7, 300, 60, correlation=1)
    add("cuda_runtime", "cudaLaunchKernel", 1, 55, 2, correlation=2)
    add("kernel", "ncclDevKernel_SendRecv", 20, 310, 900, correlation=2)
    add("user_annotation", "PP:0B0", 1, 200, 100)
    for number, ts in enumerate((210, 280), 3):
        add("cpu_op", "aten::mm", 9, ts, 15)
        add("cuda_runtime", "cudaLaunchKernel", 9, ts + 5, 2, correlation=number)
        add("kernel", "gemm", 7, 400 + 100 * (number - 3), 70, correlation=number)
    path.write_text(json.dumps({"traceEvents": events, "deviceProperties": [{"name": "NVIDIA H100"}]}))


def test_kernels_are_the_work_wherever_they_were_launched(tmp_path: Path) -> None:
    """In a published trace of ResNet on an A100, Kineto's own range of a backward has 0.6 of its 102 ms."""
    kernel_trace(tmp_path / "gpu.json")
    trace = load_trace(tmp_path / "gpu.json")
    assert trace.device == "NVIDIA H100"
    assert [(each.kind.value, each.start_us, each.duration_us) for each in trace.ranges] == [
        ("forward", 0.0, 60.0),
        ("backward", 100.0, 170.0),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"traceEvents": []}', "neither operations of torch nor named ranges"),
        ('{"traceEvents": [{"ph": "X", "ts": "soon"}]}', "Expected `float`"),
        ('{"traceEvents": 3}', "Expected `array`"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op"', "not whole JSON"),
    ],
)
def test_texts_that_are_no_trace_are_refused_in_a_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "one.trace.json"
    path.write_text(text)
    with pytest.raises(DocumentError, match=problem) as caught:
        load_trace(path)
    assert "\n" not in str(caught.value)
    packed = tmp_path / "one.json.gz"
    packed.write_bytes(gzip.compress(text.encode())[:-9])
    with pytest.raises(DocumentError, match="damaged gzip"):
        load_trace(packed)


def test_labels_without_any_operation_last_as_long_as_they_do(tmp_path: Path) -> None:
    events = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"stage{stage} {kind} mb0",
            "tid": 1,
            "ts": ts,
            "dur": dur,
        }
        for stage, kind, ts, dur in ((0, "forward", 0, 40), (1, "forward", 50, 30), (1, "backward", 80, 90))
    ]
    events.append({**events[0], "name": "stage0 backward mb0", "ts": 180, "dur": 70})
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}))
    profile = load_profile(path)
    (table,) = profile.tables
    assert [(cost.forward_us, cost.joint_backward_us) for cost in table.costs] == [(40.0, 70.0), (30.0, 90.0)]
    assert any("waiting included" in note for note in profile.notes)

"""Reports of NVTX ranges, as Nsight Systems writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel.errors import DocumentError
from tessel.profiles import load_profile
from tessel.profiles.load import detect_format
from tessel.profiles.traces import load_trace

PROJECTED = (
    "Name,Projected Start (ns),Projected Duration (ns),Orig Start (ns),Orig Duration (ns),Style,PID,TID,"
    "NumGPUOps,Lvl,NumChild,RangeId,ParentId,RangeStack"
)
PUSHED = (
    "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,"
    "ParentId,RangeStack,NameTree"
)
SUMMED = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range"


BESIDE = (
    "Processing [job.sqlite] with [nvtx_gpu_proj_trace.py]... ",
    PROJECTED,
    ",1000000,900000,,,,901,901,27,,0,,,",  # kernels of a process that no range holds
)
"""What `nsys stats` puts before the ranges: lines, columns and the nameless row are as in a published export
of a job on a GPU (Nsight Systems 2023.2.3)."""


def projected(path: Path, *rows: tuple[str, int, int, int], header: str = PROJECTED) -> Path:
    """Write rows of a name, a process, and the microseconds of start and duration."""
    lines = [
        f"{name},{start * 1000},{duration * 1000},1,2,PushPop,{process},{process},3,0,0,{number},,:{number}"
        for number, (name, process, start, duration) in enumerate(rows)
    ]
    path.write_text("\n".join([header, *lines, ""]))
    return path


STEP = (
    (":0F0", 901, 1000, 100),
    (":0F1", 901, 1100, 110),
    (":1F0", 1030, 1200, 50),
    (":1B0", 1030, 1250, 80),
    (":1F1", 1030, 1330, 60),
    (":1B1", 1030, 1390, 90),
    (":0B0", 901, 1400, 200),
    (":0B1", 901, 1600, 220),
    (":0SEND_F0", 901, 1100, 900),
    (":optimizer", 901, 1900, 40),
)


def test_projected_ranges_are_stages(tmp_path: Path) -> None:
    path = projected(tmp_path / "job.csv", *STEP, header="\n".join(BESIDE))
    assert detect_format(path, path.read_bytes()) == "nvtx"
    trace = load_trace(path)
    assert [(each.rank, each.stage, each.micro_batch, each.start_us) for each in trace.ranges[:3]] == [
        (0, 0, 0, 0.0),
        (0, 0, 1, 100.0),
        (0, 0, 0, 400.0),
    ]
    profile = load_profile(path)
    assert [layer.name for layer in profile.layers] == ["stage0", "stage1"]
    assert [(cost.forward_us, cost.backward_us) for cost in profile.tables[0].costs] == [
        (105.0, 210.0),
        (55.0, 85.0),
    ]
    assert not any("CPU" in note for note in profile.notes)


def test_ranges_of_layers_are_layers_in_the_order_of_their_forwards(tmp_path: Path) -> None:
    names = ("embed", "block0", "head")
    rows = [(f"{name} forward", 7, 100 * place, 10 + place) for place, name in enumerate(names)]
    rows += [(f"{name} backward", 7, 900 - 100 * place, 20 + place) for place, name in enumerate(names)]
    profile = load_profile(projected(tmp_path / "job.csv", *reversed(rows)))
    assert tuple(layer.name for layer in profile.layers) == names
    assert [cost.backward_us for cost in profile.tables[0].costs] == [20.0, 21.0, 22.0]


def test_times_of_the_cpu_are_told(tmp_path: Path) -> None:
    path = tmp_path / "job.csv"
    row = "1000,51000,50000,0,50000,PP:0{}0,5,5,0,0,1,,:1,0F0"
    path.write_text(f"{PUSHED}\n{row.format('F')}\n{row.format('B')}\n")
    profile = load_profile(path)
    assert profile.tables[0].costs[0].forward_us == 50.0
    assert any("times are the CPU's" in note for note in profile.notes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{SUMMED}\n50,100,1,100,100,100,100,0,PushPop,:0F0\n", "it sums NVTX ranges up"),
        (f"{PROJECTED}\nencoder,1,2,1,2,PushPop,5,5,1,0,0,1,,:1\n", "no range's name says a stage"),
        (f"{PROJECTED}\n0F0,one,2,1,2,PushPop,5,5,1,0,0,1,,:1\n", "row 2, Projected Start"),
        (f"{PROJECTED}\n0F0,1,-2,1,2,PushPop,5,5,1,0,0,1,,:1\n", "row 2, Projected Duration"),
    ],
)
def test_other_reports_are_refused_with_what_to_do(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "job.csv"
    path.write_text(text)
    with pytest.raises(DocumentError, match=problem) as caught:
        load_profile(path)
    assert "\n" not in str(caught.value)

"""The report of mixes: its rows, what counts as a gain, and what the search's bound excuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mixing.report import best_single, most_by_sums, report
from benchmarks.mixing.row import DTYPES, SETS, Row

ROOT = Path(__file__).parents[2]


def row(
    *,
    single: float,
    bound_ms: float,
    proven: bool = True,
    other: tuple[float, float, float | None] | None = None,
) -> dict[str, Any]:
    alone = (1.0, 1.0, 1.0) if other is None else other
    return {
        "row": "two_tower/float32/1/1/avx512",
        "latency_ms": {"mix": 10.0, "nhwc": 10.0 * single, "onnxruntime alone": 10.0 * alone[0]},
        "ratio_to_mix": {
            "mix": (1.0, 1.0, 1.0),
            "nhwc": (single, single - 0.01, single + 0.01),
            "onnxruntime alone": alone,
        },
        "same_program": {"mix": "mix", "nhwc": "nhwc"},
        "sums_ms": {"nhwc": 11.0, "tvm": 40.0},
        "sum_ms": 10.0,
        "bound_ms": bound_ms,
        "proven": proven,
        "chosen_by": "searched",
        "tie": False,
        "parts": {"nhwc": 1, "tvm": 2},
        "candidates": 100,
        "states": 9,
        "refused": {"torch.compile": "no compiler"},
    }


def test_each_instruction_set_has_eight_settings() -> None:
    for code in ("avx512", "avx2"):
        levels = {(each.dtype, each.threads, each.batch) for each in SETS[code]}
        assert levels == {
            (dtype, threads, batch) for dtype in DTYPES for threads in (1, 2) for batch in (1, 8)
        }
        assert {each.code for each in SETS[code]} == {code}


@pytest.mark.parametrize("name", [each.name for rows in SETS.values() for each in rows])
def test_a_row_is_its_name(name: str) -> None:
    assert Row.parse(name).name == name


@pytest.mark.parametrize(
    "text", ["", "net/float64/1/1/avx512", "net/float32/0/1/avx2", "net/float32/1/1/sse"]
)
def test_what_names_no_row_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write NETWORK/float32"):
        Row.parse(text)


def test_a_gain_a_proof_and_a_loss_are_told_apart() -> None:
    gained = row(single=1.2, bound_ms=9.0)
    assert best_single(gained)[0] == "nhwc"
    assert "1 of 1 rows" in report([gained])
    excused = row(single=1.02, bound_ms=10.5)
    assert most_by_sums(excused) == pytest.approx(11.0 / 10.5)
    assert "by the search's proof: 1" in report([excused])
    for without_proof in (row(single=1.02, bound_ms=9.0), row(single=1.02, bound_ms=10.5, proven=False)):
        assert "by the search's proof: 0" in report([without_proof])
    near = report([row(single=1.02, bound_ms=10.0 - 2e-7, proven=False)])
    assert "| no, within 0.0001 % |" in near
    assert "by the search's proof: 0" in near
    slower = row(single=1.2, bound_ms=9.0, other=(0.9, 0.88, 0.95))
    assert "beyond the interval: 1" in report([slower])
    noise = row(single=1.2, bound_ms=9.0, other=(0.99, 0.97, 1.01))
    assert "beyond the interval: 0" in report([noise])
    assert "torch.compile: no compiler" in report([noise])


@pytest.mark.slow
def test_a_small_row_is_measured_and_proven(tmp_path: Path) -> None:
    # A process of its own, as rows have, since libraries read their number of threads when they are loaded.
    name = "tiny_tower/bfloat16/1/1/avx2"
    options = {
        "--records": f"sqlite:///{tmp_path}/records.db",
        "--out": f"{tmp_path}/mixing.json",
        "--backends": "tvm?depth=1,torch,blas",
        "--seconds": "0.5",
    }
    command = [
        sys.executable,
        "-m",
        "benchmarks.mixing",
        name,
        *(part for pair in options.items() for part in pair),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (figures,) = json.loads((tmp_path / "mixing.json").read_text()).values()
    assert figures["proven"]
    assert figures["row"] == name
    assert {"mix", "torch eager"} <= set(figures["latency_ms"])
    assert "bfloat16" in figures["refused"]["onnxruntime"]
    assert name in done.stdout
    again = subprocess.run([*command, "--report"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.stdout == done.stdout

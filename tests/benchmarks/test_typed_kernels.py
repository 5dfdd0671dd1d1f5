"""Decisions of the benchmark are the best where prices are right, and its report is printed."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.typed_kernels.__main__ import main
from benchmarks.typed_kernels.backward import main as compare_backward
from benchmarks.typed_kernels.baselines import interpolated_us, nearest_us, roofline_us
from benchmarks.typed_kernels.decisions import _best_cut, _longest, cut_regrets
from cost_model.gpu.typed.kernels import Kernels, Product
from cost_model.gpu.typed.model import gpu_kernel_us
from cost_model.gpu.typed.sheets import find_sheet
from cost_model.gpu.typed.training import Cell

H100 = find_sheet("h100")


def test_a_cut_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        times = rng.exponential(1, 9)
        every = [_longest(times, cuts) for cuts in itertools.combinations(range(1, 9), 3)]
        assert _longest(times, _best_cut(times)) == pytest.approx(min(every))


def test_right_prices_regret_nothing_and_wrong_ones_something() -> None:
    times = np.random.default_rng(1).exponential(1, 200)
    assert max(cut_regrets(times, 3 * times, np.random.default_rng(0))) == pytest.approx(0)
    assert np.mean(cut_regrets(times, np.ones(200), np.random.default_rng(0))) > 5


def test_baselines_say_what_a_measured_kernel_took() -> None:
    extents = [(16, 512, 512), (512, 512, 512), (4096, 4096, 64), (4096, 4096, 4096)]
    kernels = Kernels.of_one_kind([Product(*each) for each in extents])
    cell = Cell(H100, "bfloat16", kernels, np.array([3.0, 4.0, 20.0, 190.0]))
    assert nearest_us(cell, kernels, H100) == pytest.approx(cell.latency_us)
    assert interpolated_us(cell, kernels, H100) == pytest.approx(cell.latency_us, rel=0.01)
    largest = roofline_us(kernels, H100)[-1]
    assert largest == pytest.approx(2 * 4096**3 / 989e12 * 1e6)


def test_backward_products_are_compared_in_the_layout_they_were_measured_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forward takes what is predicted, gradients of 4096 × 1024 weights over 8192 rows twice as long."""
    shares = {}
    for layout, (rows, inner, columns), slower in (
        ("TN", (8192, 1024, 4096), 1),
        ("NN", (8192, 4096, 1024), 1),
        ("NT", (4096, 8192, 1024), 2),
    ):
        us = slower * gpu_kernel_us(Product(rows, columns, inner), "b200").latency_us
        text = f"b=1, m={rows}, k={inner}, n={columns}, layout={layout}, accumulate=False, out_dtype=bf16"
        shares[text] = 2 * rows * inner * columns / us / 2250e6
    table = {"tflops": 2250.0, "accurate_efficient_factor": shares}
    path = tmp_path / "system.json"
    path.write_text(json.dumps({"accelerator": {"op": {"matmul": table}}}))
    compare_backward([str(path)])
    printed = capsys.readouterr().out.splitlines()[2:]
    assert [line.split(" | ")[2:4] for line in printed] == [
        ["1.00", "0.0"],
        ["1.00", "0.0"],
        ["0.50", "50.0"],
    ]
    assert [line.split(" | ")[0] for line in printed] == [
        f"| {name}, bf16" for name in ("forward", "gradients of inputs", "gradients of weights")
    ]


@pytest.mark.slow
def test_the_report_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    parquet = pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(0)
    common = {"framework": "VLLM", "version": "1", "kernel_source": "x"}
    for device in ("NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA B200"):
        rows, reduced = [], []
        for m, n, k in itertools.product(2 ** np.arange(4, 13, 2), repeat=3):
            us = (
                3 + roofline_us(Kernels.of_one_kind([Product(int(m), int(n), int(k))]), find_sheet(device))[0]
            )
            named = {"m": int(m), "n": int(n), "k": int(k), "gemm_dtype": "bfloat16"}
            rows.append({**common, **named, "device": device, "latency": us / 1e3 * rng.uniform(1.2, 1.3)})
        for gpus, power in itertools.product((2, 4, 8), range(8, 28)):
            named = {
                "op_name": "all_reduce",
                "nccl_dtype": "half",
                "num_gpus": gpus,
                "message_size": 2**power,
            }
            reduced.append({**common, **named, "device": device, "latency": 0.01 + 2**power / 3e8})
        for name, found in (("gemm_perf", rows), ("nccl_perf", reduced)):
            path = tmp_path / device.replace(" ", "_") / f"{name}.parquet"
            path.parent.mkdir(exist_ok=True)
            parquet.write_table(pyarrow.Table.from_pylist(found), path)
    main([str(tmp_path), "--samples", "100"])
    printed = capsys.readouterr().out
    for title in ("new extents", "new generations", "after a sweep", "what features are worth", "decisions"):
        assert title in printed
    assert "nan" not in printed

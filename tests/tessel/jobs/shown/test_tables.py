"""Tables give the ratios of a race with their intervals, whatever latencies apart would say."""

from __future__ import annotations

import msgspec
import pytest

from scripts.reports.tables import print_stages
from tessel.jobs.shown.formatting import end_to_end_rows, format_layers, format_tensors
from tests.samples.tuned_model import figure, tuned_model
from tuner.plan import PairedRatio, PartitionPlan, TensorType


def test_ratios_are_those_of_the_race_with_their_intervals() -> None:
    found = msgspec.structs.replace(
        tuned_model([(10.0, 20.0, 10.0, 10.0)]),
        end_to_end={"mix": figure(10.0), "tvm": figure(9.0), "blas": figure(12.0), "torch": figure(300.0)},
        ratio_to_mix={
            "tvm": PairedRatio(ratio=1.04, low=1.02, high=1.061, num_rounds=30),
            "blas": PairedRatio(ratio=1.2, low=0.0, high=None, num_rounds=3),
        },
    )
    assert end_to_end_rows(found) == [
        ["mix", "10.0 us (given)", "1.00", ""],
        ["tvm", "9.0 us (given)", "1.04", "1.02 … 1.06"],
        ["blas", "12.0 us (given)", "1.20", "0.00 … ∞"],
        ["torch", "300.0 us (given)", "30.00", ""],
    ]


def test_what_is_packed_of_weights_is_told_below_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tuned_model([(10.0, 20.0, 10.0, 10.0)] * 2).stages
    print_stages((first, second))
    assert "beside the weights" not in capsys.readouterr().out
    print_stages((first, msgspec.structs.replace(second, bound_bytes=3 << 20)))
    assert "folded and packed of them, 3.0 MiB in stage1" in " ".join(capsys.readouterr().out.split())


def test_layers_that_differ_by_numbers_alone_are_one() -> None:
    assert format_layers([f"h.{index}.mlp.c_fc" for index in range(12)]) == "h.{0…11}.mlp.c_fc"
    assert format_layers(["h.0.mlp", "h.2.mlp", "wte"]) == "h.{0,2}.mlp, wte"
    assert format_layers(["h.0.mlp + h.1.ln_1", "h.1.mlp + h.2.ln_1"]) == "h.{0…1}.mlp + h.{1…2}.ln_1"
    assert format_layers(["conv2d.3"]) == "conv2d.3"
    assert format_layers([]) == ""
    assert len(format_layers([f"lstm_{index}" for index in range(300)])) == 96


def test_tensors_share_their_data_type_where_there_is_one() -> None:
    part = PartitionPlan(
        operators=("matmul",),
        backend="blas",
        figure=figure(1.0),
        occurrences=1,
        workload_fingerprint="0",
        inputs=(TensorType((1, 128, 768), "float32"), TensorType((768, 3072), "float32")),
        outputs=(TensorType((1, 128, 3072), "float32"),),
    )
    assert format_tensors(part) == "1×128×768 · 768×3072 → 1×128×3072 float32"
    mixed = msgspec.structs.replace(part, outputs=(TensorType((), "int64"),))
    assert format_tensors(mixed) == "1×128×768 float32 · 768×3072 float32 → scalar int64"
    assert format_tensors(msgspec.structs.replace(part, inputs=(), outputs=())) == ""

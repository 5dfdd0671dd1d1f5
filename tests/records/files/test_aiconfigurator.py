"""Tables of aiconfigurator become records of their devices and types, and a wrong row is named."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cost_model.errors import CostModelError
from cost_model.gpu.training import load_gpu_samples, train_gpu_model
from records import open_store
from records.database.merging import import_items
from records.errors import RecordError, RecordFileError
from records.files.aiconfigurator import read_aiconfigurator, read_tables
from records.files.exchange import read_records, save_records

pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
from pyarrow import parquet  # noqa: E402  # after the check

COMMON = {"framework": "VLLM", "version": "0.19.0", "device": "NVIDIA H200", "kernel_source": "vllm_default"}
GEMM = {**COMMON, "op_name": "gemm", "gemm_dtype": "fp8", "m": 3, "n": 5, "k": 7, "latency": 0.5}
ATTENTION = {
    **COMMON,
    **{
        "batch_size": 2,
        "isl": 10,
        "num_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "step": 0,
        "latency": 0.1,
    },
    **{"attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "window_size": 4},
}
MOE = {
    **COMMON,
    **{
        "moe_dtype": "nvfp4",
        "num_tokens": 16,
        "hidden_size": 64,
        "inter_size": 32,
        "topk": 2,
        "num_experts": 8,
    },
    **{"moe_tp_size": 1, "moe_ep_size": 4, "distribution": "power_law_1.2", "latency": 0.1},
}
NCCL = {
    **COMMON,
    "op_name": "alltoall",
    "nccl_dtype": "half",
    "num_gpus": 8,
    "message_size": 1024,
    "latency": 0.01,
}
DEEPEP = {
    **COMMON,
    **{
        "node_num": 1,
        "hidden_size": 64,
        "num_token": 8,
        "num_topk": 2,
        "num_experts": 16,
        "dispatch_sms": 20,
    },
    **{"dispatch_transmit_us": 31.5, "combine_sms": 24, "combine_transmit_us": 40.0},
}
FILES: dict[str, dict[str, Any]] = {
    "gemm_perf": GEMM,
    "context_attention_perf": ATTENTION,
    "moe_perf": MOE,
    "nccl_perf": NCCL,
    "wideep_deepep_normal_perf": DEEPEP,
}


def write(folder: Path, name: str, rows: Sequence[dict[str, Any]]) -> Path:
    path = folder / "h200_sxm" / "kind" / f"{name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return folder


def test_every_kind_keeps_device_type_framework_and_microseconds(tmp_path: Path) -> None:
    for name, row in FILES.items():
        write(tmp_path, name, [row])
    write(tmp_path, "generation_mla_perf", [{"unknown": 1}])  # passed over
    found = list(read_aiconfigurator(tmp_path))
    said = {
        (workload.operators[0].name, measurement.samples_us[0], dict(workload.parameters)["dtype"])
        for workload, measurement in found
    }
    assert said == {
        ("matmul", 500.0, "fp8"),
        ("nn.attention", 100.0, "bfloat16"),
        ("moe", 100.0, "nvfp4"),
        ("all_to_all", 10.0, "float16"),
        ("dispatch", 31.5, "bfloat16"),
        ("combine", 40.0, "bfloat16"),
    }
    for _, measurement in found:
        assert measurement.environment.device_model == "NVIDIA H200"
        assert measurement.environment.versions == (("vllm", "0.19.0"),)
    product = next(workload for workload, _ in found if workload.operators[0].name == "matmul")
    assert (product.flops, product.input_bytes, product.constant_bytes) == (2 * 3 * 5 * 7, 21, 35)
    attention = next(workload for workload, _ in found if workload.operators[0].name == "nn.attention")
    assert attention.flops == 4 * 2 * 8 * 64 * (1 + 2 + 3 + 7 * 4)


def test_records_survive_export_and_no_float32_model_learns_from_them(tmp_path: Path) -> None:
    """The contract of all importers: once is enough, devices and types stay apart, exported is read back."""
    rows = [
        {**GEMM, "m": m, "gemm_dtype": dtype, "device": device}
        for m in range(1, 61)
        for dtype in ("bfloat16", "fp8", "fp8_block")
        for device in ("NVIDIA H200", "NVIDIA B200")
    ]
    found = list(read_aiconfigurator(write(tmp_path, "gemm_perf", rows)))
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        assert import_items(store, found).new == len(rows)
        assert import_items(store, found).new == 0
        assert len({record.workload.fingerprint for record in store.iterate()}) == 60 * 3
        assert load_gpu_samples(store.iterate()) == ()
        with pytest.raises(CostModelError, match="the records hold 0 kernels"):
            train_gpu_model(load_gpu_samples(store.iterate()))
        save_records(store, tmp_path / "records.jsonl")
    assert list(read_records(tmp_path / "records.jsonl")) != []
    assert {each for _, each in read_records(tmp_path / "records.jsonl")} == {each for _, each in found}


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("gemm_perf", {"latency": -1.0}, "row 2: latency -1.0 is no positive finite latency"),
        ("gemm_perf", {"latency": float("nan")}, "row 2: latency nan is no positive"),
        ("gemm_perf", {"latency": float("inf")}, "row 2: latency inf is no positive"),
        ("gemm_perf", {"latency": None}, "row 2: latency is missing"),
        ("gemm_perf", {"gemm_dtype": "fp3"}, "row 2: gemm_dtype 'fp3' is none of bfloat16"),
        ("gemm_perf", {"m": 0}, "row 2: m is 0, and 1 to 2⁴⁰ is possible"),
        ("gemm_perf", {"k": 2**50}, "row 2: k is 1125899906842624"),
        ("gemm_perf", {"device": "\x1b[31mH200"}, "row 2: device is no short printable text"),
        ("context_attention_perf", {"step": -1}, "row 2: step is -1, and 0 to"),
        ("moe_perf", {"distribution": "zipf"}, "row 2: distribution 'zipf' is none of balanced"),
        ("nccl_perf", {"op_name": "gossip"}, "row 2: op_name 'gossip' is none of all_reduce"),
        ("wideep_deepep_normal_perf", {"combine_transmit_us": 0.0}, "row 2: combine_transmit_us 0.0"),
    ],
)
def test_a_wrong_row_is_named(name: str, change: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write(tmp_path, name, [FILES[name], {**FILES[name], **change}])
    with pytest.raises(RecordFileError) as caught:
        list(read_tables(folder))
    assert f"{name}.parquet, {said}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("factor", [1000, 0.001])
def test_a_row_in_another_unit_is_named(factor: float, tmp_path: Path) -> None:
    rows = [{**GEMM, "latency": 0.5 + 0.01 * index} for index in range(10)]
    rows[6]["latency"] *= factor
    with pytest.raises(RecordFileError, match=r"gemm_perf\.parquet, row 7: .* as if it were in another unit"):
        list(read_tables(write(tmp_path, "gemm_perf", rows)))


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match="holds no tables of aiconfigurator"):
        list(read_tables(tmp_path))
    path = tmp_path / "gemm_perf.parquet"
    path.write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(RecordFileError, match=r"cannot be read as parquet .* Git LFS"):
        list(read_tables(tmp_path))
    path.unlink()
    write(tmp_path, "gemm_perf", [{name: value for name, value in GEMM.items() if name != "n"}])
    with pytest.raises(RecordFileError, match="there is no column 'n'"):
        list(read_tables(tmp_path))
    write(tmp_path, "gemm_perf", [{**GEMM, "n": 5.5}])
    with pytest.raises(RecordFileError, match="column n holds no whole numbers"):
        list(read_tables(tmp_path))


def test_without_a_reader_of_parquet_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "gemm_perf", [GEMM])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecordError, match=r"pip install 'tessel-tuner\[parquet\]'"):
        list(read_tables(tmp_path))

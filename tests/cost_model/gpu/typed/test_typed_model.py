"""The model that comes with the project says what was measured, and a saved one is what was trained."""

import gzip
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cost_model.errors import CostModelError, CostModelFileError
from cost_model.gpu.typed.analytic import analytic_us
from cost_model.gpu.typed.kernels import (
    Attention,
    Collective,
    Exchange,
    Experts,
    Kernels,
    Product,
    TypedKernel,
)
from cost_model.gpu.typed.model import SHIPPED, TypedModel, gpu_kernel_us, load_typed_model, shipped_model
from cost_model.gpu.typed.sheets import find_sheet
from cost_model.gpu.typed.training import Cell, Training, cells_of_tables, model_of_cells
from records.files.aiconfigurator import KernelTable

MEASURED = json.loads((Path(__file__).parent / "measured_kernels.json").read_text())["kernels"]
KINDS = {
    "product": Product,
    "attention": Attention,
    "experts": Experts,
    "collective": Collective,
    "exchange": Exchange,
}
MOST_BYTES = 3 * 2**20
TRUTH = np.log([2.0, 2000.0, 250.0, 0.7, 0.6, 20.0])


@pytest.mark.parametrize("kind", KINDS)
def test_measured_kernels_are_predicted_within_their_intervals(kind: str) -> None:
    rows = [row for row in MEASURED if row["kind"] == kind]
    errors, held = [], []
    for row in rows:
        found = gpu_kernel_us(KINDS[kind](**row["kernel"]), row["gpu"])
        errors.append(abs(found.latency_us / row["us"] - 1))
        held.append(found.low_us <= row["us"] <= found.high_us)
        assert found.is_known_device
        assert found.out_of_range == 0
    assert np.median(errors) < 0.08
    assert np.mean(held) > 0.85


def test_the_model_is_small_and_names_all_promised_gpus() -> None:
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) <= MOST_BYTES
    for gpu in ("h200", "h100", "b200", "gb200", "a100", "l40s", "rtx pro 6000"):
        assert gpu_kernel_us(Product(4096, 4096, 4096), gpu).is_known_device, gpu


def test_types_scale_and_what_was_never_measured_is_wider() -> None:
    slow, fast = (gpu_kernel_us(Product(8192, 8192, 8192, dtype), "h100") for dtype in ("bfloat16", "fp8"))
    assert 1.4 < slow.latency_us / fast.latency_us < 2.1
    assert gpu_kernel_us(Product(8192, 8192, 8192, "float16"), "h100") == slow
    inside, outside = (gpu_kernel_us(Product(rows, 8192, 8192), "h100") for rows in (8192, 2**20))
    assert outside.out_of_range > 0
    assert outside.high_us / outside.latency_us > inside.high_us / inside.latency_us
    balanced, skewed = (
        gpu_kernel_us(Experts(8192, 7168, 2048, 8, 256, 1, 8, skew, "fp8_block"), "h100").latency_us
        for skew in (0.0, 1.2)
    )
    assert skewed > balanced


def test_many_kernels_cost_one_call_and_answers_stay_in_order() -> None:
    asked: list[TypedKernel] = [
        Product(64, 64, 64),
        Collective("all_reduce", 8, 2**20),
        Product(4096, 4096, 4096),
        Attention(1, 4096, 32, 8, 128),
    ]
    together = shipped_model().price(asked, "h100")
    assert together == tuple(gpu_kernel_us(kernel, "h100") for kernel in asked)


def measured_table(device: str, seed: int) -> KernelTable:
    extents = np.array(list(itertools.product((16, 128, 1024, 4096), repeat=3)))
    numbers = dict(zip(("rows", "columns", "inner"), extents.T, strict=True))
    texts = {name: np.full(len(extents), "bfloat16", dtype=object) for name in ("dtype",)}
    kernels = Kernels(kind="product", numbers=numbers, texts=texts)
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.03, len(extents)))
    named = {"device": device, "framework": "vLLM", "version": "1", "source": "x", "dtype": "bfloat16"}
    return KernelTable(
        kind="product",
        path=Path("x_gemm_perf.parquet"),
        texts={name: np.full(len(extents), text, dtype=object) for name, text in named.items()},
        numbers=numbers,
        latency_us=analytic_us(kernels, find_sheet(device), TRUTH) * noise,
    )


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    tables = [
        measured_table(name, seed)
        for seed, name in enumerate(("NVIDIA A100-SXM4-80GB", "NVIDIA H100", "NVIDIA B200"))
    ]
    tables.append(measured_table("NVIDIA B200", 9))  # measured twice: the median of both counts
    return cells_of_tables(tables, rng=np.random.default_rng(0))["product"]


@pytest.fixture(scope="module")
def trained(cells: list[Cell]) -> TypedModel:
    return model_of_cells({"product": cells}, num_threads=1)


def test_tables_become_a_cell_of_each_device_with_medians(cells: list[Cell]) -> None:
    assert [(cell.sheet.device.name, len(cell.kernels)) for cell in cells] == [
        ("A100 SXM 80GB", 64),
        ("B200", 64),
        ("H100 SXM", 64),
    ]
    first, again = measured_table("NVIDIA B200", 2), measured_table("NVIDIA B200", 9)
    order = np.lexsort([first.numbers[name] for name in ("inner", "columns", "rows")])
    mean = (first.latency_us + again.latency_us) / 2
    assert sorted(cells[1].latency_us) == pytest.approx(sorted(mean[order]))


def test_a_device_made_of_the_same_law_is_known_before_it_is_measured(cells: list[Cell]) -> None:
    training = Training(tuple(cells))
    for errors in training.errors_on_new_generations():
        assert np.median(np.abs(errors)) < 0.12
    for errors in training.errors_on_new_extents():
        assert np.median(np.abs(errors)) < 0.08


def test_a_saved_model_answers_alike_and_the_same_data_give_the_same_bytes(
    trained: TypedModel, cells: list[Cell], tmp_path: Path
) -> None:
    trained.save(tmp_path / "one")
    model_of_cells({"product": cells}, num_threads=1).save(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name
    asked = [Product(100, 200, 300), Product(4000, 4000, 4000)]
    loaded = load_typed_model(tmp_path / "one")
    for gpu in ("h100", "l40s"):
        assert loaded.price(asked, gpu) == trained.price(asked, gpu)
    with pytest.raises(CostModelError, match="was not trained on attention kernels"):
        loaded.price([Attention(1, 8, 8, 8, 64)], "h100")


@pytest.mark.parametrize("how", ["cut", "digit", "bomb"])
def test_a_changed_forest_is_refused(
    trained: TypedModel, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cost_model.forests.model_files.MAX_FOREST_BYTES", 2**22)
    trained.save(tmp_path)
    path = tmp_path / "product_known.json.gz"
    content = gzip.decompress(path.read_bytes())
    changed = {
        "cut": path.read_bytes()[:-20],
        "digit": gzip.compress(content.replace(b'"left_children":[1', b'"left_children":[9', 1)),
        "bomb": gzip.compress(bytes(2**22 + 1)),
    }[how]
    assert changed != path.read_bytes()
    path.write_bytes(changed)
    with pytest.raises(CostModelFileError, match="product_known"):
        load_typed_model(tmp_path)


def test_a_manifest_with_parameters_that_none_has_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "model")
    path = tmp_path / "model/typed_kernels.json"
    document = json.loads(path.read_text())
    document["kinds"]["product"]["cells"]["B200"]["bfloat16"]["parameters"][0] = 1e6
    path.write_text(json.dumps(document))
    with pytest.raises(CostModelFileError, match="parameters are out of range"):
        load_typed_model(tmp_path / "model")

"""NeuSight's tables become records of the devices that they name, and a wrong row is named."""

from pathlib import Path

import pytest

from cost_model.dataset import load_dataset
from cost_model.errors import CostModelError
from records import open_store
from records.database.merging import import_items
from records.errors import RecordFileError
from records.files.exchange import read_records, save_records
from records.files.neusight import kernel_workload, read_neusight

SAMPLE = Path(__file__).parents[3] / "benchmarks/data/neusight"
HEADER = "OPName,Latency,Device,Torch Version,CUDNN Version,CUDA Version,B,M,N,K"
ROW = "bmm,0.5,Tesla T4,p2.1.0,8902,cu121,2,3,4,5"


def write_table(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "dataset/test/bmm.csv"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join((header, *rows)) + "\n")
    return folder


def test_a_row_is_a_measurement_of_its_own_device(tmp_path: Path) -> None:
    ((workload, measurement),) = read_neusight(write_table(tmp_path, ROW))
    assert workload.flops == 2 * 2 * 3 * 4 * 5
    assert workload.input_bytes + workload.output_bytes == 4 * 2 * (3 * 4 + 4 * 5 + 3 * 5)
    assert measurement.samples_us == (500.0,)
    environment = measurement.environment
    assert (environment.device_kind, environment.device_model) == ("cuda", "Tesla T4")
    assert dict(environment.versions)["torch"] == "2.1.0"


@pytest.mark.parametrize(
    ("name", "extents", "num_bytes"),
    [
        ("linear", (1, 3, 4, 5), 4 * (3 * 4 + 4 * 5 + 5 + 3 * 5)),
        ("add", (6, 7), 4 * 3 * 42),
        ("addu", (6, 7), 4 * (2 * 42 + 1)),
        ("gelu", (6, 7), 4 * 2 * 42),
        ("softmax", (6, 7), 4 * 2 * 42),
        ("ln", (6, 7), 4 * (2 * 42 + 2 * 7)),
    ],
)
def test_a_kernel_reads_and_writes_what_torch_does(
    name: str, extents: tuple[int, ...], num_bytes: int
) -> None:
    workload = kernel_workload(name, extents)
    assert workload.input_bytes + workload.constant_bytes + workload.output_bytes == num_bytes


def test_records_are_kept_apart_from_those_of_other_devices_and_survive_export(tmp_path: Path) -> None:
    found = list(read_neusight(SAMPLE))
    with open_store(f"sqlite:///{tmp_path}/records.db") as store:
        summary = import_items(store, found)
        assert summary.new == len({measurement for _, measurement in found})
        assert import_items(store, found).new == 0
        with pytest.raises(CostModelError, match="no device probe"):  # no GPU's kernel prices a CPU's
            load_dataset(store.iterate())
        devices = {record.measurement.environment.device_model for record in store.iterate()}
        assert {"Tesla T4", "NVIDIA H100 80GB HBM3"} <= devices
        save_records(store, tmp_path / "records.jsonl")
    assert sum(1 for _ in read_records(tmp_path / "records.jsonl")) == summary.new


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ROW.replace(",0.5,", ",fast,"), "line 2: could not convert"),
        (ROW.replace(",0.5,", ",-1,"), "line 2: a sample is not a positive"),
        (ROW.replace(",0.5,", ",nan,"), "line 2: a sample is not a positive"),
        (ROW.replace(",3,4,5", ",0,4,5"), r"line 2: extents \(2, 0, 4, 5\)"),
        (ROW.replace(",3,4,5", ",3,4"), "line 2: int"),
        (ROW.replace("Tesla T4", "\x1b[31mT4"), "line 2: column Device"),
    ],
)
def test_a_wrong_row_is_named(row: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match=said):
        list(read_neusight(write_table(tmp_path, row)))


def test_a_folder_without_tables_or_a_table_without_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match="holds no tables of NeuSight"):
        list(read_neusight(tmp_path))
    with pytest.raises(RecordFileError, match="there is no column 'CUDA Version'"):
        list(read_neusight(write_table(tmp_path, ROW, header=HEADER.replace("CUDA Version", "Other"))))

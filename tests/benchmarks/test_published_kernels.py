"""The published kernels can be read, and their networks are of them."""

from pathlib import Path

import msgspec
import pytest

from records.files.exchange import read_records

FOLDER = Path(__file__).parents[2] / "benchmarks" / "data" / "cpu"


@pytest.mark.slow  # of files that nobody changes
def test_published_kernels_are_whole_and_their_networks_name_them() -> None:
    found = list(read_records(FOLDER / "kernels_intel-xeon.jsonl.gz"))
    kernels = {workload.fingerprint for workload, _ in found if workload.role == "kernel"}
    assert {workload.role for workload, _ in found} == {"kernel", "device"}
    assert sum(workload.role == "kernel" for workload, _ in found) == 9584
    networks = msgspec.json.decode(
        (FOLDER / "networks_intel-xeon.json").read_bytes(), type=dict[str, list[str]]
    )
    assert len(networks) == 8
    assert all(members and set(members) <= kernels for members in networks.values())

"""Documents that version 0.1 wrote load and give the same answers, by the names that backends have now.

tests/samples/version_0_1 holds what commit 19a0892 wrote for `mlp:small --infer` with the backends `tvm` and
`products`: a plan, a partition with its records, a schedule, and a cost model of 57 keys of `mlp:tiny`.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from records import Environment, open_store
from tessel.documents import load_schedule
from tessel.loading import load_plan
from tessel.tuned_plan import save_plan

SAVED = Path(__file__).parents[1] / "samples" / "version_0_1"
CURRENT_NAMES = {"products-kernels": "packed_matmul-kernels", "channels_last-kernels": "nhwc-kernels"}


def printed(name: str) -> Any:
    """What version 0.1 printed, with the names that backends have now."""
    return json.loads((SAVED / name).read_text().replace('"products', '"packed_matmul'))


def unpacked(name: str, folder: Path) -> Path:
    path = folder / name.removesuffix(".gz")
    path.write_bytes(gzip.decompress((SAVED / name).read_bytes()))
    return path


def test_a_plan_has_current_names_and_the_same_comparison(tessel: Callable[..., Any], tmp_path: Path) -> None:
    plan = load_plan(SAVED / "plan.json")
    assert set(plan.end_to_end) == {"mix", "tvm", "packed_matmul"}
    assert set(plan.ratio_to_mix) <= set(plan.end_to_end)
    compared = json.loads(tessel("compare", SAVED / "plan.json", "--json").stdout)
    assert compared["schedules"] == printed("compare_plan.json")["schedules"]
    save_plan(plan, tmp_path / "again.json")
    assert load_plan(tmp_path / "again.json") == plan
    assert "products" not in (tmp_path / "again.json").read_text()


def test_a_plan_s_parts_and_alternatives_have_current_names(tmp_path: Path) -> None:
    document = json.loads((SAVED / "plan.json").read_text())
    document["partition"][0] |= {"backend": "products", "runner_up": ["channels_last", 3.5]}
    document["end_to_end"]["without products,tvm"] = document["end_to_end"]["products"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    plan = load_plan(tmp_path / "plan.json")
    assert (plan.partition[0].backend, plan.partition[0].runner_up) == ("packed_matmul", ("nhwc", 3.5))
    assert "without packed_matmul,tvm" in plan.end_to_end


def test_a_schedule_has_the_same_comparison(tessel: Callable[..., Any]) -> None:
    assert load_schedule(SAVED / "schedule.json").to_json() == (SAVED / "schedule.json").read_bytes()
    compared = json.loads(tessel("compare", SAVED / "schedule.json", "--json").stdout)
    again = {row["schedule"]: row for row in compared["schedules"]}
    for row in printed("compare_schedule.json")["schedules"]:
        # Rules have become stronger since: as short, and with no more memory on any device.
        found = again[row["schedule"]]
        assert found["makespan"] == row["makespan"]
        assert all(now <= then for now, then in zip(found["peak_memory"], row["peak_memory"], strict=True))


def test_records_are_sound_and_exported_as_they_were(tessel: Callable[..., Any], tmp_path: Path) -> None:
    path, url = unpacked("records.jsonl.gz", tmp_path), tmp_path / "records.db"
    assert json.loads(tessel("records", "import", path, "--records", url, "--json").stdout)["new"] == 30
    assert tessel("records", "verify", "--records", url).status == 0
    stats = json.loads(tessel("records", "stats", "--records", url, "--json").stdout)
    assert stats["by_backend"] == {
        "check": 2, "loopback-tcp": 1, "mix": 5, "numpy": 3, "packed_matmul": 5, "packed_matmul-alone": 1,
        "race": 2, "tvm": 11,
    }  # fmt: skip
    for name in ("products", "packed_matmul"):
        listed = json.loads(tessel("records", "list", "--backend", name, "--records", url, "--json").stdout)
        assert [each["measurement"]["backend"] for each in listed["records"]] == ["packed_matmul"] * 5
    tessel("records", "export", tmp_path / "again.jsonl", "--records", url)
    assert (tmp_path / "again.jsonl").read_bytes() == path.read_bytes()


def test_a_cost_model_predicts_the_same(tessel: Callable[..., Any], tmp_path: Path) -> None:
    for path in (SAVED / "cost_model").iterdir():
        (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    url, expected = tmp_path / "records.db", printed("predict.json")
    assert tessel("records", "import", unpacked("predicted.jsonl.gz", tmp_path), "--records", url).status == 0
    given = ("--model", tmp_path, "--records", url, "--json")
    found = json.loads(tessel("cost-model", "predict", expected["workload"], *given).stdout)
    assert found["workload"] == expected["workload"]
    by_key = {(each["backend"], each["settings"]): each for each in found["predictions"]}
    assert len(by_key) == len(expected["predictions"])
    for each in expected["predictions"]:
        again = by_key[each["backend"], each["settings"]]
        assert again["predicted_us"] == pytest.approx(each["predicted_us"], rel=1e-6)
        assert again["interval_us"] == pytest.approx(each["interval_us"], rel=1e-6)
        assert again["measured_us"] == each["measured_us"]


@pytest.mark.tvm
def test_every_record_is_found_again_by_either_name(tessel: Callable[..., Any], tmp_path: Path) -> None:
    """The records are those of version 0.1, moved to this machine: its device, target and libraries."""
    from tuner.backends.environment import environment_of  # noqa: PLC0415 - imports TVM
    from tuner.backends.registry import make_backend  # noqa: PLC0415 - imports TVM
    from tuner.targets.resolution import resolve_target  # noqa: PLC0415 - imports TVM

    target = resolve_target("cpu", num_threads=1)
    here = environment_of(target, *map(make_backend, ("tvm", "packed_matmul")))
    lines = unpacked("records.jsonl.gz", tmp_path).read_text().splitlines()
    moved = tmp_path / "moved.jsonl"
    moved.write_text("".join(f"{_moved(json.loads(line), target.text, here)}\n" for line in lines))
    url = tmp_path / "records.db"
    assert tessel("records", "import", moved, "--records", url).status == 0
    expected = printed("partition.json")
    for name in ("products", "packed_matmul"):
        backends = ("--backends", f"tvm,{name}", "--threads", 1, "--records", url)
        outcome = tessel("partition", "mlp:small", *backends, "--json")
        assert outcome.status == 0, outcome.stderr
        found = json.loads(outcome.stdout)
        assert found["new_measurements"] == 0
        for key in ("partitions", "end_to_end_us", "chosen_by", "race"):
            then = _without_ids(expected[key])
            assert _with_keys_of(then, _without_ids(found[key])) == then, key
        # From Python 3.12 on, `sum` of floats makes up for what each addition rounds off.
        assert found["sum_of_parts_us"] == pytest.approx(expected["sum_of_parts_us"], rel=1e-12)
        note = "backend products is now packed_matmul; the old name goes with the next version"
        assert (note in outcome.stderr) == (name == "products")
    with open_store(str(url)) as store:
        assert store.stats().measurements == len(lines)


def _moved(line: dict[str, Any], target: str, here: Environment) -> str:
    """Return a record as version 0.1 would have written it here, with the digest that it would have."""
    measurement = line["measurement"]
    versions = dict(here.versions)
    measurement["target"] = target
    measurement["environment"] |= {
        "device_model": here.device_model,
        "num_cores": here.num_cores,
        "driver": here.driver,
        "versions": [
            [name, versions[CURRENT_NAMES.get(name, name)]]
            for name, _ in measurement["environment"]["versions"]
        ],
    }
    optional = {
        "samples_us": [], "settings": "", "message": "", "peak_memory_bytes": None, "relative_error": None,
        "measured_at": 0.0, "seed": 0,
    }  # fmt: skip
    said = {name: value for name, value in measurement.items() if optional.get(name, "given") != value}
    line["digest"] = hashlib.blake2b(_canonical(said), digest_size=16).hexdigest()
    return _canonical(line).decode()


def _canonical(document: object) -> bytes:
    return msgspec.json.encode(document, order="sorted")


def _with_keys_of(then: Any, document: Any) -> Any:
    """Leave out keys that a later version added."""
    if isinstance(then, dict) and isinstance(document, dict):
        return {name: _with_keys_of(then[name], each) for name, each in document.items() if name in then}
    if isinstance(then, list) and isinstance(document, list) and len(then) == len(document):
        return [_with_keys_of(old, each) for old, each in zip(then, document, strict=True)]
    return document


def _without_ids(document: Any) -> Any:
    """Leave record ids out: they are of a store."""
    if isinstance(document, dict):
        return {name: _without_ids(each) for name, each in document.items() if name != "record_ids"}
    return [_without_ids(each) for each in document] if isinstance(document, list) else document

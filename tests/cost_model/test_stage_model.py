"""The correction from parts to stages: learnt from records, with intervals that hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kernel_physics import product, stage_records

from cost_model.errors import CostModelError
from cost_model.forests.boosting import xgboost
from cost_model.stage_model import (
    FEATURE_NAMES,
    Part,
    evaluate_stages,
    load_stage_model,
    load_stages,
    parts_of,
    parts_parameter,
    stage_features,
    train_stage_model,
)
from records.workload import describe


def test_parts_are_named_and_read_back() -> None:
    parts = (Part("ab", "blas", "", 2), Part("cd", "metaschedule", "trials=64", 1))
    whole = product(8, 8, 8)
    stage = describe("stage", whole.inputs, whole.operators, whole.results, [parts_parameter(parts)])
    assert parts_of(stage) == parts
    with pytest.raises(CostModelError, match="which parts"):
        parts_of(whole)


def test_what_stages_take_beyond_their_parts_is_learnt() -> None:
    samples = load_stages(stage_records(80))
    assert len(samples) == 80
    model = train_stage_model(samples[:60])
    truth = np.array([sample.latency_us for sample in samples[60:]])
    plain = np.array([sample.query.plain_us for sample in samples[60:]])
    predictions = model.predict([sample.query for sample in samples[60:]])
    latency, low, high = np.array([(p.latency_us, p.low_us, p.high_us) for p in predictions]).T
    assert np.median(np.abs(latency / truth - 1)) < 0.05
    assert np.median(np.abs(plain / truth - 1)) > 0.1
    assert ((low <= truth) & (truth <= high)).mean() >= 0.75


def test_stages_without_their_parts_and_too_few_are_refused() -> None:
    found = stage_records(10)
    missing = [record for record in found if record.workload.role != "kernel"]
    assert load_stages(missing) == ()
    with pytest.raises(CostModelError, match="at least 30"):
        train_stage_model(load_stages(found))


def test_a_saved_correction_predicts_the_same(tmp_path: Path) -> None:
    samples = load_stages(stage_records(40))
    model = train_stage_model(samples)
    model.save(tmp_path)
    queries = [sample.query for sample in samples]
    again = load_stage_model(tmp_path)
    assert again.predict(queries) == model.predict(queries)
    assert msgspec.structs.replace(again.manifest, digests={}) == model.manifest
    assert again.manifest.last_record_id == max(sample.record_id for sample in samples)
    assert stage_features(queries).shape[1] == len(FEATURE_NAMES)


def test_a_correction_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="holds no cost model"):
        load_stage_model(tmp_path)
    train_stage_model(load_stages(stage_records(40))).save(tmp_path)
    manifest = tmp_path / "stage_manifest.json"
    sound = manifest.read_text()
    for changed, message in (
        (sound.replace('"features_version": 1', '"features_version": 9'), "version 9"),
        (sound.replace('"schema_version": 2', '"schema_version": 9'), "schema_version 9"),
        (sound.replace('"share_short"', '"share_long"'), "train it again"),
        ("{", "not a cost model's manifest"),
    ):
        manifest.write_text(changed)
        with pytest.raises(CostModelError, match=message):
            load_stage_model(tmp_path)
    manifest.write_text(sound)
    other = _other_forest()
    (tmp_path / "stage.json").write_bytes(other)
    digests = {"stage": hashlib.blake2b(other, digest_size=16).hexdigest()}
    with pytest.raises(CostModelError, match="is not the forest that its manifest names"):
        load_stage_model(tmp_path)
    manifest.write_text(json.dumps({**json.loads(sound), "digests": digests}))
    with pytest.raises(CostModelError, match="of different models"):
        load_stage_model(tmp_path)


def _other_forest() -> bytes:
    matrix = xgboost.DMatrix(np.zeros((4, 3), dtype=np.float32), np.arange(4.0))
    return bytes(xgboost.train({}, matrix, num_boost_round=1).save_raw("json"))


def test_figures_say_how_much_better_than_the_plain_sum_it_is() -> None:
    figures = evaluate_stages(load_stages(stage_records(80)), min_latency_us=1.0)
    assert figures.num_samples == 80
    assert figures.mape < figures.plain_mape
    assert 0.75 <= figures.coverage_90 <= 1
    with pytest.raises(CostModelError, match="long enough"):
        evaluate_stages(load_stages(stage_records(40)), min_latency_us=1e9)

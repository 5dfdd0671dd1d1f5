"""Features of a GPU's candidates are those worked out by hand, and a draft model learns from them."""

from __future__ import annotations

import numpy as np
import pytest
from draft_samples import CACHES, dense_space, gpu_dense_space, made_up_gpu_trials, made_up_trials

from cost_model.draft.decision_features import decision_features, feature_names
from cost_model.draft.decision_space import BlockLimits
from cost_model.draft.draft_model import train_draft_model
from cost_model.draft.gpu_features import GPU_FEATURE_NAMES

LIMITS = BlockLimits(multiprocessors=108, multiprocessor_shared_bytes=163 * 1024)


def test_a_block_worked_out_by_hand() -> None:
    space = gpu_dense_space(256, 512, 64, LIMITS)
    row = space.row_of(1, ((4, 2, 8, 2, 2), (8, 1, 32, 1, 2), (8, 4, 2), 3, 0, 4))
    assert row is not None
    (numbers,) = decision_features(space, row[None], CACHES)
    found = dict(zip(feature_names(space), numbers.astype(float), strict=True))
    assert (2 ** found["blocks"], 2 ** found["threads"], found["warp_fill"]) == (32, 256, 1)
    # Tiles of 64 × 8 and 8 × 64 elements, three of each: one computed, two fetched ahead.
    assert 2 ** found["shared_bytes"] == pytest.approx(3 * (64 * 8 + 8 * 64) * 4)
    assert found["shared_share"] == pytest.approx(12288 / 49152)
    assert 2 ** found["fetches"] == 8
    assert 2 ** found["fetched_bytes"] == pytest.approx(32 * 8 * 4096)
    assert 2 ** found["thread_results"] == 2 * 2 * 2 * 2
    # 16 results, 2 × 2 + 2 × 2 operands and 24 for indices; 2048 threads, 65536 registers, 163 KiB.
    assert 2 ** found["registers"] == pytest.approx(16 + 8 + 24)
    assert 2 ** found["resident_blocks"] == pytest.approx(min(2048 // 256, 65536 // (256 * 48), 163 // 12))
    assert found["wave_fill"] == pytest.approx(32 / (5 * 108))
    assert (found["read0_fetch_lanes"], found["read1_fetch_lanes"]) == (4, 1)
    assert 2 ** found["read0_fetches_a_thread"] == pytest.approx(512 / 256 / 4)
    assert (found["read0_vector_step"], found["read1_vector_step"]) == (0, 1)
    assert (found["read0_sector_use"], found["tiles_ahead"]) == (1, 2)


def test_there_is_a_name_for_every_column_and_no_feature_is_infinite() -> None:
    space = gpu_dense_space(49, 30, 7, LIMITS)
    found = decision_features(space, space.sample(500, np.random.default_rng(0)), CACHES)
    assert found.shape == (500, len(GPU_FEATURE_NAMES))
    assert np.isfinite(found).all()


def test_a_draft_model_ranks_an_unseen_kernel_of_a_gpu() -> None:
    known = [
        made_up_gpu_trials(f"{rows}", gpu_dense_space(rows, columns, 64, LIMITS), 150, rows)
        for rows, columns in ((64, 256), (128, 128), (256, 512), (512, 256))
    ]
    model = train_draft_model(known, caches=CACHES, device_model="NVIDIA A100", seed=0)
    unseen = made_up_gpu_trials("unseen", gpu_dense_space(256, 256, 128, LIMITS), 200, 9)
    predicted = model.predict(unseen.space, unseen.rows).mean
    fastest = np.argsort(-predicted)[:10]
    latencies = np.asarray(unseen.latencies_us)
    assert np.median(latencies[fastest]) < np.quantile(latencies, 0.2)


def test_trials_of_a_processor_and_of_a_gpu_are_not_mixed() -> None:
    trials = [
        made_up_trials("one", dense_space(12, 40, 18), 40, 0),
        made_up_gpu_trials("two", gpu_dense_space(64, 64, 64), 40, 0),
    ]
    with pytest.raises(ValueError, match="train a model for each"):
        train_draft_model(trials, caches=CACHES, device_model="", seed=0)

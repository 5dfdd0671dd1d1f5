"""Trials of a stranger, of other machines, or of another kind are left out of what the draft model learns."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
from kernel_spaces import cpu, space_of
from tvm.s_tir import meta_schedule

from records import Measurement, Status, Tensor, Workload, open_store
from records.files.metaschedule import BACKEND, Trial, describe_trial
from tuner.backends.environment import environment_of
from tuner.backends.metaschedule.backend import MetaSchedule
from tuner.backends.metaschedule.candidates import candidates_of
from tuner.backends.metaschedule.draft_trials import caches_of_this_machine, load_draft_trials
from tuner.backends.metaschedule.traces import plain_json

pytestmark = pytest.mark.tvm


def kept(workload: Workload, trace: str, latency_us: float | None) -> tuple[Workload, Measurement]:
    return workload, Measurement(
        workload_fingerprint=workload.fingerprint,
        backend=BACKEND,
        target=cpu().text,
        environment=environment_of(cpu(), MetaSchedule()),
        status=Status.ERROR if latency_us is None else Status.OK,
        samples_us=() if latency_us is None else (latency_us,),
        settings=trace,
        message="it crashed" if latency_us is None else "",
        measured_at=1.0,
    )


def test_trials_become_rows_with_their_latencies(tmp_path: Path) -> None:
    space = space_of("dense:4x8x12")
    candidates = candidates_of(space.module, space.tuned_for)
    known = meta_schedule.database.Workload(space.module)
    task, module = map(str, known.as_json())
    tensors = [Tensor((4, 8), "float32")]
    workload = describe_trial(Trial(task, module, ""), tensors)
    strange = describe_trial(Trial("1234", "bm9uc2Vuc2U=", ""), tensors)
    rng = np.random.default_rng(0)
    drawn = [found for found in (candidates.sample(rng) for _ in range(4)) if found is not None]
    traces = [
        json.dumps(
            plain_json(
                meta_schedule.database.TuningRecord(
                    each.schedule.trace, known, None, space.tuned_for, []
                ).as_json()[0]
            )
        )
        for each in drawn
    ]
    entries = [
        kept(workload, trace, latency) for trace, latency in zip(traces, (3.0, 1.0, None, 2.0), strict=True)
    ]
    elsewhere = kept(workload, traces[0], 9.0)
    elsewhere = (
        workload,
        msgspec.structs.replace(
            elsewhere[1],
            environment=msgspec.structs.replace(elsewhere[1].environment, device_model="another"),
        ),
    )
    with open_store(str(tmp_path / "records.db")) as store:
        store.append_many(
            [*entries, elsewhere, kept(strange, traces[0], 5.0), kept(workload, "[[], []]", 5.0)]
        )
        (found,) = load_draft_trials(store, cpu(), environment_of(cpu(), MetaSchedule()))
    assert found.task == task
    assert found.best_us == 1.0
    assert sorted(found.latencies_us) == [1.0, 2.0, 3.0, math.inf]
    wanted = {candidates.spaces[0].decisions_of(each.row)[1] for each in drawn if each.row is not None}
    assert {found.space.decisions_of(row)[1] for row in found.rows} == wanted


def test_caches_grow_from_level_to_level() -> None:
    caches = caches_of_this_machine(2)
    assert 2**10 <= caches.l1_bytes <= caches.l2_bytes <= caches.l3_bytes
    assert caches.num_cores == 2

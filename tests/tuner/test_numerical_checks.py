"""Tuning stops at wrong results and names the tensor; a check that failed is never taken from the records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from records import Environment, open_store
from tuner.errors import TunerError
from tuner.frontend import load_model
from tuner.frontend.model import Model
from tuner.lowering.workload_of import workload_of
from tuner.numerical_error import Deviation
from tuner.tuning.end_to_end.check import WrongNumbersError, check_whole
from tuner.tuning.session import checked_error
from tuner.tuning.stage_costs import measure_stages as stage_costs

pytestmark = pytest.mark.tvm

NAN = "is NaN in 4 of 4 values, where the reference is finite"
WRONG = Deviation(tensor="the gradient of w (stage1, the split backward)", relative_error=0.5)
NOT_A_NUMBER = Deviation(tensor="the gradient of w (stage1, the split backward)", fault=NAN)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model("mlp", training=True)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    """What a check needs of a session: records, and a measurer that finds them and never measures."""
    environment = Environment(
        device_kind="cpu", device_model="any", num_cores=1, num_threads=1, driver="", versions=()
    )
    with open_store(str(tmp_path / "records.db")) as store:

        def find(workload: Any, backend: str, *, settings: str) -> Any:
            return store.find_latest(
                workload.fingerprint,
                backend=backend,
                settings=settings,
                target="cpu",
                environment=environment,
            )

        measurer = SimpleNamespace(
            find=find,
            environment=lambda backend: environment,
            new_measurements=0,
            claimed=lambda what: nullcontext(),
        )
        yield SimpleNamespace(
            store=store,
            measurer=measurer,
            seed=0,
            target=SimpleNamespace(text="cpu"),
            pricing=SimpleNamespace(mode="measured"),
            on_progress=lambda progress: None,
        )


def makes(deviation: Deviation, calls: list[Deviation]) -> Callable[[], Deviation]:
    """Return a check with this outcome, which counts how often it is made."""

    def check() -> Deviation:
        calls.append(deviation)
        return deviation

    return check


@pytest.mark.parametrize(
    ("deviation", "times"),
    [(Deviation(tensor="w", relative_error=1e-6), 1), (WRONG, 2), (NOT_A_NUMBER, 2)],
    ids=["right", "wrong", "NaN"],
)
def test_only_a_check_that_was_passed_is_taken_from_the_records(
    deviation: Deviation, times: int, model: Model, session: Any
) -> None:
    workload = workload_of(model.module["main"], "model", module=model.module)
    calls: list[Deviation] = []
    for _ in range(2):
        found = checked_error(
            session, workload, settings="one", tolerance=1e-3, check=makes(deviation, calls)
        )
        assert found.relative_error == deviation.relative_error
        assert found.is_within(1e-3) == (times == 1)
    assert len(calls) == times
    assert found.tensor == ("what was checked before" if times == 1 else deviation.tensor)


@pytest.mark.parametrize(
    ("deviation", "said"),
    [(WRONG, "is off by 5.0e-01 of its largest value, more than the tolerance 1e-03"), (NOT_A_NUMBER, NAN)],
    ids=["wrong", "NaN"],
)
def test_wrong_stages_and_wrong_partitions_stop_tuning_by_name(
    deviation: Deviation, said: str, model: Model, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = re.escape(f"{deviation.tensor} {said}")
    monkeypatch.setattr(stage_costs, "_stages_error", lambda *arguments: deviation)
    with pytest.raises(TunerError, match=f"the stages of mlp:small differ from the uncut model: {said}"):
        stage_costs._check(model, session, (), {})
    mix = SimpleNamespace(
        priced=SimpleNamespace(
            workload=workload_of(model.module["main"], "model", module=model.module),
            graph=SimpleNamespace(source=SimpleNamespace(function=model.module["main"])),
        ),
        fingerprint="f",
        module=model.module.clone(),
    )
    right = Deviation(tensor="output 0", relative_error=0.0)
    session.measurer.compare = lambda module, reference, *, unscheduled: (
        deviation if module is mix.module else right
    )
    with pytest.raises(WrongNumbersError) as caught:
        check_whole(session, model, mix)
    assert caught.value.deviation == deviation

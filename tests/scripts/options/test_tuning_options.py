"""Options of what measures: numbers out of range are refused before anything opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scripts.options.tuning_options import (
    MeasuringOptions,
    TuningOptions,
    open_session,
    spend_trials,
)
from tuner.frontend import load_model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (MeasuringOptions(jobs=0), "jobs is 0; it is at least 1"),
        (MeasuringOptions(trials=-1), "trials is -1"),
        (TuningOptions(threads=0), "threads is 0"),
        (TuningOptions(regret=1.0), "regret is a share"),
        (TuningOptions(budget=-1), "budget a number"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_opens(
    options: MeasuringOptions, message: str
) -> None:
    with pytest.raises(ValueError, match=message), open_session(options):
        pass


@pytest.mark.tvm
def test_a_budget_of_no_trials_is_refused_and_none_changes_nothing(tmp_path: Path) -> None:
    model, options = load_model("mlp:tiny"), TuningOptions(records=str(tmp_path / "records.db"))
    assert spend_trials(options, model, None) is options
    with pytest.raises(ValueError, match="trial_budget is 0; it is at least 1"):
        spend_trials(options, model, 0)


@pytest.mark.tvm
def test_kernels_of_our_own_are_built_with_what_a_budget_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Process:
        """Says that the second of a batch is the fastest."""

        def __init__(self, target: object) -> None:
            pass

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def time(self, kernels: list[object], *, rounds: int, weight_bytes: int) -> list[tuple[float, ...]]:
            return [(10.0 if index != 1 else 5.0,) * rounds for index in range(len(kernels))]

    monkeypatch.setattr("tuner.tuning.own_kernels.KernelProcess", Process)
    given = TuningOptions(
        records=str(tmp_path / "records.db"), backends="tvm,packed_matmul", threads=1, trials=4
    )
    tuned = spend_trials(given, load_model("mlp:tiny"), None)
    assert tuned.backends is not None
    native, product = tuned.backends.split(",")
    assert native == "tvm"
    assert product.startswith("packed_matmul?tiles=")
    again = spend_trials(replace(given, trials=0), load_model("mlp:tiny"), None)
    assert again.backends == tuned.backends, "records alone say what is built"
    untouched = replace(given, trials=0, backends="tvm,blas")
    assert spend_trials(untouched, load_model("mlp:tiny"), None) is untouched

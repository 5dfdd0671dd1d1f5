"""A part that is right alone and wrong in place is found, named, recorded, and not chosen again."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any

import pytest
from dataflow_samples import relax_module
from tvm import relax

from records import Status
from tests.tuner.misbehaving_backends import MODULE
from tuner.errors import UnpriceableError
from tuner.frontend.model import InputSpec, Model
from tuner.numerical_error import TOLERANCES
from tuner.tuning.partition_model import partition_model
from tuner.tuning.session import Session, SessionSettings, start_session

pytestmark = pytest.mark.tvm

SHAPES = {"x": (1024, 64), "one": (64, 64), "two": (64, 64)}


def arc_tangents(builder: Any, x: Any, one: Any, two: Any) -> Any:
    """Return two layers of arc tangents, of numbers that are larger than those parts are checked with."""
    for weight in (one, two):
        x = builder.emit(relax.op.atan(builder.emit(relax.op.matmul(x, weight))))
    return x


def model() -> Model:
    module = relax_module(arc_tangents, **SHAPES)
    return Model(
        name="arc tangents",
        module=module,
        inputs=(InputSpec(name="x", shape=SHAPES["x"], dtype="float32"),),
        parameter_names=("one", "two"),
        module_paths=("",) * sum(len(block.bindings) for block in module["main"].body.blocks),
    )


@pytest.fixture(scope="module")
def records_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("records") / "records.db")


def open_session(records_url: str, other: str) -> AbstractContextManager[Session]:
    names = (other, f"{MODULE}:small_numbers")
    return start_session(
        "cpu",
        SessionSettings(backend_names=names, num_threads=1),
        records_url=records_url,
    )


def test_a_part_that_is_wrong_in_place_is_recorded_and_another_chosen(
    records_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), open_session(records_url, "tvm") as session:
        found = partition_model(model(), session)
        recorded = [
            record.workload.operators[0].name
            for record in session.store.iterate(backend="small_numbers", status=Status.ERROR)
        ]
    assert {part.backend for part in found.function.partition.chosen} == {"tvm"}
    assert found.max_relative_error is not None
    assert found.max_relative_error <= TOLERANCES["float32"]
    assert set(recorded) == {"atan"}
    (warning, *_) = [record.getMessage() for record in caplog.records if "wrong numbers" in record.message]
    assert "small_numbers gives wrong numbers for atan in arc tangents" in warning
    assert any("within a whole model" in reason for reason in found.num_refused_by_reason)
    with open_session(records_url, "tvm") as session:
        again = partition_model(model(), session)
    assert again.new_measurements == 0
    assert again.function.fingerprint == found.function.fingerprint


@pytest.mark.slow
def test_only_where_nobody_is_right_it_is_an_error(records_url: str) -> None:
    with (
        open_session(records_url, "blas") as session,
        pytest.raises(UnpriceableError, match=r"atan .*small_numbers: .*wrong numbers"),
    ):
        partition_model(model(), session)

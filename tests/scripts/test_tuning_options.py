"""Options that commands share are declared once, and are each command's own on the command line."""

from __future__ import annotations

import inspect

import pytest
import typer

from scripts.tuning_options import (
    JsonOption,
    MeasuringOptions,
    ModelArgument,
    TuningOptions,
    open_session,
    shares_options,
)


def test_fields_stand_where_the_options_stood_and_come_back_as_one() -> None:
    got: list[object] = []

    @shares_options
    def command(model: ModelArgument, options: TuningOptions, json: JsonOption = False) -> None:
        """Say what it does."""
        got.extend((model, options, json))

    names = list(inspect.signature(command).parameters)
    assert (names[0], names[1], names[-1]) == ("model", "target", "json")
    assert {"records", "price", "schedule_cost_model"} < set(names)
    assert (command.__name__, command.__doc__) == ("command", "Say what it does.")

    app = typer.Typer()
    app.command()(command)
    app(["net.onnx", "--jobs", "3", "--price", "active", "--json"], standalone_mode=False)
    assert got == ["net.onnx", TuningOptions(jobs=3, price="active"), True]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (MeasuringOptions(jobs=0), "--jobs is 0; it is at least 1"),
        (MeasuringOptions(trials=-1), "--trials is -1"),
        (TuningOptions(threads=0), "--threads is 0"),
        (TuningOptions(regret=1.0), "--regret is a share"),
        (TuningOptions(budget=-1), "--budget a number"),
    ],
)
def test_numbers_out_of_range_are_refused_before_anything_opens(
    options: MeasuringOptions, message: str
) -> None:
    with pytest.raises(typer.BadParameter, match=message), open_session(options):
        pass

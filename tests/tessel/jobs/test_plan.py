"""Files that hold no plan and no schedule are named, with the command that makes a plan of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel.errors import DocumentError
from tessel.jobs.plan import load_planned


@pytest.mark.parametrize(
    ("name", "what", "command"),
    [("timings.csv", "a table", "tessel plan"), ("net.ONNX", "a model", "tessel tune")],
)
def test_a_table_or_a_model_says_how_a_plan_is_made(
    tmp_path: Path, name: str, what: str, command: str
) -> None:
    (tmp_path / name).write_bytes(b"layer,forward_ms\n")
    with pytest.raises(
        DocumentError, match=f"{name} is {what}, and a plan or a schedule.*{command} "
    ) as caught:
        load_planned(tmp_path / name)
    assert len(str(caught.value).splitlines()) == 1


def test_a_table_that_is_missing_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="cannot be read"):
        load_planned(tmp_path / "timings.csv")

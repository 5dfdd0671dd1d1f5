"""Orders as Python prints them are read as the CSV that they are; layouts stay layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tessel.checking.file_kinds import kind_of_file
from tessel.checking.printed_orders import csv_of_printed
from tessel.engine.actions import cells_from_csv

CELLS = "0F0,0F1,,0B0,0B1\n1F0,1B0,(1F1;1B1)OVERLAP_F_B\n"


@pytest.mark.parametrize(
    "text",
    [
        "[0F0, 0F1, None, 0B0, 0B1]\n[1F0, 1B0, (1F1;1B1)OVERLAP_F_B]\n",
        "[[None, 0F0, 0F1, 0B0, 0B1],\n [1F0, 1B0, (1F1;1B1)OVERLAP_F_B]]",
        "[['0F0', '0F1', None, '0B0', '0B1'], ['1F0', '1B0', '(1F1;1B1)OVERLAP_F_B']]",
    ],
)
def test_printed_lists_are_orders(text: str, tmp_path: Path) -> None:
    path = tmp_path / "lists.txt"
    path.write_text(text)
    assert kind_of_file(str(path)) == "orders"
    assert cells_from_csv(csv_of_printed(text)) == cells_from_csv(CELLS)


def test_layouts_stay_layouts_and_a_csv_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "layout.json"
    path.write_text('[["embedding", "decoder"], ["decoder", "loss"]]')
    assert kind_of_file(str(path)) == "layout"
    assert csv_of_printed(CELLS) == CELLS

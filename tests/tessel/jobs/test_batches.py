"""Batches as users write them: factors, files, lengths in between, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tessel.errors import DocumentError, UsageError
from tessel.jobs.inputs.batches import read_batch
from tessel.shapes import vshape
from tests.samples.batches.batch_samples import with_spans

PLACEMENT = with_spans(vshape(2), 10)


def written(folder: Path, document: object) -> str:
    path = folder / "batch.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_factors_say_how_long_and_how_many() -> None:
    batch = read_batch("1x2,2.5,1", PLACEMENT)
    assert batch.names == ("1", "1", "2.5", "1")
    assert [each.spans for each in batch.classes] == [(10, 10, 30, 30), (25, 25, 75, 75)]


@pytest.mark.parametrize(
    "text", ["", "x", "1x", "1x2,", "0x3", "1x0", "2-3", "1x2000000", "batch.yaml", "1e3"]
)
def test_what_is_no_batch_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_batch(text, PLACEMENT)
    assert "--batch" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_has_classes_by_name_and_lengths_in_between(tmp_path: Path) -> None:
    short = {"length": 1000, "spans": [100, 200, 100, 200], "memory": [10, -10, 10, -10]}
    long = {"length": 3000, "spans": [600, 900, 300, 600], "memory": [30, -30, 30, -30]}
    text = written(tmp_path, {"classes": [short, long, {"name": "empty"}], "sequence": [1000, 2000, "empty"]})
    batch = read_batch(text, PLACEMENT)
    assert batch.names == ("1000", "2000", "empty")
    # 0.05 L + 0.00005 L², 0.15 L + 0.00005 L², and twice 0.1 L, 0.2 L without a square
    assert batch.classes[1].spans == (300, 500, 200, 400)
    assert batch.classes[1].memory == (20, -20, 20, -20)
    assert batch.classes[2].spans == tuple(block.span for block in PLACEMENT.blocks)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"classes": [], "sequence": ["a"]}, "names class 'a'"),
        ({"classes": [{"name": "a"}], "sequence": []}, "no class, or no micro-batch"),
        ({"classes": [{"name": "a"}, {"name": "a"}], "sequence": ["a"]}, "occurs twice"),
        ({"classes": [{}], "sequence": ["a"]}, "neither name nor length"),
        ({"classes": [{"name": "a", "spans": [1]}], "sequence": ["a"]}, "only one of spans and memory"),
        ({"classes": [{"name": "a", "lags": [1]}], "sequence": ["a"]}, "lags and no spans"),
        (
            {"classes": [{"name": "a", "spans": [1], "memory": [0]}], "sequence": ["a"]},
            "1 blocks and 4 edges",
        ),
        ({"classes": [{"length": 0}], "sequence": [0]}, "at least 1"),
        ({"classes": [{"length": 8}], "sequence": [9]}, "beyond the measured ones"),
        ({"classes": [{"name": "a", "factor": -1}], "sequence": ["a"]}, "factor -1"),
        ({"classes": [{"name": "a", "speed": 1}], "sequence": ["a"]}, "speed"),
        ([], "Expected `object`"),
    ],
)
def test_files_that_are_no_batch_are_refused_in_one_line(tmp_path: Path, document: object, says: str) -> None:
    with pytest.raises(DocumentError) as raised:
        read_batch(written(tmp_path, document), PLACEMENT)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)

"""Style files: what they may say, what is refused and why, and that it wins over the defaults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb

from tessel.errors import DocumentError
from tessel.handwritten import HANDWRITTEN
from tessel.picture.figures import schedule_figure
from tessel.picture.style import PictureStyle, load_style
from tessel.shapes import vshape


def write(folder: Path, **keys: object) -> Path:
    path = folder / "style.json"
    path.write_text(json.dumps({"schema_version": 1, **keys}))
    return path


def test_a_style_wins_over_the_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        annotation_args={"color": "red", "fontsize": 5},
        rectangle_args={"backward": {"hatch": "//", "facecolor": "#ffffff"}},
        line_args={"linewidth": 4},
    )
    style = load_style(path)
    assert style == PictureStyle(
        annotation_args={"color": "red", "fontsize": 5},
        rectangle_args={"backward": {"hatch": "//", "facecolor": "#ffffff"}},
        line_args={"linewidth": 4},
    )
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    axes = schedule_figure(
        rule.build(vshape(2), micro_batches=3, memory=None),
        critical_path=True,
        annotation_args=style.annotation_args,
        rectangle_args=style.rectangle_args,
        line_args=style.line_args,
    ).axes[0]
    assert {text.get_color() for text in axes.texts if text.get_text().isdigit()} == {"red"}
    (backward,) = (child for child in axes.collections if child.get_label() == "backward")
    assert backward.get_hatch() == "//"
    assert tuple(backward.get_facecolor()[0][:3]) == to_rgb("white")
    assert [line.get_linewidth() for line in axes.lines if line.get_label() == "critical path"] == [4]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"annotations": {}}, "unknown field `annotations`"),
        ({"line_args": {"url": "https://example.org"}}, "unknown field `url`"),
        ({"line_args": {"linewidth": "thick"}}, "Expected `float`"),
        ({"line_args": {"color": "blau"}}, "line_args has color 'blau', which matplotlib refuses"),
        ({"rectangle_args": {"forward": {"linestyle": "zigzag"}}}, "rectangle_args of forward has linestyle"),
        ({"schema_version": 2}, "Invalid enum value 2"),
    ],
    ids=str,
)
def test_what_no_style_has_is_refused_by_name(keys: dict[str, object], expected: str, tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as refused:
        load_style(write(tmp_path, **keys))
    assert expected in str(refused.value)


def test_a_file_that_is_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "style.json").write_text("{")
    with pytest.raises(DocumentError, match="not whole JSON"):
        load_style(tmp_path / "style.json")

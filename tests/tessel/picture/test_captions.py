"""What a picture's file says of itself: title and description, text as text, and the same bytes each time."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from tessel.comparison import compare_schedules
from tessel.handwritten import HANDWRITTEN
from tessel.picture.captions import save_figure, svg_document
from tessel.picture.description import describe_schedule, schedule_title
from tessel.picture.figures import comparison_figure, gains_figure, schedule_figure
from tessel.schedule import Schedule
from tessel.shapes import mshape, vshape

SVG = "{http://www.w3.org/2000/svg}"


def one_f_one_b(micro_batches: int = 3) -> Schedule:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    return rule.build(vshape(2), micro_batches=micro_batches, memory=None)


def test_an_svg_is_an_image_with_a_title_and_a_description() -> None:
    root = ElementTree.fromstring(svg_document(schedule_figure(one_f_one_b(), title="a < b & c")))
    assert root.get("role") == "img"
    title, description = list(root)[:2]
    assert (title.tag, title.text) == (f"{SVG}title", "a < b & c")
    assert description.tag == f"{SVG}desc"
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
    assert description.text == describe_schedule(one_f_one_b())


def test_text_of_an_svg_is_text() -> None:
    root = ElementTree.fromstring(svg_document(schedule_figure(one_f_one_b(), title="two devices")))
    words = {element.text for element in root.iter(f"{SVG}text")}
    assert {"two devices", "0", "1", "2", "forward", "time (steps)"} <= words


def test_pictures_in_one_document_have_ids_of_their_own() -> None:
    roots = [
        ElementTree.fromstring(svg_document(schedule_figure(schedule)))
        for schedule in (one_f_one_b(3), one_f_one_b(4))
    ]
    assert roots[0].get("aria-labelledby") != roots[1].get("aria-labelledby")


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_title_that_xml_cannot_hold_is_drawn_all_the_same() -> None:
    root = ElementTree.fromstring(svg_document(schedule_figure(one_f_one_b(), title="a\x00b\x1bc</title>")))
    assert root[0].text == "a\ufffdb\ufffdc</title>"


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_the_same_figure_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    for name in ("first", "second"):
        save_figure(schedule_figure(one_f_one_b(), title="twice"), tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"first.{suffix}").read_bytes() == (tmp_path / f"second.{suffix}").read_bytes()


def test_a_png_and_a_pdf_say_what_they_show(tmp_path: Path) -> None:
    figure = schedule_figure(one_f_one_b(), title="two devices")
    save_figure(figure, tmp_path / "drawn.png")
    with Image.open(tmp_path / "drawn.png") as image:
        assert (image.info["Title"], image.info["Description"]) == (figure.title, figure.description)
    save_figure(figure, tmp_path / "drawn.pdf")
    text = (tmp_path / "drawn.pdf").read_bytes()
    assert b"/Title (two devices)" in text
    assert b"/Subtype /Type3" not in text  # which publishers refuse


def test_a_figure_of_matplotlibs_own_is_saved_as_it_is(tmp_path: Path) -> None:
    save_figure(Figure(), tmp_path / "plain.svg")
    assert ElementTree.parse(tmp_path / "plain.svg").getroot().get("role") is None


def test_descriptions_give_the_figures_of_the_schedule() -> None:
    schedule = one_f_one_b()
    assert schedule_title(schedule) == "3 micro-batches on 2 devices: 16 steps"
    assert describe_schedule(schedule) == (
        "A timeline with a row for each of 2 devices; 3 micro-batches take 16 steps. "
        "Share of time that each device idles: 25% on each. "
        "Below, the memory of each device; its peaks are 2, 1 units."
    )
    assert "3 micro-batches take 8 ms" in describe_schedule(schedule, step_ms=0.5)


def test_comparisons_and_gains_say_what_they_show() -> None:
    comparison = compare_schedules(one_f_one_b(), names=("1f1b", "gpipe"))
    assert "3 timelines on one time axis" in comparison_figure(comparison).description
    assert "gpipe +0.0%" in gains_figure(comparison).description
    assert gains_figure(comparison).title == "Gains over 1F1B"


def test_a_shape_of_shared_blocks_is_described() -> None:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    assert "idles" in describe_schedule(rule.build(mshape(2), micro_batches=2, memory=None))

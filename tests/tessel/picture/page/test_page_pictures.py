"""The page's timeline, frontier and graph, and an SVG, as Chromium draws them, against stored pictures."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from example_pages import MODEL, comparison, shared_blocks, variants
from headless_chromium import Browser
from reference_pictures import TOLERANCE, assert_like_stored, largest_difference, shrunk

from tessel.picture.captions import save_figure
from tessel.picture.figures import schedule_figure
from tessel.picture.page.document import page_document


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    document = page_document(comparison(4, 12, memory=4), title="four", model=MODEL, variants=variants(4))
    (tmp_path / "page.html").write_bytes(document)
    browser.resize(1280, 800)
    browser.open(tmp_path / "page.html")
    return browser


def timeline(browser: Browser) -> bytes:
    """Return the timeline on the page's paper, without what the browser lays out around it."""
    browser.evaluate("theme = null; draw(); 1")
    return base64.b64decode(
        browser.evaluate(
            """(() => {
              const whole = document.createElement("canvas"), on = whole.getContext("2d");
              whole.width = canvas.width; whole.height = canvas.height;
              on.fillStyle = currentTheme().paper; on.fillRect(0, 0, whole.width, whole.height);
              on.drawImage(canvas, 0, 0);
              return whole.toDataURL("image/png").split(",")[1];
            })()"""
        )
    )


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, False), (1280, True), (2560, False)])
def test_the_timeline_looks_as_stored(page: Browser, tmp_path: Path, width: int, dark: bool) -> None:
    page.resize(width, 1440 if width > 2000 else 800, dark=dark)
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert_like_stored(f"timeline-{width}{'-dark' if dark else ''}", timeline(page), tmp_path)


def test_forced_colours_look_as_stored(page: Browser, tmp_path: Path) -> None:
    page.emulate(forced_colors=True)
    found = timeline(page)
    page.emulate()
    assert_like_stored("timeline-forced", found, tmp_path)


def test_shared_blocks_look_as_stored(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_bytes(shared_blocks())
    browser.resize(800, 600)
    browser.open(tmp_path / "page.html")
    assert_like_stored("timeline-shared", timeline(browser), tmp_path)


@pytest.mark.parametrize("part", ["frontier", "graph"])
def test_parts_of_the_page_look_as_stored(page: Browser, tmp_path: Path, part: str) -> None:
    page.evaluate(f"document.querySelector('#{part} svg, #{part} .field').scrollIntoView(); 1")
    assert_like_stored(f"page-{part}", page.screenshot(of=f"#{part} svg, #{part} .field"), tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        "schedules[0].bars[1].start[6] -= 1; schedules[0].bars[1].end[6] -= 1",
        "data.styles[0].color = data.styles[data.styles.length - 1].color",
    ],
    ids=["moved", "colour"],
)
def test_a_wrong_block_is_seen(page: Browser, wrong: str) -> None:
    before = shrunk(timeline(page))
    assert largest_difference(before, shrunk(timeline(page))) == 0
    page.evaluate(f"{wrong}; 1")
    assert largest_difference(before, shrunk(timeline(page))) > TOLERANCE


def test_an_svg_looks_in_a_browser_as_the_png_does(browser: Browser, tmp_path: Path) -> None:
    (_, schedule), *_ = comparison(4, 12).schedules
    figure = schedule_figure(schedule, title="four", width=7.0)
    for suffix in (".svg", ".png"):
        save_figure(figure, tmp_path / f"picture{suffix}")
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><body data-ready=yes style='margin:0'><img style='display:block;width:100vw' "
        "src=picture.svg>"
    )
    browser.resize(width, height)
    browser.open(page)
    browser.evaluate("document.images[0].decode().then(() => 1)")
    # Letters are in the reader's fonts, which may be wider: bars and curves are to be where they are.
    seen, drawn = shrunk(browser.screenshot()), shrunk((tmp_path / "picture.png").read_bytes())
    drawn = drawn.resize(seen.size)
    assert largest_difference(seen, drawn) < 2.5 * TOLERANCE

"""The page for everyone: rules of axe-core, contrast, colour-blind readers, keyboard, narrow and printed."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from axe_core import VARIABLE, find_axe, violations
from example_pages import MODEL, comparison, variants
from headless_chromium import Browser

from tessel.picture.colors import COLOR_BY_KIND, OWN_COLORS
from tessel.picture.page.document import page_document

WIDTHS = (390, 768, 1280, 2560)

TRITAN = ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900))
"""Linear RGB as a tritanope sees it. Source: Machado, Oliveira and Fernandes (2009), severity 1."""

LEAST_DISTANCE = 0.06
"""Of two colours in OKLab; 0.02 is about what can just be told apart side by side."""


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    document = page_document(comparison(4, 12, memory=4), title="four", model=MODEL, variants=variants(4))
    (tmp_path / "page.html").write_bytes(document)
    browser.resize(1280, 800)
    browser.open(tmp_path / "page.html")
    return browser


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_axe_finds_nothing(page: Browser, width: int, dark: bool) -> None:
    script = find_axe()
    if script is None:
        pytest.skip(f"{VARIABLE} names no axe.min.js; .ci/run fetches one from the npm registry")
    page.resize(width, 900, dark=dark)
    page.evaluate(
        "byId('listed').open = true; setArea({from: 0, to: 5, first: 0, last: 1}); keepAtCursor(); 1"
    )
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert violations(page, script) == []


VIEWS = {
    "alone": "compareWith(null)",
    "block": "keepAtCursor(); state.critical = true",
    "differences": "select(2); nextDifference()",
    "search": "byId('query').value = 'f1'; search('f1'); nextMatch(1); byId('listed').open = true",
    "nothing found": "search('no such thing')",
    "area": "setArea({from: 0, to: 5, first: 0, last: 3}); toggle('selecting')",
    "variant": "byId('limit-slider').value = 0; chooseVariant()",
    "frontier": "document.querySelector('#frontier .point').focus()",
    "graph": "byId('graph-folded').click(); document.querySelectorAll('#graph .node')[3].click()",
    "playing": "play(true)",
}


@pytest.mark.parametrize("view", VIEWS)
def test_axe_finds_nothing_in_any_view(page: Browser, view: str) -> None:
    script = find_axe()
    if script is None:
        pytest.skip(f"{VARIABLE} names no axe.min.js; .ci/run fetches one from the npm registry")
    page.resize(1280, 900)
    page.evaluate(f"{VIEWS[view]}; 1")
    page.evaluate("new Promise((done) => setTimeout(done, 50))")
    assert violations(page, script) == []


def test_axe_finds_nothing_in_forced_colours_and_in_print(page: Browser) -> None:
    script = find_axe()
    if script is None:
        pytest.skip(f"{VARIABLE} names no axe.min.js; .ci/run fetches one from the npm registry")
    page.emulate(forced_colors=True)
    page.evaluate("theme = null; draw(); 1")
    forced = violations(page, script)
    page.emulate()
    page.evaluate("window.dispatchEvent(new Event('beforeprint')); 1")
    assert forced == violations(page, script) == []


def test_every_part_is_reached_and_used_by_keys_alone(page: Browser) -> None:
    """What buttons, sliders and lists have by themselves is not looked at: that they can be reached is."""
    reached = page.evaluate(
        """[...document.querySelectorAll("button, select, input, summary, [tabindex]")]
          .filter((each) => each.checkVisibility() && !each.disabled && each.tabIndex >= 0)
          .map((each) => each.id || each.dataset.action || each.className.baseVal || each.className)"""
    )
    for part in ("beside", "query", "canvas", "cursor", "limit-slider", "size-slider", "node", "selecting"):
        assert part in reached, part
    assert [each for each in reached if each.startswith("point")]

    page.evaluate("document.querySelector('#frontier .point').focus(); 1")
    page.press("Enter")
    assert page.evaluate("current().name === null && state.schedule === chosenVariant().schedule")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.evaluate("byId('limit-slider').focus(); 1")
    page.press("End")
    page.evaluate("document.querySelectorAll('#graph .node')[1].focus(); 1")
    assert page.evaluate("document.activeElement.textContent").startswith("blas")
    page.evaluate("canvas.focus(); 1")
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.press("f", "1", "Enter", "Escape")
    assert page.evaluate("document.activeElement.id") == "canvas"
    assert page.evaluate("nameOf(state.kept)") == "f1[0]"


def test_axe_is_able_to_find_something(page: Browser) -> None:
    script = find_axe()
    if script is None:
        pytest.skip(f"{VARIABLE} names no axe.min.js; .ci/run fetches one from the npm registry")
    page.evaluate("byId('tabs').removeAttribute('role'); byId('query').labels[0].remove(); 1")
    assert {found["rule"] for found in violations(page, script)} >= {"label", "aria-required-parent"}


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window_and_words_stay_whole(page: Browser, width: int) -> None:
    page.resize(width, 800)
    page.evaluate("new Promise((done) => requestAnimationFrame(done))")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    narrowest = page.evaluate(
        "Math.min(...[...document.querySelectorAll('th.text, td.text')].map((cell) => cell.offsetWidth))"
    )
    assert narrowest >= 100
    assert page.evaluate("document.documentElement.scrollHeight") < 5000


@pytest.mark.parametrize("dark", [False, True])
def test_bars_and_their_numbers_stand_out(page: Browser, dark: bool) -> None:
    page.resize(1280, 800, dark=dark)
    page.evaluate("theme = null; draw(); 1")
    edges, idle = page.evaluate("[currentTheme().edges, currentTheme().idle]")
    assert min(_contrast(edge, idle) for edge in edges) >= 3
    for hexes in (*COLOR_BY_KIND.values(), *OWN_COLORS):
        color = _rgb(hexes)
        ink = page.evaluate(f"readable({list(color)})")
        assert _contrast(color, (0,) * 3 if ink == "#000" else (0xFF,) * 3) >= 4.5
        edge = page.evaluate(f"edgeOf({list(color)}, currentTheme().idle, rgb(currentTheme().ink))")
        assert _contrast(edge, idle) >= 3


def test_kinds_are_told_apart_by_tritanopes_too() -> None:
    seen = {kind: _oklab(_as_tritanope(_rgb(color))) for kind, color in COLOR_BY_KIND.items()}
    near = {
        (one.value, other.value): distance
        for (one, a), (other, b) in itertools.combinations(seen.items(), 2)
        if (distance := sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5) < LEAST_DISTANCE
    }
    assert near == {}


def test_tabs_are_one_stop_and_arrows_move_among_them(page: Browser) -> None:
    stops = "[...document.querySelectorAll('[role=tab]')].filter((tab) => tab.tabIndex === 0).length"
    assert page.evaluate(stops) == 1
    names = page.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.textContent)")
    assert all(f" {name.split()[-2]} steps" in name for name in names), names
    page.evaluate("document.querySelector('[role=tab]').focus(); 1")
    page.press("ArrowRight")
    assert page.evaluate("[document.activeElement.id, current().name]") == ["tab-1", "1f1b"]
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    assert page.evaluate(stops) == 1
    page.press("Home")
    assert page.evaluate("document.activeElement.id") == "tab-0"


def test_single_keys_can_be_turned_off_outside_the_timeline(page: Browser) -> None:
    page.evaluate("byId('single-keys').click(); document.activeElement.blur(); 1")
    page.press("c")
    assert not page.evaluate("state.critical")
    page.evaluate("canvas.focus(); 1")
    page.press("c")
    assert page.evaluate("state.critical")


def test_what_is_drawn_is_also_a_table(page: Browser) -> None:
    page.evaluate("byId('listed').open = true; setView(0, 3); listBlocks(); 1")
    rows = page.evaluate(
        "[...document.querySelectorAll('#block-list tbody tr')].map((row) => row.cells[0].innerText)"
    )
    drawn = page.evaluate(
        "[...current().start.keys()].filter((i) => current().start[i] < 3)"
        ".map((i) => blockOf(current(), i).name)"
    )
    assert rows == drawn


def test_paper_is_light_where_the_screen_is_dark(page: Browser) -> None:
    page.resize(1280, 800, dark=True)
    page.evaluate("window.dispatchEvent(new Event('beforeprint')); 1")
    assert page.evaluate("currentTheme().paper") == "#ffffff"
    page.evaluate("window.dispatchEvent(new Event('afterprint')); 1")
    assert page.evaluate("currentTheme().paper") == "#161616"


def test_without_motion_the_cursor_leaps(page: Browser) -> None:
    page.emulate(reduced_motion=True)
    page.press("Home", " ")
    leapt = page.evaluate("[isStill.matches, state.cursor, moments(current()).includes(state.cursor)]")
    page.press(" ")
    page.emulate()
    assert leapt[0]
    assert leapt[2]


def test_forced_colours_reach_the_canvas(page: Browser) -> None:
    page.emulate(forced_colors=True)
    page.evaluate("theme = null; draw(); 1")
    ink, paper, over = page.evaluate("['ink', 'paper', 'over'].map((name) => rgb(currentTheme()[name]))")
    held = page.evaluate("[0, 8, 16].map((shift) => currentTheme().words.held >> shift & 255)")
    page.emulate()
    assert _contrast(ink, paper) >= 7
    assert min(_contrast(over, paper), _contrast(held, paper), _contrast(held, ink)) >= 3


def _rgb(color: str) -> tuple[int, int, int]:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def _linear(color: tuple[int, ...] | list[int]) -> list[float]:
    shares = [part / 255 for part in color]
    return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]


def _contrast(one: tuple[int, ...] | list[int], other: tuple[int, ...] | list[int]) -> float:
    """Contrast ratio. Source: WCAG 2.2."""
    weights = (0.2126, 0.7152, 0.0722)
    dark, light = sorted(
        sum(weight * part for weight, part in zip(weights, _linear(color), strict=True))
        for color in (one, other)
    )
    return (light + 0.05) / (dark + 0.05)


def _as_tritanope(color: tuple[int, ...]) -> list[float]:
    linear = _linear(color)
    return [
        min(max(sum(weight * part for weight, part in zip(row, linear, strict=True)), 0.0), 1.0)
        for row in TRITAN
    ]


def _oklab(linear: list[float]) -> list[float]:
    """Source: Ottosson (2020), A perceptual color space for image processing."""
    red, green, blue = linear
    cones = (
        (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3),
        (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3),
        (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3),
    )
    rows = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    return [sum(weight * cone for weight, cone in zip(row, cones, strict=True)) for row in rows]

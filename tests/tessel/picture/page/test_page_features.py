"""What the page answers, in a real headless Chromium: two schedules, search, sums, choices and the graph."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from example_pages import MODEL, NUM_LAYERS, comparison, shared_blocks, variants
from headless_chromium import Browser
from matplotlib.colors import to_rgb

from tessel.comparison import Comparison, compare_schedules
from tessel.picture.colors import COLOR_BY_KIND
from tessel.picture.page.document import page_document
from tessel.placement import BlockKind
from tessel.schedule import Schedule
from tessel.shapes import vshape


def open_page(browser: Browser, folder: Path, page: bytes, *, width: int = 1200) -> None:
    (folder / "page.html").write_bytes(page)
    browser.resize(width, 800)
    browser.open(folder / "page.html")


@pytest.fixture
def small(browser: Browser, tmp_path: Path) -> Browser:
    page = page_document(comparison(2, 4, memory=2), title="two", model=MODEL, variants=variants(2))
    open_page(browser, tmp_path, page)
    return browser


def pixel(browser: Browser, x: float, y: float) -> list[int]:
    """Return the colour of the timeline at a point, in CSS pixels."""
    found: list[int] = browser.evaluate(f"[...context.getImageData({x}, {y}, 1, 1).data].slice(0, 3)")
    return found


def swapped() -> Comparison:
    """Two schedules of one device that differ in the order of two backward blocks, and a longer wait."""
    placement = vshape(1)
    order = {(0, 0): 0, (0, 1): 1, (1, 0): 2, (1, 1): 5}
    other = {(0, 0): 0, (0, 1): 1, (1, 1): 3, (1, 0): 6}
    found = compare_schedules(Schedule.of(placement, order, micro_batches=2), names=["1f1b"])
    schedule = Schedule.of(placement, other, micro_batches=2)
    return Comparison(
        rows=found.rows,
        schedules=tuple((n, schedule if n == "1f1b" else s) for n, s in found.schedules),
        not_applicable=(),
    )


def test_two_schedules_share_the_axis_and_differences_are_counted(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, page_document(swapped(), title="swapped"))
    assert browser.evaluate("shown().map((each) => each.name)") == ["searched", "1f1b"]
    # Both backward blocks follow another block; the forward ones, which only wait, do not.
    assert browser.evaluate("count(differences(current(), other()))") == 2
    assert "2 of its 4 blocks follow another block" in browser.evaluate("byId('summary').textContent")
    browser.press("x")
    assert browser.evaluate("nameOf(state.kept)") == "b0[0]"
    assert "in 1f1b (4 steps later)" in browser.evaluate("byId('facts').innerText")

    browser.evaluate("keep(null); setCursor(8); draw(); 1")
    y = browser.evaluate("paneTop(0) + rowHeight() - 4")
    marked = pixel(browser, browser.evaluate("toX(4.2)"), y)
    browser.evaluate("toggle('marking'); draw(); 1")
    assert marked == [0x1B] * 3
    assert pixel(browser, browser.evaluate("toX(4.2)"), y) != marked


def test_zoom_is_one_for_both_schedules_and_memory(small: Browser) -> None:
    assert small.evaluate("shown().length") == 2
    before = small.evaluate("[paneTop(1), memoryTop(), toX(3)]")
    small.press("+")
    after = small.evaluate("[paneTop(1), memoryTop(), toX(3)]")
    assert after[:2] == before[:2]
    assert after[2] != before[2]
    small.evaluate("compareWith(null); 1")
    assert small.evaluate("shown().length") == 1


def test_it_opens_where_memory_is_tightest_with_the_limit_in_view(small: Browser) -> None:
    assert small.evaluate("heldAt(current().memory[0], state.cursor)") == 2
    assert small.evaluate("memoryScale().limit <= memoryScale().top")
    small.evaluate("draw(); 1")
    height = small.evaluate("laneHeight()")
    # At a time when nothing is held, the lane has the limit's dashes at its top, and nothing else.
    x, top = small.evaluate("[toX(current().makespan + 0.1), memoryTop()]")
    found = {tuple(pixel(small, x + dx, top + dy)) for dx in range(8) for dy in range(int(height) - 1)}
    assert len(found) == 2


def test_a_block_on_several_devices_is_one_bar_with_one_number(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, shared_blocks())
    browser.evaluate("compareWith(null); setCursor(12); draw(); 1")
    colors = []
    for block, start in (("all", 0), ("ends", 4), ("one", 8)):
        assert browser.evaluate(f"data.blocks.findIndex((each) => each.name === '{block}')") >= 0
        x = browser.evaluate(f"toX({start} + 1)")
        between = browser.evaluate("paneTop(0) + rowHeight()")
        colors.append((pixel(browser, x, between), pixel(browser, x, between - 8)))
    assert colors[0][0] == colors[0][1], "the gap between the rows is filled"
    assert colors[2][0] != colors[2][1]
    # Two rows apart, `ends` is joined by a line in the ink's colour.
    x, y = browser.evaluate("[toX(6), paneTop(0) + 1.5 * rowHeight()]")
    assert [0x1B] * 3 in [pixel(browser, x + dx, y) for dx in (-2, -1, 0, 1)]
    # In the other schedule `one` runs meanwhile, on a device between: the line is behind its bar.
    browser.evaluate("compareWith(1); draw(); 1")
    own, joint = browser.evaluate(
        """['one', 'ends'].map((name) => {
          const i = other().position[data.blocks.findIndex((each) => each.name === name)];
          return (other().start[i] + endOf(other(), i)) / 2;
        })"""
    )
    assert own == joint
    y = browser.evaluate("paneTop(1) + 1.2 * rowHeight()")
    assert [0x1B] * 3 not in [pixel(browser, browser.evaluate(f"toX({joint})") + dx, y) for dx in (-1, 0, 1)]
    browser.evaluate("compareWith(null); 1")
    assert browser.evaluate("[0, 1, 2, 3].filter((device) => isLabelled([0, 1, 2, 3], device))") == [0]
    assert browser.evaluate("runsOf([0, 3])") == [[0, 0], [3, 3]]


def test_numbers_are_written_in_all_bars_of_a_width_or_in_none(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, page_document(comparison(2, 12), title="twelve"))
    written: Any = """(() => {
      const texts = [], fill = context.fillText.bind(context);
      context.fillText = (text) => texts.push(text);
      drawLabels(current(), current().rows.map((row) => [0, row.length]), 0);
      context.fillText = fill;
      return texts.map(Number);
    })()"""
    for room, expected in (
        (30, {"forward": True, "backward": True}),
        (9, {"forward": False, "backward": True}),
    ):
        span = f"(canvas.clientWidth - leftEdge()) / {room}"
        browser.evaluate(f"view.from = 0; view.to = {span}; 1")
        numbers = browser.evaluate(written)
        for number in range(12):
            assert numbers.count(number) == 2 * sum(expected.values())


def test_zoomed_out_every_colour_is_one_of_the_legend(browser: Browser, tmp_path: Path) -> None:
    open_page(browser, tmp_path, page_document(comparison(8, 200), title="many"))
    browser.evaluate(
        "compareWith(null); state.cursor = 1e9; view.from = 0; view.to = 20 * longest(); draw(); 1"
    )
    found = browser.evaluate(
        """(() => {
          const top = Math.round(paneTop(0) + rowHeight() / 2), left = leftEdge();
          const wide = Math.ceil(toX(current().makespan)) - left - 1;
          const bytes = context.getImageData(left, top, wide, 1).data, seen = new Map();
          for (let at = 0; at < bytes.length; at += 4) {
            const name = bytes.slice(at, at + 3).join();
            seen.set(name, (seen.get(name) ?? 0) + 1 / wide);
          }
          return [...seen];
        })()"""
    )
    shares = dict(found)
    forward, backward = (
        ",".join(str(round(255 * share)) for share in to_rgb(COLOR_BY_KIND[kind]))
        for kind in (BlockKind.FORWARD, BlockKind.BACKWARD)
    )
    assert shares.keys() <= {forward, backward, "236,236,236"}
    # Each has the area that is its due: three in four of the steps are backward.
    assert shares[backward] / shares[forward] == pytest.approx(3, rel=0.25)


def test_search_finds_blocks_layers_and_operators(small: Browser) -> None:
    def matched(text: str) -> list[str]:
        small.evaluate(f"search({text!r}); 1")
        found: list[str] = small.evaluate("matches().map((i) => nameOf(identify(current(), i)))")
        return sorted(found)

    assert matched("f1") == ["f1[0]", "f1[1]", "f1[2]", "f1[3]"]
    assert matched("f1[2]") == matched("f1 2") == ["f1[2]"]
    assert matched("lm_head") == ["f1[0]", "f1[1]", "f1[2]", "f1[3]"]
    assert matched("relu") == ["b1[0]", "b1[1]", "b1[2]", "b1[3]"]
    assert small.evaluate("[...document.querySelectorAll('#parts tbody tr')].length") == 1
    assert matched("backward") == [f"b{stage}[{number}]" for stage in (0, 1) for number in range(4)]
    assert matched("no such thing") == []
    assert "nothing matches" in small.evaluate("byId('found').textContent")

    small.evaluate("byId('query').focus(); byId('query').value = 'f1'; search('f1'); 1")
    small.press("Enter", "Enter")
    assert small.evaluate("nameOf(state.kept)") == "f1[1]"
    assert small.evaluate("byId('found').textContent") == "2 of 4: f1[1]"


def test_an_area_is_summed_by_kind_and_device_as_counting_says(small: Browser) -> None:
    sums = small.evaluate(
        "sumArea(current(), {from: 0.5, to: 6.5, first: 0, last: 1})"
        ".map(({device, spent, busy}) => [device, spent.get('forward'), spent.get('backward'), busy])"
    )
    starts = small.evaluate(
        "[...current().start].map((start, i) => "
        "[start, endOf(current(), i), data.styles[current().block[i]].label, "
        "blockOf(current(), i).devices[0]])"
    )
    for device, forward, backward, busy in sums:
        by_kind = {"forward": 0.0, "backward": 0.0}
        for start, end, kind, where in starts:
            if where == device:
                by_kind[kind] += max(0.0, min(end, 6.5) - max(start, 0.5))
        assert (forward, backward) == (by_kind["forward"], by_kind["backward"])
        assert busy == forward + backward > 0

    x, y = small.evaluate(
        "((box) => [box.left + toX(0), box.top + middleOf(0)])(canvas.getBoundingClientRect())"
    )
    end = small.evaluate("canvas.getBoundingClientRect().left + toX(8)")
    for kind, at in (("mousePressed", x), ("mouseMoved", end), ("mouseReleased", end)):
        small.mouse(kind, at, y, button="left", buttons=1, modifiers=8, clickCount=1)
    area = small.evaluate("state.area")
    assert area["first"] == area["last"] == 0
    assert area["to"] - area["from"] == pytest.approx(8, abs=0.1)
    assert not small.evaluate("byId('area').hidden")
    small.press("Escape")
    assert small.evaluate("byId('area').hidden")

    small.evaluate("canvas.focus(); 1")
    small.press("Home", "m", ".", ".", "m")
    assert small.evaluate("[state.area.from, state.area.first, state.area.last]") == [0, 0, 1]


def test_sliders_and_the_frontier_choose_among_schedules_searched_beforehand(small: Browser) -> None:
    def choose(limit: int, size: int) -> list[int]:
        small.evaluate(
            f"byId('limit-slider').value = {limit}; byId('size-slider').value = {size}; chooseVariant(); 1"
        )
        found: list[int] = small.evaluate("[current().makespan, current().micro_batches, ...current().limit]")
        return found

    assert small.evaluate("[limitsKnown(), sizesKnown()]") == [[1, 2], [2, 4]]
    assert choose(0, 0) == [16, 2, 1, 1]
    assert choose(0, 1) == [32, 4, 1, 1]
    assert choose(1, 1) == [20, 4, 2, 2]
    assert "proven optimal" in small.evaluate("byId('variant').textContent")
    points = small.evaluate(
        "[...document.querySelectorAll('#frontier .point')].map((each) => each.getAttribute('aria-label'))"
    )
    assert points == ["limit 1: 32 steps, not proven", "limit 2: 20 steps, proven optimal"]
    small.evaluate("document.querySelector('#frontier .point').dispatchEvent(new Event('click')); 1")
    assert small.evaluate("[current().makespan, byId('limit-slider').valueAsNumber]") == [32, 0]
    assert small.evaluate("document.querySelectorAll('#frontier .open').length") == 1


def test_repeated_layers_are_folded_and_open_again(small: Browser) -> None:
    nodes = "document.querySelectorAll('#graph .node').length"
    assert small.evaluate(nodes) == 4
    assert f"h.0 … h.{NUM_LAYERS - 1} × {NUM_LAYERS}" in small.evaluate("byId('graph').textContent")
    # Two edges into the repeated layer, one inside it and one out of it.
    assert small.evaluate("document.querySelectorAll('#graph .link').length") == 4
    small.evaluate("byId('graph-folded').click(); 1")
    assert small.evaluate(nodes) == 2 + 2 * NUM_LAYERS
    assert small.evaluate("document.querySelectorAll('#graph .link').length") == 1 + 3 * NUM_LAYERS
    small.evaluate("document.querySelectorAll('#graph .node')[1].click(); 1")
    told = small.evaluate("byId('graph-node').innerText")
    for each in ("blas, 1.50 ms (measured)", "alternative: tvm, 2.00 ms", "h.0.mlp", "matmul"):
        assert each in told


def test_layers_that_differ_are_not_folded(small: Browser) -> None:
    folded = """((part) => {
      const inputs = (k) => k ? [k - 1] : [];
      const node = (k) => ({number: k, part: k === 1 ? part : 0, layers: [`h.${k}.mlp`], inputs: inputs(k)});
      const nodes = [0, 1, 2].map(node);
      return foldGraph(nodes, true).frames.map(({label}) => label);
    })"""
    assert small.evaluate(f"{folded}(0)") == ["h.0 … h.2 × 3"]
    assert small.evaluate(f"{folded}(1)") == ["h.0", "h.1", "h.2"]


def test_headings_never_overprint_each_other(small: Browser) -> None:
    for width in (390, 768, 1280):
        small.resize(width, 800)
        small.evaluate("compareWith(null); new Promise((done) => requestAnimationFrame(done))")
        boxes = small.evaluate(
            """(() => {
              const boxes = [], fill = context.fillText.bind(context);
              context.fillText = (text, x) => boxes.push([x, x + context.measureText(text).width]);
              for (const each of schedules) drawHeading(each, 0, "black");
              const last = []; boxes.length = 0; drawHeading(current(), 0, "black"); last.push(...boxes);
              context.fillText = fill;
              return last.sort((a, b) => a[0] - b[0]);
            })()"""
        )
        assert boxes
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(boxes))

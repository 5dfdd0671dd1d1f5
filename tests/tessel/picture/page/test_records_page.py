"""The page of records in a browser: it filters, orders and shows the ways of a workload."""

from __future__ import annotations

from pathlib import Path

import pytest
from axe_core import VARIABLE, find_axe, violations
from headless_chromium import Browser

from records import Record, Status
from tessel.jobs.shown.recorded import MAX_WAYS, day_of, recorded_page
from tessel.picture.page.records_page import records_document
from tests.records.strategies import make_measurement, make_workload


def stored() -> list[Record]:
    """A product on two backends, one of them by many settings, a softmax that is slower, and what failed."""
    product, softmax = make_workload(8), make_workload(16, name="nn.softmax", role="stage")
    measured = [
        (product, make_measurement(product, [10.0, 12.0, 14.0], measured_at=1e9)),
        (product, make_measurement(product, [8.0, 8.0, 9.0], backend="blas", measured_at=1.1e9)),
        *(
            (product, make_measurement(product, [20.0 + trial], settings=f"trial={trial}"))
            for trial in range(MAX_WAYS)
        ),
        (softmax, make_measurement(softmax, [2500.0], measured_at=1.2e9)),
        (softmax, make_measurement(softmax, status=Status.ERROR, message="</script><b>no rule")),
    ]
    return [
        Record(record_id=number, workload=workload, measurement=measurement)
        for number, (workload, measurement) in enumerate(measured, start=1)
    ]


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    (tmp_path / "page.html").write_bytes(records_document(recorded_page(stored(), title="ours <1>")))
    browser.resize(1280, 900)
    browser.open(tmp_path / "page.html")
    return browser


def rows(browser: Browser, of: str) -> list[list[str]]:
    found: list[list[str]] = browser.evaluate(
        f"[...document.querySelectorAll('{of} tbody tr')].map((row) => "
        "[...row.cells].map((cell) => cell.textContent))"
    )
    return found


def test_the_best_of_each_workload_is_listed_and_found(page: Browser) -> None:
    assert page.evaluate("document.title") == "ours <1>"
    softmax, product = rows(page, "#workloads")
    assert softmax[:4] == ["nn.softmax", "2.50 ms", "one sample", "tvm"]
    assert product[:6] == ["matmul", "8.0 us", "±3.1%", "blas", "tvm, 1.50 times", str(MAX_WAYS + 2)]
    page.evaluate("byId('query').value = 'BLAS'; byId('query').dispatchEvent(new Event('input')); 1")
    assert [row[0] for row in rows(page, "#workloads")] == ["matmul"]
    assert page.evaluate("byId('found').textContent") == "1 of 2 workloads."


def test_the_ways_of_a_workload_are_in_order_and_the_slowest_are_counted(page: Browser) -> None:
    page.evaluate("document.querySelectorAll('#workloads button')[1].click(); 1")
    ways = rows(page, "#ways")
    assert [way[:3] for way in ways[:2]] == [["blas", "8.0 us", "±3.1%"], ["tvm", "12.0 us", "±8.3%"]]
    assert len(ways) == MAX_WAYS == page.evaluate("document.querySelectorAll('#ways rect').length")
    assert f"{MAX_WAYS} fastest of {MAX_WAYS + 2}" in page.evaluate("byId('ways').innerText")
    assert rows(page, "#tables")[-1] == ["</script><b>no rule", "error", "tvm", "1"]


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1280, True), (2560, False)])
def test_nothing_is_wider_than_the_window_and_axe_finds_nothing(
    page: Browser, width: int, dark: bool
) -> None:
    page.resize(width, 900, dark=dark)
    page.evaluate("document.querySelectorAll('#workloads button')[1].click(); 1")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    script = find_axe()
    if script is None:
        pytest.skip(f"{VARIABLE} names no axe.min.js; .ci/run fetches one from the npm registry")
    assert violations(page, script) == []


def test_dates_that_no_calendar_has_are_not_known() -> None:
    assert [day_of(seconds) for seconds in (0.0, -5.0, 1e300, 1e9)] == [*["not known"] * 3, "2001-09-09"]

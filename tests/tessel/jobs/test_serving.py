"""A page that is served answers for other durations, memory and micro-batches, and nobody else."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import pytest
from tuned_model import tuned_model

from tessel.errors import UsageError
from tessel.handwritten.one_f_one_b import ONE_F_ONE_B
from tessel.jobs.plan import Plan
from tessel.jobs.serving import MAX_TARGET, served
from tessel.jobs.shown.live_page import LivePage
from tessel.pipeline import build_plan
from tessel.search.budget import SearchBudget
from tessel.shapes import vshape


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    page = LivePage(ONE_F_ONE_B.build(vshape(2), micro_batches=3), None, "two <devices>")
    page.warm_up()
    with served(page.answer) as found:
        yield found


def get(address: str, path: str | None = None, **headers: str) -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=300)
    connection.request("GET", parts.path if path is None else path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def asked(address: str, **values: str) -> tuple[dict[str, Any], str]:
    """Return the first schedule of the page, and what is said of the search."""
    fields = {"forward": "1", "backward": "3", "memory": "", "micro_batches": "4", **values}
    status, page = get(address, f"{urlsplit(address).path}?{urlencode(fields)}")
    assert status == 200
    data = re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    said = re.search(r'<p role="status">(.*?)</p></form>', page)
    assert data is not None
    assert said is not None
    return msgspec.json.decode(data[1])["schedules"][0], said[1]


@pytest.mark.parametrize(
    ("values", "makespan"),
    [
        # By hand: the last device is busy from step 1 on with 4 micro-batches of 4 steps, and b0 of the last
        # takes 3 more; with room for one micro-batch a device they run one after the other, 8 steps each.
        ({"memory": "2"}, 20),
        ({"memory": "1"}, 32),
        ({"memory": "1", "micro_batches": "1"}, 8),
        ({"forward": "2,1", "memory": "1", "micro_batches": "1"}, 9),
    ],
)
def test_the_answer_is_the_optimum_of_what_is_asked(
    address: str, values: dict[str, str], makespan: int
) -> None:
    schedule, said = asked(address, **values)
    assert (schedule["makespan"], schedule["optimal"]) == (makespan, True)
    assert "proven optimal" in said


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"micro_batches": "0"}, "at least 1"),
        ({"micro_batches": "9999999"}, "more than the 20000 blocks"),
        ({"memory": "1,2,3"}, "give 1 or 2 whole numbers"),
        ({"memory": "0"}, "device 0"),
        ({"forward": "<b>"}, "&#x27;&lt;b&gt;&#x27;"),
        ({"backward": "9" * 30}, "fewer than 20 digits"),
        ({"backward": "9" * 18}, "a span is a whole number of steps"),
        ({"forward": ""}, "give 1 or 2 whole numbers"),
    ],
)
def test_what_cannot_be_answered_is_said_in_a_sentence(
    address: str, values: dict[str, str], part: str
) -> None:
    schedule, said = asked(address, **values)
    assert said.startswith("Not searched: ")
    assert part in said
    assert schedule["micro_batches"] == 3


def data_of(page: bytes) -> dict[str, Any]:
    data = re.search(rb'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    found: dict[str, Any] = msgspec.json.decode(data[1])
    return found


def test_tighter_limits_are_shown_with_what_they_cost(address: str) -> None:
    fields = {"forward": "1", "backward": "3", "memory": "", "micro_batches": "4"}
    page = data_of(get(address, f"{urlsplit(address).path}?{urlencode(fields)}")[1].encode())
    # By hand, as above: one micro-batch at a time takes 32 steps, two in flight 20.
    assert [(each["memory"], each["makespan"]) for each in page["variants"]] == [(1, 32), (2, 20)]
    for variant in page["variants"]:
        assert max(page["schedules"][variant["schedule"]]["peak_memory"]) <= variant["memory"]


def test_a_plan_is_asked_for_sizes_that_include_its_weights() -> None:
    model = tuned_model([(10.0, 21.0, 11.0, 12.0), (13.0, 27.0, 14.0, 15.0)])
    budget = SearchBudget(0.1)
    tuned = build_plan(model, micro_batches=3, memory_limit_bytes=1 << 30, budget=budget)
    live = LivePage(tuned.schedule, Plan(tuned=tuned), "a plan")
    page = live.answer({})
    assert b'name="memory" value="1GiB"' in page
    fields = dict(re.findall(r'name="(\w+)" value="([^"]*)"', page.decode()))
    again = data_of(live.answer(fields))["schedules"][0]
    assert again["limit"] == [(1 << 30) - held for held in tuned.static_bytes]
    assert fields["forward"] == "0.01,0.013"
    assert "ms a step, at least" in page.decode()
    slow = data_of(live.answer({**fields, "forward": "2e-2"}))
    forwards = [each for each in slow["blocks"] if each["kind"] == "forward"]
    assert {round(each["span"] * tuned.step_us, 6) for each in forwards} == {20.0}
    # The plan's stages are not those of a page on which they take something else.
    assert [len(data_of(each)["tables"]) for each in (page, live.answer(fields))] == [2, 1]
    said_of_times = live.answer({**fields, "forward": "0.01,inf"}).decode()
    assert "give 1 or 2 times" in said_of_times
    held = max(tuned.static_bytes)
    for size, part in (("1", "without a unit"), (f"{held - 1}B", "of a device; give more"), ("1GiB,x", "x")):
        said = re.search(
            r'<p role="status">(.*?)</p></form>', live.answer({**fields, "memory": size}).decode()
        )
        assert said is not None
        assert said[1].startswith("Not searched: ")
        assert part in said[1]


def test_the_address_shows_the_schedule_itself_and_its_fields(address: str) -> None:
    status, page = get(address)
    assert status == 200
    assert '<input name="backward" value="3"' in page
    assert '<input name="micro_batches" value="3"' in page
    assert "two <devices>" not in page


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/{token}", "/{token}x/", "/../{token}/x"])
def test_nothing_is_answered_without_the_token(address: str, path: str) -> None:
    token = urlsplit(address).path.strip("/")
    status, page = get(address, path.format(token=token))
    assert status == 404
    assert "data" not in page


def test_a_page_of_the_web_that_points_its_name_here_reads_nothing(address: str) -> None:
    assert get(address, Host="evil.example")[0] == 404
    assert get(address, Host=f"localhost:{urlsplit(address).port}")[0] == 200


def test_only_this_machine_is_listened_to(address: str) -> None:
    assert urlsplit(address).hostname == "127.0.0.1"
    with served(lambda query: b"") as other:
        assert urlsplit(other).path != urlsplit(address).path


def test_a_target_that_no_form_makes_is_refused(address: str) -> None:
    assert get(address, urlsplit(address).path + "?forward=" + "1" * MAX_TARGET)[0] == 414


def test_a_port_that_is_taken_is_named(address: str) -> None:
    port = urlsplit(address).port
    with (
        pytest.raises(UsageError, match=f"--port {port} cannot be listened on"),
        served(lambda query: b"", port=port or 0),
    ):
        pass

"""The page in a real headless Chromium: it draws, obeys the keyboard, and stays small with many blocks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tessel.comparison import Comparison, compare_schedules
from tessel.handwritten import HANDWRITTEN
from tessel.picture import page_document
from tessel.shapes import vshape

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PROBE = """<script>
(function probe() {
  if (document.body.dataset.ready !== "yes") return setTimeout(probe, 20);
  const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
  const note = (name, value) => { document.body.dataset[name] = value; };
  draw(); // without a screen, the frame asked for may never come
  const { width, height } = canvas;
  note("painted", context.getImageData(0, 0, width, height).data.some((byte) => byte > 0));
  note("count", current().count);
  keep(current().rows[0][0]); press("n");
  note("followed", data.blocks[current().block[state.kept]].name);
  press("p");
  note("back", data.blocks[current().block[state.kept]].name);
  press("Escape");
  note("kept", state.kept);
  for (let i = 0; i < 20; i++) press(".");
  note("cursor", state.cursor > 0);
  note("memory", document.querySelector("#memory-bars .value").textContent);
  press("+");
  note("zoomed", view.to - view.from < longest());
  press("2");
  note("second", document.getElementById("summary").textContent);
})();
</script></body>"""


def comparison(devices: int, micro_batches: int) -> Comparison:
    rule = next(rule for rule in HANDWRITTEN if rule.name == "1f1b")
    return compare_schedules(rule.build(vshape(devices), micro_batches=micro_batches, memory=None))


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the path")
def test_the_page_draws_and_obeys_the_keyboard(tmp_path: Path) -> None:
    schedules = comparison(2, 4)
    page = page_document(schedules, title="two devices").decode()
    (tmp_path / "page.html").write_text(page.replace("</body>", PROBE))

    noted = dict(re.findall(r'data-(\w+)="([^"]*)"', _dump(tmp_path)))

    assert noted["painted"] == noted["cursor"] == noted["zoomed"] == "true"
    assert noted["count"] == str(len(schedules.schedules[0][1].starts))
    assert (noted["followed"], noted["back"], noted["kept"]) == ("f1", "f0", "null")
    assert noted["memory"].endswith("of at most 2")
    second = next(row.schedule for row in schedules.rows if row.schedule != "searched")
    assert noted["second"].startswith(f"{second}: makespan")


def test_a_block_takes_a_few_bytes_of_the_page() -> None:
    schedules = comparison(16, 256)
    blocks = sum(len(schedule.starts) for _, schedule in schedules.schedules)
    empty = page_document(comparison(16, 1), title="")

    assert len(page_document(schedules, title="")) - len(empty) < 8 * blocks


def _dump(folder: Path) -> str:
    assert CHROMIUM is not None
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += ["--virtual-time-budget=5000", "--dump-dom", (folder / "page.html").as_uri()]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    except subprocess.TimeoutExpired:
        pytest.skip("this machine's chromium does not end within 60 s (as where it may reserve no memory)")

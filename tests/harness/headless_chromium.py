"""A real headless Chromium, driven over its DevTools protocol on a pipe: how tests use the page."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
WHY_NONE = "TESSEL_WHY_NO_CHROMIUM"
"""Environment variable in which `.ci/run` says why it could not install one."""


class ChromiumUnusableError(Exception):
    """This machine's Chromium does not start or does not answer."""


class Browser:
    """One page of a headless Chromium.

    Source: the Chrome DevTools Protocol; over a pipe, messages are JSON that ends in a zero byte.
    """

    def __init__(self, to_browser: int, from_browser: int, timeout_s: float) -> None:
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        self._call("Performance.enable", {"timeDomain": "threadTicks"})

    def open(self, path: Path) -> None:
        """Open a file and wait until the page says that it is ready."""
        self._call("Page.navigate", {"url": path.as_uri()})
        deadline = time.monotonic() + self._timeout_s
        while self.evaluate("location.href") != path.as_uri():
            if time.monotonic() > deadline:
                raise ChromiumUnusableError(f"{path} was not opened within {self._timeout_s} s")
            time.sleep(0.01)
        self.evaluate(
            "new Promise((done) => (function look() {"
            " document.body?.dataset.ready ? done() : setTimeout(look, 5); })())"
        )

    def visit(self, address: str) -> None:
        """Open an address and wait until it is loaded; for pages that do not say when they are ready."""
        self._call("Page.navigate", {"url": address})
        loaded = "location.href !== 'about:blank' && document.readyState === 'complete'"
        deadline = time.monotonic() + self._timeout_s
        while not self.evaluate(loaded):
            if time.monotonic() > deadline:
                raise ChromiumUnusableError(f"{address} was not opened within {self._timeout_s} s")
            time.sleep(0.01)

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, of what it promises if it is a promise."""
        found = self._call(
            "Runtime.evaluate", {"expression": expression, "awaitPromise": True, "returnByValue": True}
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def cpu_ms(self) -> float:
        """Return the processor time that the page's main thread has spent on tasks, in milliseconds.

        Unlike the wall's time, it says on a busy machine too what a frame costs.
        """
        found = self._call("Performance.getMetrics", {})["metrics"]
        return 1000 * next(float(each["value"]) for each in found if each["name"] == "TaskDuration")

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press and let go each key."""
        for key in keys:
            event = {"key": key, "modifiers": 8 if shift else 0, **({"text": key} if len(key) == 1 else {})}
            self._call("Input.dispatchKeyEvent", {"type": "keyDown", **event})
            self._call("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """Move, press, release or turn the wheel of the mouse (`mouseMoved`, `mousePressed`, …)."""
        self._call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more})

    def click(self, x: float, y: float) -> None:
        """Click at a point of the page."""
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def screenshot(self, of: str | None = None) -> bytes:
        """Return what is seen, or the first element that a selector names, as a PNG."""
        if of is None:
            return base64.b64decode(self._call("Page.captureScreenshot", {"format": "png"})["data"])
        # In a window as tall as the page, which then has no scroll bar beside which lines break elsewhere.
        width, height, tall = self.evaluate(
            "[innerWidth, innerHeight, document.documentElement.scrollHeight + innerHeight]"
        )
        self._set_size(width, tall)
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        corners = self.evaluate(
            f"((box) => [box.x + scrollX, box.y + scrollY, box.width, box.height])"
            f"(document.querySelector({of!r}).getBoundingClientRect())"
        )
        clip = dict(zip(("x", "y", "width", "height"), corners, strict=True))
        asked = {"format": "png", "clip": {**clip, "scale": 1}}
        taken = base64.b64decode(self._call("Page.captureScreenshot", asked)["data"])
        self._set_size(width, height)
        return taken

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page a size in CSS pixels, and the preference for a light or dark scheme."""
        self._set_size(width, height)
        self.emulate(dark=dark)

    def _set_size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._call("Emulation.setDeviceMetricsOverride", metrics)

    def emulate(
        self, *, dark: bool = False, reduced_motion: bool = False, forced_colors: bool = False
    ) -> None:
        """Say what the reader prefers; what is left out is not asked for."""
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if reduced_motion else "",
            "forced-colors": "active" if forced_colors else "none",
        }
        named = [{"name": name, "value": value} for name, value in features.items()]
        self._call("Emulation.setEmulatedMedia", {"features": named})

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next_message()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _next_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout_s
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from_browser], [], [], left)[0]:
                raise ChromiumUnusableError(f"no answer within {self._timeout_s} s")
            piece = os.read(self._from_browser, 1 << 20)
            if not piece:
                raise ChromiumUnusableError("the browser went away")
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def open_browser(profile: Path, *, timeout_s: float = 60.0) -> Iterator[Browser]:
    """Start a Chromium with a new profile; it is ended when the body is left.

    Raises:
        ChromiumUnusableError: it does not start or does not answer.
    """
    if CHROMIUM is None:
        why = os.environ.get(WHY_NONE, "`apt-get install chromium` brings one to Debian")
        raise ChromiumUnusableError(f"none of {', '.join(NAMES)} is on the path; {why}")
    for_browser, to_browser = os.pipe()
    from_browser, by_browser = os.pipe()
    # The browser reads from descriptor 3 and writes to 4; a shell moves the pipes there.
    script = f'exec "$@" 3<&{for_browser} 4>&{by_browser}'
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"]
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", CHROMIUM, *flags, f"--user-data-dir={profile}", "about:blank"],
        pass_fds=(for_browser, by_browser),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(for_browser)
    os.close(by_browser)
    try:
        yield Browser(to_browser, from_browser, timeout_s)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(to_browser)
        os.close(from_browser)

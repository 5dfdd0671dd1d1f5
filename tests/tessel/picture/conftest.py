"""One headless Chromium for all tests of the page in a module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from headless_chromium import Browser, ChromiumUnusableError, open_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        try:
            with open_browser(Path(profile)) as opened:
                yield opened
        except ChromiumUnusableError as error:
            pytest.skip(f"this machine's chromium: {error}")

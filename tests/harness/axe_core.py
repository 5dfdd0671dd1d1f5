"""The accessibility rules of axe-core, for tests of the page: found, never fetched, here.

`.ci/run` fetches a pinned release from the npm registry and names it in `TESSEL_AXE_CORE`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headless_chromium import Browser

VARIABLE = "TESSEL_AXE_CORE"
"""Environment variable that holds the path of `axe.min.js`."""


def find_axe() -> Path | None:
    """Return the script, or None where there is none."""
    named = os.environ.get(VARIABLE, "")
    return Path(named) if named and Path(named).is_file() else None


def violations(browser: Browser, script: Path) -> list[dict[str, Any]]:
    """Return the rules that the open page breaks, each with the elements that break it."""
    browser.evaluate(f"{script.read_text()};1")
    found: list[dict[str, Any]] = browser.evaluate(
        "axe.run().then((found) => found.violations.map((rule) => "
        "({rule: rule.id, help: rule.help, where: rule.nodes.map((node) => node.target.join(' '))})))"
    )
    return found

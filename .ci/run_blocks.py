"""Run the `sh` and `python` blocks of Markdown files, each file from top to bottom.

Blocks of other languages (`text`, `json`, …) are shown, not run. Blocks run in the repository's root with the
virtual environment first on the path. `make test` is what calls for this script, so it is not run again.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
ALREADY_RUN = {"make test"}
TIMEOUT_S = 1200


def main(paths: list[str]) -> int:
    """Run the blocks of the files; return 1 where any of them failed."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    num_run = num_failed = 0
    for path in paths:
        for token in MarkdownIt().parse((ROOT / path).read_text()):
            language = token.info.split(" ")[0] if token.type == "fence" else ""
            if language not in COMMANDS or token.content.strip() in ALREADY_RUN:
                continue
            line = (token.map or [0])[0] + 1
            started = time.monotonic()
            done = subprocess.run(
                [*COMMANDS[language], token.content],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=False,
            )
            num_run += 1
            num_failed += done.returncode != 0
            state = "ok" if done.returncode == 0 else f"exit status {done.returncode}"
            print(f"{path}:{line}: {state} ({time.monotonic() - started:.1f} s)", flush=True)
    print(f"blocks: {num_run - num_failed} passed, {num_failed} failed")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

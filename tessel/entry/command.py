"""The entry of the `tessel` command: Ctrl-C is handled before anything else is imported."""

from __future__ import annotations

import importlib
import sys

try:
    from tessel.progress import interrupts

    interrupts.install()
except KeyboardInterrupt:
    # Before the handler stands there is nothing to keep and nothing to say it with but this.
    import os

    os.write(2, b"tessel: interrupted\n")
    os._exit(130)

EXIT_FAILED = 1


def run() -> None:
    """Run the command with the process's arguments and exit with its status."""
    try:
        # By name: Ctrl-C is to be handled first, and the commands stand above this package.
        problem = importlib.import_module("tessel.entry.own_packages").hidden_package()
        if problem is not None:
            sys.stderr.write(f"tessel: {problem}\n")
            sys.exit(EXIT_FAILED)
        importlib.import_module("scripts.main").run()
    except KeyboardInterrupt:  # in the moment in which a command ends
        interrupts.leave()

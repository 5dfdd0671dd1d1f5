"""End a process with the one that started it, which may be killed without a chance to say so.

Checked in tests/tuner/test_parent_watch.py.
"""

from __future__ import annotations

import os
import signal
import threading
import time

_PERIOD_S = 0.5


def end_with_parent(parent: int) -> None:
    """Have this process killed once its parent has exited, even while a program hangs in it.

    Args:
        parent: identifier of the process that started this one; where it is no longer the parent, it has
            exited already.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PERIOD_S)
    os.kill(os.getpid(), signal.SIGKILL)

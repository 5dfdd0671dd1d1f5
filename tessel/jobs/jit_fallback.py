"""A search without compiled code begins at once, uncompiled, while another process compiles for it.

Compiling takes a minute or two, once per machine. Meanwhile the same functions run as they are written, a
hundred times slower, so that hand-written rules and first searched answers are there within seconds; the
search goes on compiled as soon as it can, with the answers of every other machine where its work is limited
(`tessel.search.jit.compiled`). A limit on time holds: `tessel.jobs.search_thread` ends the search in time.
Where no folder can be written, every search stays uncompiled.
Checked in tests/tessel/search/jit/test_cache.py.
"""

from __future__ import annotations

import os

from tessel.progress import messages
from tessel.search.jit.cache import compile_beside, is_compiled, is_kept


def compile_if_needed() -> None:
    """Where nothing is compiled, have that done beside the search, and say so."""
    if "NUMBA_DISABLE_JIT" in os.environ or is_compiled():
        return
    if not is_kept():
        messages.note(
            "the compiled search cannot be kept, as neither the installation nor the home folder can be "
            "written: searches run uncompiled, a hundred times slower; set NUMBA_CACHE_DIR to a folder that "
            "can be written"
        )
        return
    compile_beside()
    messages.note(
        "first search on this machine: it begins at once with hand-written rules, a hundred times slower "
        "than later ones, and goes on at full speed once it is compiled beside, in a minute or two"
    )

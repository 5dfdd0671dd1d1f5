"""Compile the hot loops of the searches, once per machine.

A function marked `@compiled` is plain Python over numpy arrays and numbers. Numba compiles it at its first
call and keeps the machine code beside the module (or in the user's cache folder), so that later processes
load it in milliseconds. With `NUMBA_DISABLE_JIT=1` in the environment, or where no folder can be written, the
same functions run as they are written, slowly, with the same answers. Compiled code lets other threads run,
such as the one that waits for Ctrl-C. Checked in tests/tessel/search/repetend/test_period_pure_python.py and
tests/tessel/search/jit/test_compiled.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

from tessel.search.budget import stopped_clock
from tessel.search.jit.cache import is_kept

logger = logging.getLogger(__name__)

NOT_KEPT = (
    "machine code cannot be kept, as neither the installation nor the home folder can be written: searches "
    "run uncompiled, some hundred times slower; set NUMBA_CACHE_DIR to a folder that can be written"
)

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def compiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return the function compiled by numba, its machine code kept between processes."""
    found = _compiled_and_kept(function, nogil=True, no_cfunc_wrapper=True)
    return found if found is function else _Interruptible(found)


class _Interruptible(Generic[_Arguments, _Result]):
    """A compiled function that says KeyboardInterrupt where Ctrl-C came while it ran.

    Python raises that when machine code hands over its result, and then complains, with a SystemError, about
    a result beside an exception. At its first call it is compiled or loaded, while the clock of searches
    stands still.
    """

    def __init__(self, function: Callable[_Arguments, _Result]) -> None:
        self.function = function
        self._is_ready = False
        functools.update_wrapper(self, function)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not self._is_ready:
            self._make_ready(args)
        try:
            return self.function(*args, **kwargs)
        except SystemError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise

    def _make_ready(self, args: tuple[object, ...]) -> None:
        with stopped_clock():
            # numba's dispatcher is untyped; its `compile` loads what is kept for these types
            cast(numba.core.dispatcher.Dispatcher, self.function).compile(tuple(map(numba.typeof, args)))
        self._is_ready = True

    @property
    def _numba_type_(self) -> object:
        """What numba takes it for where compiled code calls it: the function that it compiled."""
        return numba.typeof(self.function)


def compiled_leaf(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return the same for a function that allocates no arrays.

    It is called from compiled functions only, and compiled without reference counts: a call with a tuple of
    twenty arrays would otherwise spend most of its time counting (measured: 0.4 ms instead of 10 µs for a
    round of `tessel.search.makespan.tabu_search`).
    """
    return _compiled_and_kept(function, _nrt=False, no_cfunc_wrapper=True, no_cpython_wrapper=True)


@functools.cache
def _can_be_kept() -> bool:
    if not is_kept():
        logger.warning(NOT_KEPT)
        return False
    return True


def _compiled_and_kept(
    function: Callable[_Arguments, _Result], **options: bool
) -> Callable[_Arguments, _Result]:
    """Return the function as numba compiles it later; as it is where numba is disabled or nothing is kept."""
    if numba.config.DISABLE_JIT or not _can_be_kept():
        return function
    dispatcher = numba.njit(**options)(function)
    with contextlib.suppress(RuntimeError):  # numba finds no folder; the function is compiled in each process
        dispatcher._cache = _KeptCode(function)
    # numba's decorator is untyped; what it returns is called like the function it was given
    return cast(Callable[_Arguments, _Result], dispatcher)


class _KeptCode(FunctionCache):  # type: ignore[misc]  # numba is untyped
    """The files in which numba keeps one function; what cannot be read there is compiled again.

    Files are cut by a full disk or a power cut, and emptied by tools that synchronise folders. Unpickling
    them raises almost any error, of which `EOFError` would even be taken for an interrupt.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:  # numba's types
        """Return the kept code, or None where there is none to be read."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:
            logger.info("%s is compiled again, as its kept code cannot be read: %r", self._name, error)
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:  # numba's types
        """Keep the code; without room for it, it serves this process alone."""
        try:
            super().save_overload(sig, data)
        except Exception as error:
            logger.info("the compiled code of %s is not kept: %r", self._name, error)

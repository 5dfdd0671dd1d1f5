"""Compile the hot loops of the searches, once per machine.

A function marked `@compiled` is plain Python over numpy arrays and numbers. Numba compiles it at its first
call and keeps the machine code beside the module (or in the user's cache folder), so that later processes
load it in milliseconds. With `NUMBA_DISABLE_JIT=1` in the environment, or where no folder can be written, the
same functions run as they are written, slowly, with the same answers. So they do while another process
compiles them, if `tessel.search.jit.cache` was asked for that: a call that is overtaken by the compiler has
its arrays restored and begins again in machine code, so that no answer depends on when that happens.
Compiled code lets other threads run, such as the one that waits for Ctrl-C. Checked in
tests/tessel/search/repetend/test_period_pure_python.py and tests/tessel/search/jit/test_compiled.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import FunctionCache

from tessel.search.budget import stopped_clock
from tessel.search.jit.cache import is_kept, is_waiting

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
    return found if found is function else _Compiled(function, found)


def compiled_leaf(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return the same for a function that allocates no arrays.

    It is called from compiled functions only, and compiled without reference counts: a call with a tuple of
    twenty arrays would otherwise spend most of its time counting (measured: 0.4 ms instead of 10 µs for a
    round of `tessel.search.makespan.tabu_search`).
    """
    found = _compiled_and_kept(function, _nrt=False, no_cfunc_wrapper=True, no_cpython_wrapper=True)
    return found if found is function else _CompiledLeaf(function, found)


class _Overtaken(BaseException):
    """The machine code is there, and a call that runs uncompiled is to begin again in it."""


class _Uncompiled(threading.local):
    """Whether this thread is in a call that runs uncompiled."""

    is_under_way = False


_uncompiled = _Uncompiled()


class _CompiledLeaf(Generic[_Arguments, _Result]):
    """A function that compiled code calls as machine code, and uncompiled code as it is written."""

    def __init__(
        self, function: Callable[_Arguments, _Result], machine_code: Callable[_Arguments, _Result]
    ) -> None:
        self.function = machine_code
        self._as_written = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if _uncompiled.is_under_way and not is_waiting():
            raise _Overtaken
        return self._as_written(*args, **kwargs)

    @property
    def _numba_type_(self) -> object:
        """What numba takes it for where compiled code calls it: the function that it compiled."""
        return numba.typeof(self.function)


class _Compiled(_CompiledLeaf[_Arguments, _Result]):
    """A compiled function that says KeyboardInterrupt where Ctrl-C came while it ran.

    Python raises that when machine code hands over its result, and then complains, with a SystemError, about
    a result beside an exception. At its first call it is compiled or loaded, while the clock of searches
    stands still; or it runs uncompiled till another process has compiled it.
    """

    _is_ready = False

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if _uncompiled.is_under_way:
            return super().__call__(*args, **kwargs)
        if not self._is_ready:
            if is_waiting():
                with contextlib.suppress(_Overtaken):
                    return self._call_uncompiled(*args, **kwargs)
            self._make_ready(args)
        try:
            return self.function(*args, **kwargs)
        except SystemError as error:
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            raise

    def _call_uncompiled(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        kept = [(array, array.copy()) for array in _arrays_of((*args, *kwargs.values()))]
        _uncompiled.is_under_way = True
        try:
            return self._as_written(*args, **kwargs)
        except _Overtaken:
            for array, content in kept:
                array[...] = content
            raise
        finally:
            _uncompiled.is_under_way = False

    def _make_ready(self, args: tuple[object, ...]) -> None:
        with stopped_clock():
            # numba's dispatcher is untyped; its `compile` loads what is kept for these types
            cast(numba.core.dispatcher.Dispatcher, self.function).compile(tuple(map(numba.typeof, args)))
        self._is_ready = True


def _arrays_of(values: Iterable[object]) -> Iterator[np.ndarray]:
    """Yield the arrays among arguments, and within tuples of them, that a call can write to."""
    for value in values:
        if isinstance(value, np.ndarray):
            if value.flags.writeable:
                yield value
        elif isinstance(value, tuple):
            yield from _arrays_of(value)


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

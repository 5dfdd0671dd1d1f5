"""Compile the hot loops of the searches, once per machine.

A function marked `@compiled` is plain Python over numpy arrays and numbers. Numba compiles it at its first
call and keeps the machine code beside the module (or in the user's cache folder), so that later processes
load it in milliseconds. With `NUMBA_DISABLE_JIT=1` in the environment the same functions run as they are
written, slowly, with the same answers. Compiled code lets other threads run, such as the one that waits for
Ctrl-C. Checked in tests/tessel/search/repetend/test_period_pure_python.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, cast

import numba

from tessel.search.budget import stopped_clock

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def compiled(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return the function compiled by numba, its machine code kept between processes."""
    # numba's decorator is untyped; what it returns is called like the function it was given
    compile_later = numba.njit(cache=True, nogil=True, no_cfunc_wrapper=True)
    found = cast(Callable[_Arguments, _Result], compile_later(function))
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
    # as above
    return cast(
        Callable[_Arguments, _Result],
        numba.njit(cache=True, _nrt=False, no_cfunc_wrapper=True, no_cpython_wrapper=True)(function),
    )

"""The one way this package compiles functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from taot_planning.kernel_sources import imported_digest

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compiles a function to machine code that gives the same bits on every CPU.

    Ranks plan for themselves and must agree to the last bit. So kernels are plain scalar loops: sums run in
    the order they are written in, without `fastmath` nothing is reordered or fused, and nothing calls libm
    or NumPy's float reductions, whose results depend on the CPU. They release the GIL, and are cached on
    disk.

    Where no place for the cache can be written, each process compiles for itself.

    A compiled kernel holds what it calls, also of other files, while numba's disk cache looks at the kernel's own file
    alone. So what is on disk is marked with all that the file imports, and not used after any of it has changed.
    """
    return _compile(function, nogil=True)


def brief_kernel(function: _Function) -> _Function:
    """As `kernel`, but holds the GIL: for microseconds between others, after which it would have to be waited for."""
    return _compile(function, nogil=False)


def _compile(function: _Function, **flags: bool) -> _Function:
    njit: Any = numba.njit  # its types leave out a flag that numba has for itself
    try:
        compiled = njit(cache=True, **flags)(function)
        if compiled is not function:  # as it is where NUMBA_DISABLE_JIT is set
            _mark(compiled, imported_digest(function.__module__))
    except (RuntimeError, AttributeError):  # no place for a cache, or numba has another one than `_mark` knows
        compiled = njit(**flags)(function)
    return cast(_Function, compiled)


def inner_kernel(function: _Function) -> _Function:
    """Compiles what only kernels call and what makes no arrays, so that it does not count references to arrays.

    A kernel counts each array it is given in and out, atomically: for a state of twenty arrays that takes longer than
    a short loop over one of them. Whoever calls holds them anyway. What would have to make an array does not compile.
    """
    return _compile(function, nogil=True, _nrt=False)


def _mark(compiled: Any, digest: str) -> None:
    """Adds to what a kernel on disk must have been compiled of; numba has no public way."""
    index = compiled._cache._cache_file
    index._source_stamp = index._source_stamp, digest

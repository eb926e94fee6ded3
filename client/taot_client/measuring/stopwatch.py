"""How long work takes that a rank gives to its device, without ever waiting for it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol

import torch

_MAX_PENDING = 512
"""Pairs of events kept until the device has passed them; what is older is left out of the times."""


class Timed(NamedTuple):
    """What a stopwatch has measured since it was made."""

    microseconds: int
    """Time of the work."""

    tokens: int
    """Tokens that the work was for."""


class Stopwatch(Protocol):
    """Adds up the times of pieces of work."""

    def running(self, *, tokens: int = 0) -> AbstractContextManager[None]:
        """Times what is done inside, which is for so many tokens."""

    def total(self) -> Timed:
        """What has been measured so far. Never waits."""


class _Lap(AbstractContextManager[None]):
    """A piece of work under way; a generator would take as long as some of the work does."""

    def __init__(self, stopwatch: HostStopwatch, tokens: int) -> None:
        self._stopwatch = stopwatch
        self._tokens = tokens
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = self._stopwatch.now()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._stopwatch.add(self._stopwatch.now() - self._started, tokens=self._tokens)


class HostStopwatch:
    """For work that is done when the call returns."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._seconds = 0.0
        self._tokens = 0

    def running(self, *, tokens: int = 0) -> AbstractContextManager[None]:
        """See `Stopwatch`."""
        return _Lap(self, tokens)

    def add(self, seconds: float, *, tokens: int) -> None:
        """Adds work that has ended well."""
        self._seconds += seconds
        self._tokens += tokens

    def total(self) -> Timed:
        """See `Stopwatch`."""
        return Timed(microseconds=round(self._seconds * 1e6), tokens=self._tokens)


class CudaStopwatch:
    """For work that the current stream does later: events on the stream, read once the device has passed them."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque(maxlen=_MAX_PENDING)
        self._microseconds = 0.0
        self._tokens = 0

    @contextmanager
    def running(self, *, tokens: int = 0) -> Iterator[None]:
        """See `Stopwatch`."""
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        yield
        ended.record()
        self._pending.append((began, ended, tokens))

    def total(self) -> Timed:
        """See `Stopwatch`."""
        while self._pending and self._pending[0][1].query():
            began, ended, tokens = self._pending.popleft()
            self._microseconds += began.elapsed_time(ended) * 1e3
            self._tokens += tokens
        return Timed(microseconds=round(self._microseconds), tokens=self._tokens)

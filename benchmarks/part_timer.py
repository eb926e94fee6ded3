"""Says which part of a program takes how long, by timers around functions."""

from __future__ import annotations

import functools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Place = tuple[Any, str]
"""A module or class, and the name of the function in it."""


class PartTimer:
    """Notes the own time of every call of each part, without the parts that it calls; for one thread."""

    def __init__(self) -> None:
        self.own_seconds: defaultdict[str, list[float]] = defaultdict(list)
        """Own time of each call, by part."""

        self._inner_seconds: list[float] = []
        """Of each part under way: time spent in other parts, their timers included."""

    def clear(self) -> None:
        """Starts again from nothing."""
        self.own_seconds.clear()

    def typical_seconds(self, part: str) -> float:
        """Time of all calls of a part, had each taken the median: calls that were interrupted do not count."""
        own = self.own_seconds[part]
        return statistics.median(own) * len(own) if own else 0.0

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, with its time counted as that of `part`."""
        own_seconds, inner_seconds, now = self.own_seconds, self._inner_seconds, time.perf_counter

        @functools.wraps(function, updated=())
        def timed_function(*args: Any, **kwargs: Any) -> Any:
            entered = now()
            inner_seconds.append(0.0)
            started = now()
            try:
                return function(*args, **kwargs)
            finally:
                ended = now()
                own_seconds[part].append(ended - started - inner_seconds.pop())
                if inner_seconds:
                    inner_seconds[-1] += now() - entered

        return timed_function

    @contextmanager
    def timing(self, parts: dict[str, Sequence[Place]]) -> Iterator[None]:
        """Puts timers around the functions of each part, and takes them away again."""
        before = []
        try:
            for part, places in parts.items():
                for owner, name in places:
                    function = getattr(owner, name)
                    before.append((owner, name, function))
                    setattr(owner, name, self.timed(function, part))
            yield
        finally:
            for owner, name, function in reversed(before):
                setattr(owner, name, function)

"""Tells readers of the live page which sessions have changed.

Lives on the event loop. However slow a reader is, what waits for it is a set of open sessions: it reads their newest
state, and misses the states between.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

MAX_READERS = 64
"""Readers at a time: every open page is one."""


class TooManyReadersError(RuntimeError):
    """No room for another reader."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What has changed since a reader looked last; all empty: nothing, within the time that it waited."""

    session_ids: frozenset[str] = frozenset()
    """Sessions with another state."""

    has_other_sessions: bool = False
    """Whether sessions were opened or have ended."""

    is_end: bool = False
    """Whether nothing will change any more: the planner is shutting down."""


class ChangeFeed:
    """Collects changes for any number of readers."""

    def __init__(self) -> None:
        self._readers: set[ChangeReader] = set()
        self._is_ended = False

    @property
    def num_readers(self) -> int:
        """Readers at present."""
        return len(self._readers)

    def note_session(self, session_id: str) -> None:
        """Notes that an open session has another state."""
        for reader in self._readers:
            reader.add(session_id)

    def note_sessions(self) -> None:
        """Notes that sessions were opened or have ended."""
        for reader in self._readers:
            reader.add_all()

    def end(self) -> None:
        """Ends all readers, now and later."""
        self._is_ended = True
        for reader in self._readers:
            reader.end()

    def subscribe(self) -> ChangeReader:
        """Starts to read; `close` must follow. The first changes say that there are other sessions.

        Raises:
            TooManyReadersError: when there is no room.
        """
        if len(self._readers) >= MAX_READERS:
            raise TooManyReadersError(f"this planner has {MAX_READERS} readers of events already: close a page")
        reader = ChangeReader(self)
        reader.add_all()
        if self._is_ended:
            reader.end()
        self._readers.add(reader)
        return reader

    def unsubscribe(self, reader: ChangeReader) -> None:
        """Called by a reader that closes."""
        self._readers.discard(reader)


class ChangeReader:
    """What one reader has not read yet."""

    def __init__(self, feed: ChangeFeed) -> None:
        self._feed = feed
        self._changed = asyncio.Event()
        self._session_ids: set[str] = set()
        self._has_other_sessions = False
        self._is_end = False

    def add(self, session_id: str) -> None:
        """Called by the feed."""
        self._session_ids.add(session_id)
        self._changed.set()

    def add_all(self) -> None:
        """Called by the feed: who reads the list of sessions has read each of them."""
        self._session_ids.clear()
        self._has_other_sessions = True
        self._changed.set()

    def end(self) -> None:
        """Called by the feed."""
        self._is_end = True
        self._changed.set()

    def close(self) -> None:
        """Stops to read."""
        self._feed.unsubscribe(self)

    async def next_changes(self, *, timeout_seconds: float) -> Changes:
        """Waits for changes, for `timeout_seconds` at most, and takes them."""
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_seconds)
        except asyncio.TimeoutError:
            return Changes()
        changes = Changes(
            session_ids=frozenset(self._session_ids),
            has_other_sessions=self._has_other_sessions,
            is_end=self._is_end,
        )
        self._session_ids.clear()
        self._has_other_sessions = False
        if not self._is_end:
            self._changed.clear()
        return changes

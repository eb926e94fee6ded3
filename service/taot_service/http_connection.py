"""One connection of the HTTP side: how long it may take to ask, and who gives way when there are too many.

uvicorn limits neither: it waits for ever for the rest of a request, and beyond its limit of connections it would refuse
probes too.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from taot_service.change_feed import MAX_READERS

REQUEST_SECONDS = 10.0
"""How long a whole request may take to arrive."""

MAX_CONNECTIONS = 4 * MAX_READERS
"""Connections at a time. Beyond it the oldest that asks for nothing gives way, so that probes get through."""

MAX_HEADER_BYTES = 2**15
"""Bytes of all headers of a request."""


class HttpConnection(H11Protocol):
    """Uvicorn's connection, with an end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._end_of_patience: asyncio.TimerHandle | None = None

    @property
    def is_silent(self) -> bool:
        """Whether it owes the rest of a request, or all of it."""
        return self._end_of_patience is not None

    @property
    def patience_ends(self) -> float:
        """When the request must have arrived, by the clock of the loop; never where there is one."""
        return float("inf") if self._end_of_patience is None else self._end_of_patience.when()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called by the loop; another connection may have to give way."""
        super().connection_made(transport)
        self._follow_request()
        if len(self.connections) > MAX_CONNECTIONS:
            others = (each for each in self.connections if isinstance(each, HttpConnection) and each is not self)
            oldest = min(others, key=lambda each: each.patience_ends)
            (oldest if oldest.is_silent else self).give_up()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        super().data_received(data)
        self._follow_request()

    def on_response_complete(self) -> None:
        """Called by uvicorn; the next request may follow."""
        super().on_response_complete()
        self._follow_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        super().connection_lost(exc)
        self._stop_timer()

    def give_up(self) -> None:
        """Closes at once."""
        self._stop_timer()
        self.connections.discard(self)
        self.transport.abort()

    def _follow_request(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()
        elif self._end_of_patience is None:
            self._end_of_patience = self.loop.call_later(REQUEST_SECONDS, self.give_up)

    def _stop_timer(self) -> None:
        if self._end_of_patience is not None:
            self._end_of_patience.cancel()
            self._end_of_patience = None

"""Ends calls that are opened and whose request does not come: they would take the room of others for good.

gRPC bounds connections that say nothing, but no calls. Every call looks for its handler in the task that then waits for
the request and handles it: a clock is set there, and stopped when the first bytes of a request are handed on.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import grpc

REQUEST_SECONDS = 10.0
"""How long the first request of a call may take to arrive: as long as one over HTTP."""

_CLOCK: ContextVar[asyncio.TimerHandle | None] = ContextVar("taot_request_clock", default=None)


class TimedHandlers(grpc.GenericRpcHandler):
    """Handlers whose calls end by themselves unless `note_request` is called in time."""

    def __init__(self, handlers: grpc.GenericRpcHandler) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Called by gRPC in the task of each call; cancelling that task ends the call."""
        handler = self._handlers.service(handler_call_details)
        task = asyncio.current_task()
        if handler is not None and task is not None:
            _CLOCK.set(asyncio.get_running_loop().call_later(REQUEST_SECONDS, task.cancel))
        return handler


def note_request() -> None:
    """Stops the clock of the call at hand, whose request has arrived."""
    clock = _CLOCK.get()
    if clock is not None:
        clock.cancel()

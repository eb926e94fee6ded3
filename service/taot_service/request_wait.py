"""Waits for the request of a call, but not for good: calls that send nothing would take the room of others.

gRPC bounds connections that say nothing, but no calls, and of a call with one request it hands over nothing before that
has come. So handlers of such calls are registered as if they took a stream, and read its first message.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from taot_api.contract_error import ContractError, Reason

REQUEST_SECONDS = 10.0
"""How long the request of a call may take to arrive: as long as one over HTTP."""


async def await_request(context: grpc.aio.ServicerContext[Any, Any]) -> Any:
    """The first message of a call whose handler takes a stream.

    Raises:
        ContractError: DEADLINE_EXCEEDED when it does not come in time, INVALID_MESSAGE when the call ends without any.
    """
    clock = _Clock()
    try:
        request = await context.read()
    except asyncio.CancelledError:
        if not clock.has_rung:  # the caller has gone
            raise
        message = f"the request of the call has not arrived within {REQUEST_SECONDS:g} s"
        raise ContractError(Reason.DEADLINE_EXCEEDED, message) from None
    finally:
        clock.stop()
    if request is grpc.aio.EOF:
        raise ContractError(Reason.INVALID_MESSAGE, "the call has ended without a request")
    return request


class _Clock:
    """Interrupts the task at hand, at less cost than a task of its own for what is waited for."""

    def __init__(self) -> None:
        self.has_rung = False
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(REQUEST_SECONDS, self._ring)

    def stop(self) -> None:
        self._timer.cancel()

    def _ring(self) -> None:
        self.has_rung = True
        if self._task is not None:
            self._task.cancel()

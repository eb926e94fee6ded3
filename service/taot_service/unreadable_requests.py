"""Refuses requests whose bytes are no message; gRPC itself would answer UNKNOWN, and log a trace for each."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from taot_api.contract_error import ContractError, Reason
from taot_service.refusal import refusal_of

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True)
class _Unreadable:
    """Stands for a request that could not be read."""

    why: str


class UnreadableRequests(grpc.aio.ServerInterceptor):
    """Stands before every method of a server, those of health and reflection included."""

    def __init__(self, *, on_refusal: Callable[[Reason], None]) -> None:
        """Tells `on_refusal` of every request that is refused here."""
        self._on_refusal = on_refusal

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Hands out the method's handler with a guard before it."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kinds = {
            (False, False): (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
            (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
            (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
        }
        behaviour, make = kinds[bool(handler.request_streaming), bool(handler.response_streaming)]
        guarded = self._guard(behaviour, has_stream=bool(handler.request_streaming))
        return make(guarded, _tolerant(handler.request_deserializer), handler.response_serializer)

    def _guard(self, behaviour: Any, *, has_stream: bool) -> Any:
        async def take(request: Any, context: Context) -> Any:
            if has_stream:
                return self._readable(request, context)
            await self._check(request, context)
            return request

        async def answer(request: Any, context: Context) -> Any:
            return await behaviour(await take(request, context), context)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            async with contextlib.aclosing(behaviour(await take(request, context), context)) as responses:
                async for response in responses:
                    yield response

        return stream if inspect.isasyncgenfunction(behaviour) else answer

    async def _readable(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            await self._check(request, context)
            yield request

    async def _check(self, request: Any, context: Context) -> None:
        if isinstance(request, _Unreadable):
            self._on_refusal(Reason.INVALID_MESSAGE)
            message = f"the request is no message of this method ({request.why}): use the stubs of taot_api"
            await context.abort(*refusal_of(ContractError(Reason.INVALID_MESSAGE, message)))


def _tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    if deserialize is None:
        return None

    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Unreadable(str(error))

    return read

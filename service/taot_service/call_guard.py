"""Guards a handler: are the bytes of a call a message, is there room for it, how is what it raises refused.

It is done where handlers are registered and not in an interceptor, which would cost every call several task switches.
Only calls of the planner API are counted, so that there is always room for health checks. Streams of other services
stay open as long as their callers like: a bound of their own keeps them from taking the room of all.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import DecodeError

from taot_api.contract_error import ContractError, Reason
from taot_service.admission import CALL_RETRY_SECONDS, check_calls
from taot_service.refusal import refusal_of
from taot_service.request_wait import await_request
from taot_service.wire_check import check_parts

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_MAKERS = {
    (False, False): ("unary_unary", grpc.stream_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.stream_stream_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}
"""The name of a handler's behaviour, and what a guarded one is registered as: one that waits for its request itself."""


MAX_OPEN_STREAMS = 64
"""Streams of other services, such as health watches: whoever reaches the port may open them, without any token."""


class CallGuard:
    """Stands in for a server when handlers are registered, and guards every one of them."""

    def __init__(
        self,
        server: grpc.aio.Server,
        service: ServiceDescriptor,
        *,
        max_calls: int,
        on_refusal: Callable[[Reason], None],
    ) -> None:
        """Registers nothing yet.

        Args:
            server: where guarded handlers go.
            service: the planner API, whose requests may be large and whose unary calls are counted.
            max_calls: how many of those may be in progress.
            on_refusal: told of every call that is refused here.
        """
        self._server = server
        self._service = service
        self._max_calls = max_calls
        self._on_refusal = on_refusal
        self.num_calls = 0
        """Counted calls in progress."""
        self._num_open_streams = 0

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Called by generated code. The same handlers follow, by their names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by generated code with the handlers of a service."""
        is_planner = service == self._service.full_name
        guarded = {
            name: self._guarded(handler, self._service.methods_by_name[name].input_type if is_planner else None)
            for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, guarded),))

    def _guarded(self, handler: Any, large: Descriptor | None) -> Any:
        """A handler that refuses instead of being called.

        Args:
            handler: what generated code registers.
            large: the type of a request whose bytes are looked at before they are parsed, and which is counted.
        """
        kind, make = _MAKERS[bool(handler.request_streaming), bool(handler.response_streaming)]
        behaviour = getattr(handler, kind)
        if handler.request_streaming:
            guarded = self._taking(behaviour) if large is not None else self._reading_stream(behaviour)
        elif inspect.isasyncgenfunction(behaviour):
            guarded = self._streaming(behaviour)
        elif handler.response_streaming:
            guarded = self._writing(behaviour)
        else:
            guarded = self._answering(behaviour, is_counted=large is not None)
        return make(guarded, _tolerant(handler.request_deserializer, large), handler.response_serializer)

    def _answering(self, behaviour: Any, *, is_counted: bool) -> Any:
        async def answer(requests: AsyncIterator[Any], context: Context) -> Any:
            del requests
            try:
                request = await _read(context)
                if not is_counted:
                    return await behaviour(request, context)
                with self._counted_call():
                    return await behaviour(request, context)
            except ContractError as error:
                await self._refuse(error, context)

        return answer

    def _streaming(self, behaviour: Any) -> Any:
        async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            del requests
            try:
                request = await _read(context)
                async with contextlib.aclosing(behaviour(request, context)) as responses:
                    async for response in responses:
                        yield response
            except ContractError as error:
                await self._refuse(error, context)

        return stream

    def _writing(self, behaviour: Any) -> Any:
        """A stream of another service that writes by itself instead of yielding."""

        async def write(requests: AsyncIterator[Any], context: Context) -> None:
            del requests
            try:
                request = await _read(context)
                with self._open_stream():
                    await behaviour(request, context)
            except ContractError as error:
                await self._refuse(error, context)

        return write

    def _taking(self, behaviour: Any) -> Any:
        """A stream of the planner API, which reads and writes by itself and bounds itself.

        What it reads that is no message is a ContractError.
        """

        async def take(requests: AsyncIterator[Any], context: Context) -> None:
            try:
                await behaviour(requests, context)
            except ContractError as error:
                await self._refuse(error, context)

        return take

    def _reading_stream(self, behaviour: Any) -> Any:
        async def readable(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            async for request in requests:
                if isinstance(request, ContractError):
                    await self._refuse(request, context)
                yield request

        async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            try:
                with self._open_stream():
                    async with contextlib.aclosing(behaviour(readable(requests, context), context)) as responses:
                        async for response in responses:
                            yield response
            except ContractError as error:
                await self._refuse(error, context)

        return stream

    @contextlib.contextmanager
    def _counted_call(self) -> Iterator[None]:
        """Counts a call of the planner API while it is in progress.

        Raises:
            ContractError: OVERLOADED.
        """
        self.num_calls += 1
        try:
            check_calls(self.num_calls, self._max_calls, flag="--max-calls", what="calls in progress")
            yield
        finally:
            self.num_calls -= 1

    @contextlib.contextmanager
    def _open_stream(self) -> Iterator[None]:
        """Counts a stream of another service while it is open.

        Raises:
            ContractError: OVERLOADED.
        """
        if self._num_open_streams >= MAX_OPEN_STREAMS:
            raise ContractError(
                Reason.OVERLOADED,
                f"this planner has at most {MAX_OPEN_STREAMS} open streams of health and reflection: ask with Check",
                metadata={"limit": str(MAX_OPEN_STREAMS)},
                retry_seconds=CALL_RETRY_SECONDS,
            )
        self._num_open_streams += 1
        try:
            yield
        finally:
            self._num_open_streams -= 1

    async def _refuse(self, error: ContractError, context: Context) -> None:
        self._on_refusal(error.reason)
        try:
            await context.abort(*refusal_of(error))
        except grpc.aio.InternalError:
            # The caller has gone and gRPC has not noticed yet: it would log a trace.
            raise asyncio.CancelledError from None


async def _read(context: Context) -> Any:
    """The one request of a call.

    Raises:
        ContractError: when it does not come, or its bytes are no message.
    """
    request = await await_request(context)
    if isinstance(request, ContractError):
        raise request
    return request


def _tolerant(deserialize: Callable[[bytes], Any], large: Descriptor | None) -> Callable[[bytes], Any]:
    """Hands on what is wrong with the bytes: an error here would be answered UNKNOWN, with a trace in the log."""

    def read(data: bytes) -> Any:
        try:
            if large is not None:
                check_parts(data, large)
            return deserialize(data)
        except ContractError as error:
            return error
        except DecodeError as error:
            message = f"the request is no message of this method ({error}): use the stubs of taot_api"
            return ContractError(Reason.INVALID_MESSAGE, message)

    return read

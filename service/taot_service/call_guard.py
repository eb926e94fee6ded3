"""What is decided about a call before its handler: whether its bytes are parsed, and whether there is room for it.

Only calls of the planner API are counted, so that there is always room for health checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.descriptor import ServiceDescriptor

from taot_api.contract_error import ContractError
from taot_service.admission import check_calls
from taot_service.metrics import ServiceMetrics
from taot_service.refusal import refusal_of
from taot_service.wire_check import check_parts

Behaviour: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


class CallGuard:
    """Stands in for a server when handlers are registered, and guards those of unary calls."""

    def __init__(
        self, server: grpc.aio.Server, service: ServiceDescriptor, *, max_calls: int, metrics: ServiceMetrics
    ) -> None:
        self._server = server
        self._service = service
        self._max_calls = max_calls
        self._metrics = metrics
        self.num_calls = 0
        """Guarded calls in progress."""

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Called by generated code. The same handlers follow, by their names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by generated code with the handlers of a service."""
        guarded = {name: self._guarded(name, handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, guarded),))

    def _guarded(self, name: str, handler: Any) -> Any:
        if handler.unary_unary is None:
            return handler
        descriptor = self._service.methods_by_name[name].input_type

        def parse(data: bytes) -> Any:
            try:
                check_parts(data, descriptor)
            except ContractError as error:
                return error
            return handler.request_deserializer(data)

        return grpc.unary_unary_rpc_method_handler(
            self._counted(handler.unary_unary),
            request_deserializer=parse,
            response_serializer=handler.response_serializer,
        )

    def _counted(self, behaviour: Behaviour) -> Behaviour:
        async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            self.num_calls += 1
            try:
                self._check(request)
                return await behaviour(request, context)
            except ContractError as error:
                self._metrics.refusals.labels(error.reason.name).inc()
                await context.abort(*refusal_of(error))
            finally:
                self.num_calls -= 1

        return call

    def _check(self, request: Any) -> None:
        if isinstance(request, ContractError):
            raise request
        check_calls(self.num_calls, self._max_calls, flag="--max-calls", what="calls in progress")

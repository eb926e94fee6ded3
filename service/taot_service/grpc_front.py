"""The gRPC server: planner, health and reflection on one port."""

from __future__ import annotations

from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from grpc_reflection.v1alpha.reflection_pb2_grpc import add_ServerReflectionServicer_to_server

from taot_api.v1 import planner_pb2
from taot_api.v1.planner_pb2_grpc import add_PlannerServiceServicer_to_server
from taot_service.call_guard import CallGuard
from taot_service.config import ServiceConfig
from taot_service.grpc_gate import CallerJobs, GrpcGate
from taot_service.listener import PortUnavailableError, join_address, listen
from taot_service.locks import Locks
from taot_service.planner import Planner
from taot_service.servicer import PlannerServicer

_SERVICE = planner_pb2.DESCRIPTOR.services_by_name["PlannerService"]
SERVICE_NAME = _SERVICE.full_name
HEALTH_NAMES = ("", SERVICE_NAME)

ROOM_FOR_HEALTH = 128
"""Calls that the server takes beyond all that the planner API may have: health checks, reflection, refusals."""


MAX_CONNECTION_CALLS = 256
"""Calls of one connection at a time; others wait in the client. A leader has a handful."""


class GrpcFront:
    """One gRPC server on the running event loop."""

    def __init__(self, planner: Planner, config: ServiceConfig, locks: Locks) -> None:
        self._config, self._locks = config, locks
        self._health = HealthServicer()
        interceptors: list[grpc.aio.ServerInterceptor] = []
        if locks.access.needs_token:
            interceptors.append(GrpcGate(locks.access, on_refusal=planner.metrics.count_refusal))
        if planner.traces is not None:
            interceptors.append(planner.traces.interceptor())
        self._server = grpc.aio.server(
            interceptors=interceptors,
            options=_channel_options(config),
            maximum_concurrent_rpcs=_max_concurrent_rpcs(config),
        )
        guard: Any = CallGuard(
            self._server, _SERVICE, max_calls=config.max_calls, on_refusal=planner.metrics.count_refusal
        )
        reflecting = reflection.aio.ReflectionServicer((SERVICE_NAME, "grpc.health.v1.Health", reflection.SERVICE_NAME))
        add_PlannerServiceServicer_to_server(PlannerServicer(planner, CallerJobs(locks.access)), guard)
        add_HealthServicer_to_server(self._health, guard)
        add_ServerReflectionServicer_to_server(reflecting, guard)
        self.port = 0
        """The port that was taken."""

    async def start(self) -> None:
        """Takes the port and serves; health says NOT_SERVING.

        Raises:
            PortUnavailableError: when the port is taken.
        """
        host, port = self._config.host, self._config.grpc_port
        # gRPC says little about a port it cannot have: a plain socket gives the cause.
        listen(host, port, flag="--grpc-port").close()
        try:
            self.port = self._take_port(join_address(host, port))
        except RuntimeError as error:
            raise PortUnavailableError(f"cannot listen on {join_address(host, port)}: {error}") from error
        await self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._server.start()

    async def set_serving(self) -> None:
        """Health says SERVING from now on."""
        await self._set_health(health_pb2.HealthCheckResponse.SERVING)

    async def begin_drain(self) -> None:
        """Health says NOT_SERVING for good."""
        await self._health.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Refuses new calls, gives those in flight time to end, and releases the port."""
        await self._server.stop(self._config.drain_seconds)

    def _take_port(self, address: str) -> int:
        if self._locks.certificate is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, self._locks.certificate.grpc_credentials())

    async def _set_health(self, status: int) -> None:
        for name in HEALTH_NAMES:
            await self._health.set(name, status)


def _max_concurrent_rpcs(config: ServiceConfig) -> int:
    """A last line only: the limits of calls and watches are reached before, and refuse with a reason."""
    # Watches, and streams of reports: as many of each. Streams without a session have the room of calls once more.
    return 2 * (config.max_calls + config.max_sessions * config.max_watches) + ROOM_FOR_HEALTH


def _channel_options(config: ServiceConfig) -> list[tuple[str, int]]:
    return [
        # A connection that never becomes one, and one that has gone quiet: both leave room for others.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.max_connection_idle_ms", 600_000),
        # No single connection can take all room.
        ("grpc.max_concurrent_streams", MAX_CONNECTION_CALLS),
        # Two planners must not share a port unnoticed.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # A leader that vanished without a goodbye must not keep its session alive by an open watch.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Leaders may probe an idle connection this often.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ]

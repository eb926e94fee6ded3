"""The HTTP server, under the control of the process instead of uvicorn's own signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from taot_service.config import ServiceConfig
from taot_service.http_app import create_http_app
from taot_service.http_connection import MAX_HEADER_BYTES, HttpConnection
from taot_service.listener import listen
from taot_service.locks import Locks
from taot_service.planner import Planner

HTTP_SECONDS = 1
"""How long answers in flight may take once the planner API has ended."""


class _Uvicorn(uvicorn.Server):
    """Leaves signals alone: uvicorn's own handlers raise them again after the stop and end it early."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


class HttpFront:
    """One HTTP server on the running event loop."""

    def __init__(self, planner: Planner, config: ServiceConfig, locks: Locks) -> None:
        self._config = config
        settings = uvicorn.Config(
            create_http_app(planner, locks),
            http=HttpConnection,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            log_config=None,
            # Its warnings are about what strangers send, a line each.
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=HTTP_SECONDS,
            ws="none",
            server_header=False,
            # Else whoever comes from the loopback could say that it is somebody else, in the log and to the bound of
            # refusals.
            proxy_headers=False,
            ssl_certfile=config.tls_cert,
            ssl_keyfile=config.tls_key,
            ssl_keyfile_password="",
        )
        if locks.certificate is not None:
            # In place of the context that uvicorn makes once and for all.
            settings.load()
            settings.ssl = locks.certificate.http_context()
        self._server = _Uvicorn(settings)
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None
        self.port = 0
        """The port that was taken."""

    def listen(self) -> None:
        """Takes the port.

        Raises:
            PortUnavailableError: when it is taken.
        """
        self._socket = listen(self._config.host, self._config.http_port, flag="--http-port")
        self.port = int(self._socket.getsockname()[1])

    def start(self) -> asyncio.Task[None]:
        """Serves. The task ends when the server does."""
        assert self._socket is not None
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")
        return self._task

    async def stop(self) -> None:
        """Answers what is in flight, for HTTP_SECONDS at most, and releases the port."""
        self._server.should_exit = True
        if self._task is not None:
            with contextlib.suppress(Exception):
                await self._task
        if self._socket is not None:
            self._socket.close()

"""One planner process: both front ends on one event loop, from start to drained."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable

from taot_api.tracing import make_tracer
from taot_service.config import ServiceConfig
from taot_service.grpc_front import GrpcFront
from taot_service.http_front import HTTP_SECONDS, HttpFront
from taot_service.listener import PortUnavailableError, join_address, write_ports_file
from taot_service.locks import Locks, exposure_warnings
from taot_service.plan_traces import PlanTraces
from taot_service.planner import CLOSE_SECONDS, Planner

logger = logging.getLogger(__name__)

NOTICE_SECONDS = 0.25
"""How long callers are told to go elsewhere before connections close: gRPC cancels calls that come while it closes."""

END_SECONDS = NOTICE_SECONDS + HTTP_SECONDS + CLOSE_SECONDS
"""A planner that drains ends within --drain-seconds and this; whoever kills it must wait longer."""

CHECK_SECONDS = 1.0
"""How often leases are looked at, and whether the planner is idle."""


class PlannerServer:
    """The planner with its front ends on the running event loop."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        traces: PlanTraces | None = None,
        on_warm: Callable[[], None] = lambda: None,
    ) -> None:
        """Reads the certificate and the tokens.

        Args:
            config: how to serve.
            traces: tells of the way of each report; None: nobody wants to know.
            on_warm: called once the kernels are there.

        Raises:
            OSError: when they cannot be used.
        """
        self.config = config
        self._on_warm = on_warm
        self.locks = Locks(config)
        self.planner = Planner(config, traces=traces)
        self.locks.show_in(self.planner.metrics)
        self._grpc = GrpcFront(self.planner, config, self.locks)
        self._http = HttpFront(self.planner, config, self.locks)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def grpc_port(self) -> int:
        """The port of the planner API."""
        return self._grpc.port

    @property
    def http_port(self) -> int:
        """The port of the HTTP side."""
        return self._http.port

    async def start(self) -> None:
        """Serves on both ports; readiness follows when the kernels are warm.

        Raises:
            OSError: when a port is taken or the ports file cannot be written; then nothing listens any more.
        """
        try:
            self._http.listen()
            await self._grpc.start()
            if self.config.ports_file is not None:
                write_ports_file(self.config.ports_file, grpc_port=self.grpc_port, http_port=self.http_port)
        except OSError:
            await self.stop()
            raise
        self._tasks = {
            self._http.start(),
            asyncio.create_task(self._warm_up(), name="warm-up"),
            asyncio.create_task(self._expire_sessions(), name="expiry"),
            asyncio.create_task(self.locks.follow_files(), name="locks"),
        }
        if self.config.exit_when_idle is not None or self.config.exit_when_unused is not None:
            self._tasks.add(asyncio.create_task(self._await_idle(), name="idle"))

    async def run_until(self, stop: asyncio.Event) -> bool:
        """Serves until asked to stop, or idle; False when something that should go on has ended before."""
        stopped = asyncio.create_task(stop.wait())
        pending = {stopped, *self._tasks}
        while not stopped.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopped}:
                if task.get_name() == "idle" and task.exception() is None:
                    logger.info("no session for %.1f s: draining", self.planner.idle_seconds() or 0.0)
                    stop.set()
                elif task.exception() is not None or task.get_name() != "warm-up":
                    logger.error("%s ended unexpectedly", task.get_name(), exc_info=task.exception())
                    stopped.cancel()
                    return False
        return True

    async def stop(self) -> bool:
        """Readiness first, then the calls in flight, then the rest; False when a solver thread is still busy."""
        self.planner.begin_drain()
        await self._grpc.begin_drain()
        if self._tasks:
            await asyncio.sleep(NOTICE_SECONDS)
        await self._grpc.stop()
        await self._http.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return await self.planner.close()

    async def _warm_up(self) -> None:
        await self.planner.warm_up()
        self._on_warm()
        await self._grpc.set_serving()

    async def _expire_sessions(self) -> None:
        while True:
            await asyncio.sleep(min(CHECK_SECONDS, self.config.lease_seconds / 4))
            self.planner.expire_sessions()

    async def _await_idle(self) -> None:
        while not ends_by_itself(self.planner, self.config):
            await asyncio.sleep(CHECK_SECONDS)


def ends_by_itself(planner: Planner, config: ServiceConfig) -> bool:
    """Whether a planner has been without a session for as long as it was told to wait for one."""
    limit = config.exit_when_idle if planner.was_used else config.exit_when_unused
    idle_seconds = planner.idle_seconds()
    return limit is not None and idle_seconds is not None and idle_seconds >= limit


def run(config: ServiceConfig, *, announce: Callable[[str], None], complain: Callable[[str], None]) -> int:
    """Runs a planner in this process until SIGTERM or SIGINT; the second of them ends it at once.

    Args:
        config: how.
        announce: gets one line per port once both listen.
        complain: gets one line when it cannot start.

    Returns:
        The exit code: 0 after a drain, 1 when it could not start or broke.
    """
    return asyncio.run(_run(config, announce=announce, complain=complain))


async def _run(config: ServiceConfig, *, announce: Callable[[str], None], complain: Callable[[str], None]) -> int:
    stop = asyncio.Event()
    _handle_signals(stop)
    for warning in exposure_warnings(config):
        complain(f"warning: {warning}")
    tracer = make_tracer(os.environ, service="taot-planner")
    try:
        # What is there by then stays: looking through it for garbage would stop all threads for a tenth of a second.
        # In a process of its own alone: others would keep for ever what they leave behind.
        traces = PlanTraces(tracer) if tracer is not None else None
        server = PlannerServer(config, traces=traces, on_warm=gc.freeze)
        await server.start()
    except OSError as error:
        complain(str(error))
        return 1
    announce(f"gRPC on {join_address(config.host, server.grpc_port)}")
    announce(f"HTTP on {config.http_scheme}://{join_address(config.host, server.http_port)}")
    is_asked = await server.run_until(stop)
    exit_code = 0 if is_asked else 1
    if not await server.stop():
        # The interpreter would wait for the thread, which may compile for a long time yet.
        logging.shutdown()
        os._exit(exit_code)
    return exit_code


def _handle_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(signal_number: signal.Signals) -> None:
        if stop.is_set():
            logger.warning("%s again: ending at once", signal_number.name)
            os._exit(128 + signal_number)
        logger.info("%s: draining, a second one ends at once", signal_number.name)
        stop.set()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal, signal_number)


__all__ = ["PlannerServer", "PortUnavailableError", "run"]

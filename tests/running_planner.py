"""Real planners for tests: in a thread of this process, or as a process of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from taot_service.config import ServiceConfig
from taot_service.locks import Locks
from taot_service.plan_traces import PlanTraces
from taot_service.planner import Planner
from taot_service.server import PlannerServer

START_BOUND_SECONDS = 100
"""Far above any start, the first compilation of the kernels included; a hang ends here."""

CALM_SECONDS = 1000.0
"""Time to publish a plan that is always enough for the effort asked for."""


@dataclass(frozen=True, kw_only=True)
class RunningPlanner:
    """A planner in a thread of this process."""

    grpc_port: int
    http_port: int
    planner: Planner
    locks: Locks
    loop: asyncio.AbstractEventLoop

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def on_loop(self, call: Callable[[], Any]) -> Any:
        """Runs `call` where the planner lives and returns what it returns."""

        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout=START_BOUND_SECONDS)


@contextlib.contextmanager
def running_planner(
    config: ServiceConfig | None = None, *, is_warm_awaited: bool = True, traces: PlanTraces | None = None
) -> Iterator[RunningPlanner]:
    """Runs a planner on free ports, whatever the ports of `config`. Without one, no plan is made in a hurry.

    One at a time: grpc.aio wants one event loop per process. Use `planner_process` for more, and the
    synchronous gRPC API to call it.
    """
    config = replace(config or ServiceConfig(publish_within=CALM_SECONDS), grpc_port=0, http_port=0)
    started = _Outcome()
    thread = threading.Thread(target=_run_thread, args=(config, traces, started), name="planner", daemon=True)
    thread.start()
    server, loop, stop = started.wait()
    try:
        if is_warm_awaited:
            wait_until_serving(f"127.0.0.1:{server.grpc_port}")
        yield RunningPlanner(
            grpc_port=server.grpc_port,
            http_port=server.http_port,
            planner=server.planner,
            locks=server.locks,
            loop=loop,
        )
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=START_BOUND_SECONDS)
        assert not thread.is_alive(), "the planner did not stop"


class _Outcome:
    """What a thread reports once: a value or an exception."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def set(self, *, value: Any = None, error: BaseException | None = None) -> None:
        self.value, self.error = value, error
        self._ready.set()

    def wait(self) -> Any:
        assert self._ready.wait(timeout=START_BOUND_SECONDS), "the planner did not start"
        if self.error is not None:
            raise self.error
        return self.value


def _run_thread(config: ServiceConfig, traces: PlanTraces | None, started: _Outcome) -> None:
    async def main() -> None:
        server, stop = PlannerServer(config, traces=traces), asyncio.Event()
        try:
            await server.start()
        except OSError as error:
            started.set(error=error)
            return
        started.set(value=(server, asyncio.get_running_loop(), stop))
        await server.run_until(stop)
        await server.stop()

    asyncio.run(main())


def wait_until_serving(address: str) -> None:
    """Waits until standard health says SERVING; raises grpc.RpcError at the bound."""
    with grpc.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service="taot_api.v1.PlannerService")
        states = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=START_BOUND_SECONDS, wait_for_ready=True)
        for state in states:
            if state.status == health_pb2.HealthCheckResponse.SERVING:
                states.cancel()
                return
        raise AssertionError("health ended without SERVING")


class PlannerProcess:
    """`taot serve` as a process."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self._folder = folder
        ports = json.loads((folder / "ports.json").read_text())
        self.grpc_port: int = ports["grpc_port"]
        self.http_port: int = ports["http_port"]
        self.pid: int = ports["pid"]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def stderr(self) -> str:
        """Everything it has said on standard error so far."""
        return (self._folder / "stderr").read_text(errors="backslashreplace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def terminate(self) -> int:
        """Asks it to drain, and returns its exit code."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=START_BOUND_SECONDS)


@contextlib.contextmanager
def planner_process(
    *,
    grpc_port: int = 0,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    is_warm_awaited: bool = True,
) -> Iterator[PlannerProcess]:
    """Starts a planner process; a fixed `grpc_port` brings it back on the port of one that died.

    `environment` is added to that of the tests.
    """
    with tempfile.TemporaryDirectory(prefix="taot-planner-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stderr = stack.enter_context((folder / "stderr").open("w"))
        process = subprocess.Popen(
            serve_command("--grpc-port", str(grpc_port), "--ports-file", str(folder / "ports.json"), *flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        stack.callback(_end, process)
        _wait_until_listening(process, folder)
        planner = PlannerProcess(process, folder)
        if is_warm_awaited:
            wait_until_serving(planner.address)
        yield planner


def serve_command(*flags: str) -> list[str]:
    """The command line of a planner; the HTTP port is free unless the flags say otherwise."""
    http_flags = [] if "--http-port" in flags else ["--http-port", "0"]
    return [sys.executable, "-m", "taot_cli", "serve", *http_flags, *flags]


def free_port() -> int:
    """A port that nobody has now, for a planner that is looked for before it starts, or comes back."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_until_listening(process: subprocess.Popen[str], folder: Path) -> None:
    assert process.stdout is not None
    watchdog = threading.Timer(START_BOUND_SECONDS, process.kill)
    watchdog.start()
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
    finally:
        watchdog.cancel()
    if not lines[1].startswith("HTTP on"):
        process.wait(timeout=START_BOUND_SECONDS)
        raise RuntimeError(f"the planner did not start: {''.join(lines)}{(folder / 'stderr').read_text()}")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait(timeout=START_BOUND_SECONDS)
    if process.stdout is not None:
        process.stdout.close()

"""A `taot serve` process under load: how it starts, what it takes, how it answers probes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

START_SECONDS = 180.0
"""On a first run the planner compiles its kernels."""

PROBE_SECONDS = 0.05
"""Between two probes of a kind."""

SERVICE = "taot_api.v1.PlannerService"


class ServedPlanner:
    """A running planner process."""

    def __init__(self, process: subprocess.Popen[str], ports: dict[str, int], *, exec_seconds: float) -> None:
        self._process = process
        self.grpc_port, self.http_port = ports["grpc_port"], ports["http_port"]
        self.listening_seconds = time.perf_counter()
        """When both ports were known to listen, on `time.perf_counter`."""
        self.start_seconds = self.listening_seconds - exec_seconds
        """From starting the program to listening."""

    @property
    def address(self) -> str:
        """Of the planner API."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def rss_bytes(self) -> int:
        """Memory of the process that is present."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    @property
    def cpu_seconds(self) -> float:
        """Processor time of all its threads since its start."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def num_taken(self) -> int:
        """Training reports that it has taken since its start, repeats left out, by its own count."""
        response = httpx.get(f"http://127.0.0.1:{self.http_port}/metrics", timeout=START_SECONDS, trust_env=False)
        taken = 0.0
        for line in response.raise_for_status().text.splitlines():
            if line.startswith("taot_reports_total{") and not {"repeated", "rehearsal"} & set(line.split('"')):
                taken += float(line.split()[-1])
        return round(taken)

    def has_loaded(self, name: str) -> bool:
        """Whether a file with `name` in its path is mapped into the process."""
        return name in Path(f"/proc/{self._process.pid}/maps").read_text(encoding="utf-8")

    def wait_until_serving(self) -> float:
        """Waits until health says SERVING; returns the seconds since it listens."""
        with grpc.insecure_channel(self.address) as channel:
            states = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=START_SECONDS, wait_for_ready=True
            )
            for state in states:
                if state.status == health_pb2.HealthCheckResponse.SERVING:
                    states.cancel()
                    return time.perf_counter() - self.listening_seconds
        raise RuntimeError("the planner never became ready")

    def kill(self) -> None:
        """Ends it as a crash would."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def served_planner(*, grpc_port: int = 0, flags: tuple[str, ...] = ()) -> Iterator[ServedPlanner]:
    """Runs a planner until the end of the block, or until it is killed."""
    with tempfile.TemporaryDirectory(prefix="taot-load-") as name:
        ports_file = Path(name) / "ports.json"
        command = [sys.executable, "-m", "taot_cli", "serve", "--grpc-port", str(grpc_port), "--http-port", "0"]
        exec_seconds = time.perf_counter()
        process = subprocess.Popen(
            [*command, "--ports-file", str(ports_file), *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            if not lines[1]:
                raise RuntimeError(f"the planner did not start: {lines}")
            ports = json.loads(ports_file.read_text(encoding="ascii"))
            yield ServedPlanner(process, ports, exec_seconds=exec_seconds)
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


class Probes:
    """Asks /livez, /metrics and gRPC health again and again while something else happens."""

    def __init__(self, planner: ServedPlanner) -> None:
        self.seconds: dict[str, list[float]] = {"livez": [], "health": [], "metrics": []}
        """How long each answer took, by what was asked; a failure raises in `stop`."""
        self._planner = planner
        self._stop = threading.Event()
        self._errors: list[Exception] = []
        self._threads = [threading.Thread(target=self._run, args=(way,)) for way in (self._ask_http, self._ask_health)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, list[float]]:
        """Ends probing; returns the seconds.

        Raises:
            Exception: what a probe failed with.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return self.seconds

    def _run(self, way: object) -> None:
        try:
            assert callable(way)
            way()
        except Exception as error:  # noqa: BLE001 - a thread's top: `stop` raises it
            self._errors.append(error)

    def _ask_http(self) -> None:
        base_url = f"http://127.0.0.1:{self._planner.http_port}"
        with httpx.Client(base_url=base_url, timeout=START_SECONDS, trust_env=False) as client:
            while not self._stop.wait(PROBE_SECONDS):
                for name, every in (("livez", 1), ("metrics", 20)):
                    if len(self.seconds["livez"]) % every == 0:
                        start = time.perf_counter()
                        client.get(f"/{name}").raise_for_status()
                        self.seconds[name].append(time.perf_counter() - start)

    def _ask_health(self) -> None:
        with grpc.insecure_channel(self._planner.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while not self._stop.wait(PROBE_SECONDS):
                start = time.perf_counter()
                stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=START_SECONDS)
                self.seconds["health"].append(time.perf_counter() - start)

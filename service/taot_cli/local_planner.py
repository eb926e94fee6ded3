"""A planner of this command, on free ports of the loopback interface, that ends with it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from taot_cli.child_process import ChildProcess
from taot_cli.loopback_http import get_text

START_BOUND_SECONDS = 300
"""The planner's first start on a machine compiles its kernels."""

POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class LocalPlanner:
    """Where it listens."""

    grpc_port: int
    """The planner API."""

    http_port: int
    """Probes and metrics."""

    @property
    def address(self) -> str:
        """What agents are given."""
        return f"127.0.0.1:{self.grpc_port}"


@contextmanager
def local_planner(folder: Path) -> Iterator[LocalPlanner]:
    """Runs a planner; yields once it can plan.

    Raises:
        ChildFailedError: if it cannot.
    """
    ports_file = folder / "ports.json"
    command = [sys.executable, "-m", "taot_cli", "serve", "--grpc-port", "0", "--http-port", "0"]
    with ChildProcess("planner", [*command, "--ports-file", str(ports_file)], folder=folder) as process:
        bound = time.monotonic() + START_BOUND_SECONDS
        while not (ports_file.exists() and _is_ready(json.loads(ports_file.read_text())["http_port"])):
            if time.monotonic() > bound or not process.is_running():
                raise process.failure(f"was not ready within {START_BOUND_SECONDS} s")
            time.sleep(POLL_SECONDS)
        ports = json.loads(ports_file.read_text())
        yield LocalPlanner(grpc_port=ports["grpc_port"], http_port=ports["http_port"])


def _is_ready(http_port: int) -> bool:
    return get_text(f"http://127.0.0.1:{http_port}/readyz") is not None

"""How one planner process is set up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

MAX_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """Everything `taot serve` can be told. Read once, at start."""

    host: str = "127.0.0.1"
    """Address to listen on. There is no authentication: keep it to the loopback or a private network."""

    grpc_port: int = 50051
    """Port of the planner API; 0 lets the system choose."""

    http_port: int = 8080
    """Port of the live page, /docs, /livez, /readyz, /metrics and /v1; 0 lets the system choose."""

    ports_file: Path | None = None
    """Where the chosen ports are written as JSON once both listen."""

    solver_threads: int = 1
    """Threads that plan; their kernels release the GIL."""

    lease_seconds: float = 60.0
    """A session without a call and without an open watch is dropped after this long."""

    drain_seconds: float = 5.0
    """How long calls in flight may take to end after SIGTERM or SIGINT."""

    exit_when_idle: float | None = None
    """Seconds after the last session has ended at which the process ends by itself, as after SIGTERM; None: it stays.
    Before the first session it waits for ever: a trainer may start later than its planner."""

    max_message_bytes: int = 64 * 2**20
    """Largest request that is read."""

    max_sessions: int = 256
    """Sessions at a time."""

    max_ranks: int = 1024
    """Ranks of a session."""

    max_layers: int = 512
    """Layers of a session."""

    max_experts: int = 4096
    """Experts of a layer."""

    max_slots: int = 64
    """Guest slots of a rank."""

    max_plan_entries: int = 2**26
    """Layers x ranks x ranks x slots of a session: the int64 numbers in a plan with token quotas."""

    max_labelled_groups: int = 32
    """Groups that have metrics of their own. With the next limit it keeps /metrics below 2,000 lines."""

    max_layer_series: int = 512
    """Layers of such groups that have a metric of their own; a group has them for all of its layers or none."""

    def __post_init__(self) -> None:
        if not self.host:
            raise ValueError("--host must not be empty: use 127.0.0.1 for this machine only")
        for name in ("grpc_port", "http_port"):
            if not 0 <= getattr(self, name) <= MAX_PORT:
                raise ValueError(f"{_flag(name)} must be between 0 and {MAX_PORT}, got {getattr(self, name)}")
        if self.grpc_port == self.http_port != 0:
            raise ValueError(f"--grpc-port and --http-port must differ, got {self.grpc_port} for both")
        for name in ("lease_seconds", "drain_seconds"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{_flag(name)} must be above 0 seconds, got {getattr(self, name)}")
        if self.exit_when_idle is not None and not (math.isfinite(self.exit_when_idle) and self.exit_when_idle >= 0):
            raise ValueError(f"--exit-when-idle must be >= 0 seconds, got {self.exit_when_idle}")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{_flag(name)} must be >= 1, got {getattr(self, name)}")
        for name in ("max_labelled_groups", "max_layer_series"):
            if getattr(self, name) < 0:
                raise ValueError(f"{_flag(name)} must be >= 0, got {getattr(self, name)}")


_COUNTS = (
    "solver_threads",
    "max_message_bytes",
    "max_sessions",
    "max_ranks",
    "max_layers",
    "max_experts",
    "max_slots",
    "max_plan_entries",
)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")

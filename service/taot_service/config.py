"""How one planner process is set up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from taot_planning.algorithms import ALGORITHMS
from taot_service.log_lines import LogFormat, LogLevel
from taot_service.settings import Bounds, check_settings

Port: TypeAlias = Annotated[int, Bounds(least=0, most=65535)]
Count: TypeAlias = Annotated[int, Bounds(least=1)]
CountFromZero: TypeAlias = Annotated[int, Bounds(least=0)]
Seconds: TypeAlias = Annotated[float, Bounds(above=0)]
SecondsFromZero: TypeAlias = Annotated[float, Bounds(least=0)]


@dataclass(frozen=True, kw_only=True)
class ServiceConfig:
    """Everything `taot serve` can be told. Read once, at start.

    A field with the string under it is all there is to a setting: flags, variables, keys of the file, help and checks
    are made of it (settings.py), and docs/configuration.md lists it.
    """

    host: str = "127.0.0.1"
    """Address to listen on. Whoever reaches another one than the loopback may use the planner, unless `tokens` says who
    may, and reads along, unless there is a certificate."""

    grpc_port: Port = 50051
    """Port of the planner API; 0 lets the system choose."""

    http_port: Port = 8080
    """Port of the live page, /docs, /livez, /readyz, /metrics and /v1; 0 lets the system choose."""

    ports_file: Path | None = None
    """Where the chosen ports are written as JSON once both listen."""

    tls_cert: Path | None = None
    """PEM file with the certificate of both ports, its chain behind it. It is read again when it changes."""

    tls_key: Path | None = None
    """PEM file with the key of the certificate, without a password. It is read again when it changes."""

    tls_client_ca: Path | None = None
    """PEM file with authorities: callers of the gRPC port need a certificate of one of them. It is read again when it
    changes."""

    tokens: Path | None = None
    """File that says which bearer tokens may do what (`taot token new`). It is read again when it changes. Without it
    everybody may do everything."""

    allowed_hosts: str | None = None
    """Names, with commas between them, that browsers may call the HTTP port by, besides addresses and names that exist
    in private networks only. With tokens every name will do."""

    solver_threads: Count = 2
    """Threads that plan, each some layers at a time: of several reports, or of one where no other waits. Their kernels
    release the GIL."""

    publish_within: SecondsFromZero = 0.1
    """Seconds from a report to its plan. Where the effort `balanced` takes longer, or others wait, layers are planned
    with `fast` and improved afterwards."""

    algorithms: str = "echo,eplb,llep,llep-exact,static,taot,taot-paper"
    """Names, with commas between them, of the algorithms that sessions may ask for."""

    lease_seconds: Seconds = 60.0
    """Seconds after which a session without a call and without an open watch is dropped."""

    drain_seconds: Seconds = 5.0
    """Seconds that calls in flight may take to end after SIGTERM or SIGINT."""

    exit_when_idle: SecondsFromZero | None = None
    """Seconds after the last session has ended at which the process ends by itself, as after SIGTERM. Before the first
    session it waits: a trainer may start later than its planner."""

    exit_when_unused: SecondsFromZero | None = None
    """Seconds after it became ready at which the process ends by itself if there has been no session yet: the trainer
    may have died before its first."""

    log_format: LogFormat = LogFormat.TEXT
    """How log lines on standard error look: text for people, or json, one object a line. With json the addresses are
    logged too, and nothing goes to standard output."""

    log_level: LogLevel = LogLevel.INFO
    """The least severe records that are logged: debug, info, warning or error."""

    max_message_bytes: Count = 64 * 2**20
    """Bytes of the largest request that is read."""

    max_sessions: Count = 256
    """Sessions at a time."""

    max_sessions_per_job: Count = 128
    """Sessions of one training job at a time."""

    max_held_bytes: Count = 2**31
    """Bytes of counts and plans of all sessions and PlanNow calls together, worked out from declared sizes."""

    max_held_bytes_per_job: Count = 2**30
    """Bytes of counts and plans of all sessions and PlanNow calls of one training job, which leave room for others."""

    max_watches: Count = 16
    """Open watches of a session, and as many streams of its reports."""

    max_calls: Count = 512
    """Calls in progress at a time, watches and health checks left out."""

    max_waiting_plans: Count = 64
    """PlanNow calls that wait for a solver thread at a time."""

    max_waiting_plans_per_session: Count = 8
    """PlanNow calls of one session that wait for a solver thread at a time."""

    max_ranks: Count = 1024
    """Ranks of a session."""

    max_slow_ranks: Count = 128
    """Ranks of a session that asks for another algorithm than `taot` or `static`, or for another objective than the
    tolerance: for more ranks these hold a solver thread for seconds a layer."""

    max_layers: Count = 512
    """Layers of a session."""

    max_experts: Count = 4096
    """Experts of a layer."""

    max_slots: Count = 64
    """Guest slots of a rank."""

    max_layer_counts: Count = 2**20
    """Ranks x experts of a layer: what is planned without a pause, in which others wait."""

    max_plan_entries: Count = 2**24
    """Layers x ranks x ranks x slots of a session: the int64 numbers in a plan with token quotas."""

    max_labelled_groups: CountFromZero = 32
    """Groups that have metrics of their own. With --max-layer-series it keeps /metrics below 2,000 lines."""

    max_layer_series: CountFromZero = 512
    """Layers of such groups that have a metric of their own; a group has them for all of its layers or none."""

    @property
    def http_scheme(self) -> str:
        """How addresses of the HTTP port begin."""
        return "http" if self.tls_cert is None else "https"

    @property
    def offered_algorithms(self) -> tuple[str, ...]:
        """The names in `algorithms`, sorted."""
        return tuple(sorted({name.strip() for name in self.algorithms.split(",")}))

    def __post_init__(self) -> None:
        check_settings(self)
        unknown = [name for name in self.offered_algorithms if name not in ALGORITHMS]
        if unknown:
            raise ValueError(
                f"--algorithms must be names with commas between them, got {unknown[0]!r}: choose from"
                f" {', '.join(sorted(ALGORITHMS))}"
            )
        if self.grpc_port == self.http_port != 0:
            raise ValueError(f"--grpc-port and --http-port must differ, got {self.grpc_port} for both")

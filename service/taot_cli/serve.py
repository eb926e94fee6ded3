"""`taot serve`: runs a planner."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from taot_service.config import ServiceConfig


def _flag(name: str, text: str) -> Any:
    """The option `--name`, which the environment variable TAOT_NAME sets as well."""
    return typer.Option(f"--{name}", envvar=f"TAOT_{name.upper().replace('-', '_')}", help=text)


def serve(  # noqa: PLR0913, PLR0917 - one parameter per flag
    host: Annotated[str, _flag("host", "Address to listen on.")] = ServiceConfig.host,
    grpc_port: Annotated[int, _flag("grpc-port", "Planner API; 0: any free port.")] = ServiceConfig.grpc_port,
    http_port: Annotated[int, _flag("http-port", "Probes, metrics; 0: any free port.")] = ServiceConfig.http_port,
    ports_file: Annotated[Path | None, _flag("ports-file", "Write the ports here as JSON.")] = None,
    solver_threads: Annotated[int, _flag("solver-threads", "Threads that plan.")] = ServiceConfig.solver_threads,
    lease_seconds: Annotated[
        float, _flag("lease-seconds", "Sessions silent for this long are dropped.")
    ] = ServiceConfig.lease_seconds,
    drain_seconds: Annotated[
        float, _flag("drain-seconds", "Time for calls in flight when asked to stop.")
    ] = ServiceConfig.drain_seconds,
    exit_when_idle: Annotated[
        float | None, _flag("exit-when-idle", "End so many seconds after the last session has.")
    ] = ServiceConfig.exit_when_idle,
    max_message_bytes: Annotated[
        int, _flag("max-message-bytes", "Largest request that is read.")
    ] = ServiceConfig.max_message_bytes,
    max_sessions: Annotated[int, _flag("max-sessions", "Sessions at a time.")] = ServiceConfig.max_sessions,
    max_ranks: Annotated[int, _flag("max-ranks", "Ranks of a session.")] = ServiceConfig.max_ranks,
    max_layers: Annotated[int, _flag("max-layers", "Layers of a session.")] = ServiceConfig.max_layers,
    max_experts: Annotated[int, _flag("max-experts", "Experts of a layer.")] = ServiceConfig.max_experts,
    max_slots: Annotated[int, _flag("max-slots", "Guest slots of a rank.")] = ServiceConfig.max_slots,
    max_plan_entries: Annotated[
        int, _flag("max-plan-entries", "Layers x ranks x ranks x slots of a session.")
    ] = ServiceConfig.max_plan_entries,
    max_labelled_groups: Annotated[
        int, _flag("max-labelled-groups", "Groups that have metrics of their own.")
    ] = ServiceConfig.max_labelled_groups,
    max_layer_series: Annotated[
        int, _flag("max-layer-series", "Layers that have a metric of their own.")
    ] = ServiceConfig.max_layer_series,
) -> None:
    """Run the planner service: gRPC for training jobs, HTTP for probes, metrics and people."""
    # Every local is a flag, and every flag a field.
    settings = dict(locals())
    try:
        config = ServiceConfig(**settings)
    except ValueError as error:
        _complain(str(error))
        raise typer.Exit(2) from error
    raise typer.Exit(_run(config))


def _run(config: ServiceConfig) -> int:
    try:
        from taot_service.server import run  # noqa: PLC0415 - the server extra is optional
    except ModuleNotFoundError as error:
        _complain(f"the server extra is needed ({error.name} is missing): pip install 'taot-planner[server]'")
        return 1
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return run(config, announce=_announce, complain=_complain)


def _announce(line: str) -> None:
    print(line, flush=True)


def _complain(line: str) -> None:
    print(f"taot serve: {line}", file=sys.stderr, flush=True)

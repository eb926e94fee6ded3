"""`taot serve`: runs a planner."""

from __future__ import annotations

import logging
import sys

import typer

from taot_cli.setting_flags import with_settings
from taot_service.config import ServiceConfig
from taot_service.settings_sources import EffectiveSettings


@with_settings
def serve(effective: EffectiveSettings) -> None:
    """Run the planner service: gRPC for training jobs, HTTP for probes, metrics and people."""
    raise typer.Exit(_run(effective.config))


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

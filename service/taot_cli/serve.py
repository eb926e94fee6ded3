"""`taot serve`: runs a planner."""

from __future__ import annotations

import logging
import os
import sys

import typer

from taot_cli.setting_flags import with_settings
from taot_service.log_lines import LogFormat, set_up_logging
from taot_service.settings import show_value
from taot_service.settings_sources import EffectiveSettings

logger = logging.getLogger(__name__)


@with_settings
def serve(effective: EffectiveSettings) -> None:
    """Run the planner service: gRPC for training jobs, HTTP for probes, metrics and people."""
    raise typer.Exit(_run(effective))


def _run(effective: EffectiveSettings) -> int:
    # gRPC's core writes what strangers send to standard error; it reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from taot_service.server import run  # noqa: PLC0415 - the server extra is optional
    except ModuleNotFoundError as error:
        _complain(f"the server extra is needed ({error.name} is missing): pip install 'taot-planner[server]'")
        return 1
    config = effective.config
    set_up_logging(config.log_format, config.log_level)
    if effective.changed:
        settings = {name: show_value(getattr(config, name)) for name in effective.changed}
        said = ", ".join(f"{name} = {value} ({effective.sources[name]})" for name, value in settings.items())
        logger.info("settings: %s", said, extra={"settings": settings})
    if config.log_format is LogFormat.JSON:
        return run(config, announce=logger.info, complain=logger.error)
    return run(config, announce=_announce, complain=_complain)


def _announce(line: str) -> None:
    print(line, flush=True)


def _complain(line: str) -> None:
    print(f"taot serve: {line}", file=sys.stderr, flush=True)

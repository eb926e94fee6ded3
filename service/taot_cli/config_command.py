"""`taot config`: says which settings hold, and why."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from taot_cli.setting_flags import with_settings
from taot_service.config import ServiceConfig
from taot_service.settings import settings_of, show_value
from taot_service.settings_sources import DEFAULT_SOURCE, EffectiveSettings

config_app = typer.Typer(help="The settings of the planner.", no_args_is_help=True)


@config_app.callback()
def _config() -> None:
    """Says that `show` is a command below `config`; without it typer would make them one."""


@config_app.command("show")
@with_settings
def show(
    effective: EffectiveSettings,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the settings that `taot serve` would run with here, and where each comes from."""
    names = [setting.name for setting in settings_of(ServiceConfig)]
    values = {name: show_value(getattr(effective.config, name)) for name in names}
    if as_json:
        print(
            json.dumps({name: {"value": values[name], "source": effective.sources[name]} for name in names}, indent=2)
        )
        return
    table = Table("Setting", "Value", "Source", box=None, header_style="bold", pad_edge=False)
    for name in names:
        value, source = values[name], effective.sources[name]
        table.add_row(
            name, "-" if value is None else str(value), source, style="dim" if source == DEFAULT_SOURCE else ""
        )
    Console(markup=False, highlight=False).print(table)

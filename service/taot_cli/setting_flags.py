"""The settings of the planner as flags of a command."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from taot_service.config import ServiceConfig
from taot_service.settings import Setting, settings_of
from taot_service.settings_sources import (
    EffectiveSettings,
    GivenSetting,
    check_not_empty,
    merge_settings,
    misspelt_variables,
    read_settings_file,
)

_FILE_FLAG = Annotated[
    Path | None,
    typer.Option("--config", envvar="TAOT_CONFIG", metavar="FILE", help="TOML file with settings; flags overrule it."),
]


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command a flag for every setting, and `--config`.

    The command is called with the effective settings first; its other parameters stay flags of its own. Settings that
    cannot be are refused with exit code 2.
    """
    _, *parameters = inspect.signature(command, eval_str=True).parameters.values()
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]

    @functools.wraps(command)
    def call(ctx: typer.Context, config_file: Path | None, **values: Any) -> None:
        others = {parameter.name: values.pop(parameter.name) for parameter in own}
        for sentence in misspelt_variables(os.environ):
            _complain(ctx, sentence)
        try:
            check_not_empty(os.environ)
            effective = effective_settings(ctx, config_file, values)
        except ValueError as error:
            _complain(ctx, str(error))
            raise typer.Exit(2) from error
        command(effective, **others)

    flags = [_parameter("ctx", typer.Context), _parameter("config_file", _FILE_FLAG, default=None)]
    flags += [_flag(setting) for setting in settings_of(ServiceConfig)]
    call.__signature__ = inspect.Signature([*flags, *own])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in [*flags, *own]}
    return call


def effective_settings(
    context: typer.Context, config_file: Path | None, values: Mapping[str, Any]
) -> EffectiveSettings:
    """What holds, from the file, the environment and the flags; the last two were read by the command line.

    Raises:
        ValueError: see `merge_settings` and `read_settings_file`.
    """
    in_environment, on_command_line = {}, {}
    for setting in settings_of(ServiceConfig):
        # By name: which module the enum lives in depends on the release of typer.
        source = context.get_parameter_source(setting.name)
        if source is not None and source.name == "ENVIRONMENT":
            in_environment[setting.name] = GivenSetting(value=values[setting.name], source=setting.variable)
        elif source is not None and source.name == "COMMANDLINE":
            on_command_line[setting.name] = GivenSetting(value=values[setting.name], source=setting.flag)
    in_file = read_settings_file(config_file) if config_file is not None else {}
    return merge_settings(in_file, in_environment, on_command_line)


def _flag(setting: Setting) -> inspect.Parameter:
    flag = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.kind is bool else setting.flag
    option = typer.Option(flag, envvar=setting.variable, help=setting.doc)
    kind = setting.kind | None if setting.is_optional else setting.kind
    return _parameter(setting.name, Annotated[kind, option], default=setting.default)


def _parameter(name: str, annotation: Any, **default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, **default)


def _complain(context: typer.Context, sentence: str) -> None:
    print(f"taot {_command_of(context)}: {sentence}", file=sys.stderr, flush=True)


def _command_of(context: typer.Context) -> str:
    """The words of the command that is running, such as `config show`."""
    # Parents are contexts of the library below typer, whose name depends on the release.
    parent: Any = context.parent
    if parent is None or parent.parent is None:
        return str(context.info_name)
    return f"{_command_of(parent)} {context.info_name}"

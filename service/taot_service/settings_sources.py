"""Where settings come from: a TOML file, the environment, flags; what comes later overrules what comes earlier."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

from taot_service.config import ServiceConfig
from taot_service.settings import Setting, settings_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_SOURCE = "default"
"""The source of what nobody has set."""

OTHER_VARIABLES = frozenset({"TAOT_CONFIG", "TAOT_DISABLE"})
"""Variables that mean something and are no settings of the planner."""

_SIMILARITY = 0.85
"""From here on a variable is taken for a misspelt setting. Kubernetes makes variables such as TAOT_PLANNER_PORT for
Services, which must pass."""

_TYPE_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false", Path: "a string"}


@dataclass(frozen=True, kw_only=True)
class GivenSetting:
    """A value that somebody has set."""

    value: Any
    """Of the setting's type."""

    source: str
    """Where: `FILE: key`, a variable or a flag."""


@dataclass(frozen=True, kw_only=True)
class EffectiveSettings:
    """What holds, and why."""

    config: ServiceConfig
    """The settings."""

    sources: Mapping[str, str]
    """Where each comes from, by its name."""

    @property
    def changed(self) -> dict[str, str]:
        """The sources of what somebody has set."""
        return {name: source for name, source in self.sources.items() if source != DEFAULT_SOURCE}


def merge_settings(*layers: Mapping[str, GivenSetting]) -> EffectiveSettings:
    """Joins what was set at several places; later ones overrule earlier ones.

    Raises:
        ValueError: when a value is out of bounds, beginning with its source, or when settings contradict each other.
    """
    given = {name: setting for layer in layers for name, setting in layer.items()}
    settings = settings_of(ServiceConfig)
    for setting in settings:
        if setting.name in given:
            setting.check(given[setting.name].value, label=given[setting.name].source)
    return EffectiveSettings(
        config=ServiceConfig(**{name: setting.value for name, setting in given.items()}),
        sources={
            setting.name: given[setting.name].source if setting.name in given else DEFAULT_SOURCE
            for setting in settings
        },
    )


def read_settings_file(path: Path) -> dict[str, GivenSetting]:
    """Reads a TOML file with one key per setting.

    Raises:
        ValueError: when it cannot be read or is no TOML, and naming the key that is unknown or has the wrong type.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # neither TOML nor text
        raise ValueError(f"{path} is no TOML file: {error}") from error
    settings = {setting.name: setting for setting in settings_of(ServiceConfig)}
    given = {}
    for key, value in content.items():
        source = f"{path}: {key}"
        if key not in settings:
            raise ValueError(f"{source} is no setting{_suggest(key, settings)}")
        given[key] = GivenSetting(value=_typed(value, settings[key], source=source), source=source)
    return given


def misspelt_variables(names: Iterable[str]) -> list[str]:
    """A sentence for each environment variable that looks like a setting and is none."""
    known = {setting.variable for setting in settings_of(ServiceConfig)}
    doubtful = sorted(name for name in names if name.startswith("TAOT_") and name not in known | OTHER_VARIABLES)
    said = ((name, _suggest(name, known, cutoff=_SIMILARITY)) for name in doubtful)
    return [f"{name} is no setting and is ignored{suggestion}" for name, suggestion in said if suggestion]


def check_not_empty(environment: Mapping[str, str]) -> None:
    """Checks that no variable of a setting is set to nothing, which the command line would take for unset.

    Raises:
        ValueError: naming the variable. A planner that was to have tokens must not start without.
    """
    known = [setting.variable for setting in settings_of(ServiceConfig)]
    for name in ("TAOT_CONFIG", *known):
        if environment.get(name) == "":
            raise ValueError(f"{name} is set and empty: give it a value or unset it")


def _typed(value: object, setting: Setting, *, source: str) -> Any:
    """A value of TOML as the setting's type."""
    kind = setting.kind
    if issubclass(kind, Enum):
        words = [str(each.value) for each in kind]
        if value not in words:
            raise ValueError(f"{source} must be one of {', '.join(map(repr, words))}, got {value!r}")
        return kind(value)
    # A bool is an int to Python, and a whole number is a number.
    accepted = {float: (int, float), Path: (str,)}.get(kind, (kind,))
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{source} must be {_TYPE_NAMES[kind]}, got {value!r}")
    # The empty path would become the current folder.
    return kind(value) if value != "" else value


def _suggest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    matches = get_close_matches(name.replace("-", "_"), known, n=1, cutoff=cutoff)
    return f": did you mean {matches[0]}?" if matches else ""

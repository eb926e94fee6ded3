"""Settings as data: what the fields of a configuration say about themselves.

A setting is one field of a frozen dataclass with a default, and a string under it that says what it means. From that
follow its flag, its environment variable, its key in a file, its help and its checks, so that nothing is written twice.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import types
import typing
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

KINDS = (str, int, float, bool, Path, Enum)
"""What a setting can be."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a number may be; part of a field's type: `Annotated[int, Bounds(least=1)]`."""

    least: float | None = None
    """The smallest that is allowed."""

    above: float | None = None
    """What must be exceeded."""

    most: float | None = None
    """The largest that is allowed."""

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"between {self.least} and {self.most}"
        limits = ((">=", self.least), ("above", self.above), ("<=", self.most))
        return " and ".join(f"{word} {limit}" for word, limit in limits if limit is not None)

    def allow(self, value: float) -> bool:
        """Whether a number is within them; what is not finite never is."""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting."""

    name: str
    """The name of the field, which is its key in a file."""

    kind: type[Any]
    """One of KINDS, or a subclass of Enum."""

    is_optional: bool
    """Whether it may be None, which is then what it is unless it is set."""

    default: Any
    """What it is unless it is set."""

    doc: str
    """What it means, in one line."""

    bounds: Bounds | None
    """What a number may be."""

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"TAOT_{self.name.upper()}"

    def check(self, value: Any, *, label: str) -> None:
        """Checks a value of the right type.

        Raises:
            ValueError: beginning with `label`, when it is empty or out of bounds.
        """
        if value == "":
            raise ValueError(f"{label} must not be empty")
        if self.bounds is not None and value is not None and not self.bounds.allow(value):
            raise ValueError(f"{label} must be {self.bounds}, got {value}")


@cache
def settings_of(config: type[Any]) -> tuple[Setting, ...]:
    """The settings that the fields of a dataclass are, in their order."""
    docs = _field_docs(config)
    hints = typing.get_type_hints(config, include_extras=True)
    return tuple(_setting(field, hints[field.name], docs.get(field.name, "")) for field in dataclasses.fields(config))


def check_settings(config: Any) -> None:
    """Checks every field of a configuration by its own bounds.

    Raises:
        ValueError: naming the flag.
    """
    for setting in settings_of(type(config)):  # type: ignore[arg-type]  # classes hash
        setting.check(getattr(config, setting.name), label=setting.flag)


def show_value(value: Any) -> str | int | float | bool | None:
    """A value as JSON and people read it."""
    if isinstance(value, Enum):
        return str(value.value)
    return str(value) if isinstance(value, Path) else typing.cast("str | int | float | bool | None", value)


def _setting(field: dataclasses.Field[Any], hint: Any, doc: str) -> Setting:
    is_optional = typing.get_origin(hint) in (typing.Union, types.UnionType)
    if is_optional:
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    bounds = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, bounds = typing.get_args(hint)
    assert issubclass(hint, KINDS), f"{field.name}: settings cannot be {hint}"
    return Setting(name=field.name, kind=hint, is_optional=is_optional, default=field.default, doc=doc, bounds=bounds)


def _field_docs(config: type[Any]) -> dict[str, str]:
    """The string under each field, which Python itself does not keep; none where there is no source."""
    try:
        source = textwrap.dedent(inspect.getsource(config))
    except OSError:
        return {}
    (statement,) = ast.parse(source).body
    assert isinstance(statement, ast.ClassDef)
    docs = {}
    for field, below in zip(statement.body, statement.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            docs[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs

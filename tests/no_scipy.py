"""A machine without scipy, which is optional."""

from __future__ import annotations

import importlib.abc
import sys

import pytest


class _NoScipy(importlib.abc.MetaPathFinder):
    """Makes scipy look as if it were not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Refuses scipy and leaves the rest to others."""
        if fullname.split(".", maxsplit=1)[0] == "scipy":
            raise ModuleNotFoundError(f"No module named {fullname!r}")


def hide_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides it until the test ends."""
    for name in [name for name in sys.modules if name.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_NoScipy(), *sys.meta_path])

"""Debian's `prometheus` and `promtool`, wherever `make tools` or a package has put them."""

from __future__ import annotations

import os
import shutil
import sysconfig

import pytest

MISSING = "{} is missing: run `make tools`, or install Debian's package `prometheus`"


def find_tool(name: str) -> str:
    """The path of a program of the package; skips the test without, and fails it in continuous integration."""
    path = shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    if path is None and os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(MISSING.format(name))
    if path is None:
        pytest.skip(MISSING.format(name))
    return path

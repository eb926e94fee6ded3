"""Digests of source files: which of them a compiled kernel was made of, and whether two ranks run the same."""

from __future__ import annotations

import hashlib
import re
import sys
from functools import cache
from pathlib import Path

_IMPORTED = re.compile(r"^from (taot_\w+(?:\.\w+)*) import ", re.MULTILINE)
"""What this project writes to import something of its own at the top of a file."""


def package_digest(package: str) -> str:
    """A digest of all source files of an imported package; the same wherever it is installed."""
    folder = _file_of(package).parent
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + hashlib.sha256(_read(file)).digest())
    return digest.hexdigest()


@cache
def imported_digest(module: str) -> str:
    """A digest of the sources of a module and of everything of this project that it imports, directly or not.

    Only `from taot_... import` at the top of a file is seen, and packages that have been imported.
    """
    files: dict[Path, None] = {}
    waiting = [_file_of(module)]
    while waiting:
        file = waiting.pop()
        if file not in files:
            files[file] = None
            waiting += [_file_of(name) for name in _imported(file) if name.partition(".")[0] in sys.modules]
    return hashlib.sha256(b"".join(sorted(hashlib.sha256(_read(file)).digest() for file in files))).hexdigest()


def _file_of(name: str) -> Path:
    """The file of a module; that of a package is its `__init__.py`."""
    package, *inner = name.split(".")
    file = sys.modules[package].__file__
    assert file is not None, "packages of this project have an __init__.py"
    if not inner:
        return Path(file)
    place = Path(file).parent.joinpath(*inner)
    module = place.with_name(f"{place.name}.py")
    return module if module.exists() else place / "__init__.py"


@cache
def _imported(file: Path) -> tuple[str, ...]:
    return tuple(_IMPORTED.findall(_read(file).decode()))


@cache
def _read(file: Path) -> bytes:
    """The contents of a file as they were first seen, as modules are; empty where there is none to read."""
    try:
        return file.read_bytes()
    except OSError:
        return b""

"""What is compiled on disk is never used once anything that it was made of has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taot_planning import kernel_sources

CALLED = """
from taot_planning.kernel import kernel

@kernel
def amount(x):
    return x + {amount}
"""
BETWEEN = """
from taot_planning.kernel import kernel
from taot_sample.called import amount

@kernel
def more(x):
    return amount(x)
"""
CALLER = """
from taot_planning.kernel import kernel
from taot_sample.between import more

@kernel
def twice(x):
    return 2 * more(x)
"""
PROGRAM = """
from taot_sample.caller import twice
print(twice(1), sum(twice.stats.cache_hits.values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "taot_sample"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "between.py").write_text(BETWEEN)
    (package / "caller.py").write_text(CALLER)
    (package / "other.py").write_text("")
    return tmp_path


def run(folder: Path, *, amount: int) -> list[int]:
    """What the kernel answers, and how many of its versions came from the disk, in a process of its own."""
    (folder / "taot_sample" / "called.py").write_text(CALLED.format(amount=amount))
    path = os.pathsep.join([str(folder), *sys.path])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    answer = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return [int(word) for word in answer.stdout.split()]


@pytest.mark.slow
def test_a_kernel_on_disk_is_used_until_a_file_changes_that_it_is_made_of(folder):
    assert run(folder, amount=1) == [4, 0]
    assert run(folder, amount=1) == [4, 1]
    assert run(folder, amount=5) == [12, 0], "the cache is stale"
    (folder / "taot_sample" / "other.py").write_text("# nothing imports this")
    assert run(folder, amount=5) == [12, 1]


def test_a_package_has_another_digest_with_any_change_of_a_file(tmp_path, monkeypatch):
    def digest(name: str, **files: str) -> str:
        package = tmp_path / name
        package.mkdir()
        for file, text in {"__init__": "", **files}.items():
            (package / f"{file}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        __import__(name)
        return kernel_sources.package_digest(name)

    first = digest("taot_one", a="x = 1")
    assert digest("taot_same", a="x = 1") == first
    others = [digest("taot_text", a="x = 2"), digest("taot_name", b="x = 1"), digest("taot_more", a="x = 1", b="")]
    assert len({first, *others}) == 4

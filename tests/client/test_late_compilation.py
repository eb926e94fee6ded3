"""Kernels that meet an unusual array for the first time in a forward would stall all ranks for seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_compiles_after_the_start_of_an_agent() -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "late_compilation.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = dict(line.split(" ", 1) for line in done.stdout.replace("late\n", "late \n").splitlines())
    assert int(seen["guests"]) > 0
    assert int(seen["warmed"]) > 5
    assert seen["late"].split() == []

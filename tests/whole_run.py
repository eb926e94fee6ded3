"""A command run to its end, with its children."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any


def run_whole(command: Sequence[str], *, seconds: float, **how: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`, but asks a command that takes too long to end, so that torchrun ends its workers."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes, **how) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
            raise AssertionError(f"{command} has not ended within {seconds} s\n{out[-4000:]}\n{err[-8000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)

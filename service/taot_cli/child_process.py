"""A process that the command line starts, watches, and never leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

STOP_SECONDS = 15
NUM_TAIL_LINES = 15


class ChildFailedError(RuntimeError):
    """A child process ended badly; the message holds the end of what it printed."""


def end_children_when_told() -> None:
    """Leaves through the `with` blocks that end the children, also when this process is asked to end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: sys.exit(128 + received))


class ChildProcess:
    """A child in a process group of its own; leaving the `with` block ends it with all of its own children."""

    def __init__(
        self, name: str, command: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Prepares `command`; what it prints goes to a file in `folder`, `environment` adds to this process's."""
        self.name = name
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._log_path = folder / f"{name.replace(' ', '-')}.log"
        self._log: TextIO
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> ChildProcess:
        self._log = self._log_path.open("w", encoding="utf-8")
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._log.close()

    def is_running(self) -> bool:
        """Whether it still runs.

        Raises:
            ChildFailedError: if it has ended with an error.
        """
        status = self._process.poll()
        if status:
            raise self.failure(f"ended with status {status}")
        return status is None

    def failure(self, what: str) -> ChildFailedError:
        """An error about this child, with the end of what it printed."""
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()[-NUM_TAIL_LINES:]
        return ChildFailedError("\n".join([f"{self.name} {what}; it printed at last:", *lines]))

    def stop(self) -> None:
        """Asks the child to end, then ends its process group, and what has left it while the child does not answer."""
        strays: list[int] = []
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                strays = _descendants(self._process.pid)
        for process in strays:  # torchrun's workers have sessions of their own, and outlive one that is killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _descendants(ancestor: int) -> list[int]:
    """The children of a process, their children, and so on; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The name stands in parentheses and may hold anything; the parent is the second field behind it.
            parent = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(folder.name))
    found = [ancestor]
    for process in found:
        found += children.get(process, [])
    return found[1:]

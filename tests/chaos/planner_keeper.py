"""A planner process on one port that is killed, stopped, slowed and brought back."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.process_memory import resident_mib
from link_samples import eventually
from running_planner import START_BOUND_SECONDS, free_port, serve_command

_PAUSE = threading.Event()


class Nursery:
    """Forks planners from a process that has everything ready; see planner_nursery.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("planner_nursery.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        watchdog = threading.Timer(3 * START_BOUND_SECONDS, self._process.kill)  # it may have to compile
        watchdog.start()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the nursery did not start"
        watchdog.cancel()
        self._lock = threading.Lock()

    def fork(self, port: int, folder: Path) -> int:
        """Starts a planner and returns its process id at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(f"{port} {folder}\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class KeptPlanner:
    """One planner at a time on one port."""

    def __init__(self, nursery: Nursery, name: str) -> None:
        self.port = free_port()
        self.peak_mib = 0.0
        """The most memory that any of its lives held before it ended."""
        self._nursery = nursery
        self._folder = nursery.folder / name
        self._folder.mkdir()
        self._pid: int | None = None
        self._cold: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def stderr(self) -> str:
        """What all its lives have said."""
        log = self._folder / "stderr"
        return log.read_text(errors="backslashreplace") if log.exists() else ""

    def start(self, *, is_cold: bool = False) -> None:
        """Starts a life and returns at once; a cold one is `taot serve` as everybody starts it."""
        if not is_cold:
            self._pid = self._nursery.fork(self.port, self._folder)
            return
        with (self._folder / "stderr").open("a") as stderr:
            self._cold = subprocess.Popen(
                serve_command("--grpc-port", str(self.port)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                text=True,
            )
        self._pid = self._cold.pid

    def kill(self) -> None:
        """Ends the life as a crash would, and waits for the end."""
        assert self._pid is not None
        with contextlib.suppress(OSError, ProcessLookupError):
            self.peak_mib = max(self.peak_mib, resident_mib(self._pid))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        if self._cold is not None:
            self._cold.wait()
            self._cold = None
        else:
            assert eventually(lambda pid=self._pid: not _is_alive(pid))
        self._pid = None

    def stop_for(self, seconds: float) -> None:
        """Stands still for a while, with all connections open."""
        assert self._pid is not None
        os.kill(self._pid, signal.SIGSTOP)
        _PAUSE.wait(seconds)
        os.kill(self._pid, signal.SIGCONT)

    def slow_down_for(self, seconds: float) -> None:
        """Gets a tenth of the time for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.stop_for(0.045)
            _PAUSE.wait(0.005)

    def is_listening(self) -> bool:
        """Whether the port takes connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


def wait_a_random_while(source: random.Random, *, at_most_seconds: float) -> None:
    _PAUSE.wait(source.random() * at_most_seconds)


@contextlib.contextmanager
def kept_planners(*names: str) -> Iterator[list[KeptPlanner]]:
    """Planners that have not been started yet; those that live at the end are killed."""
    with tempfile.TemporaryDirectory(prefix="taot-chaos-") as folder:
        nursery = Nursery(Path(folder))
        planners = [KeptPlanner(nursery, name) for name in names]
        try:
            yield planners
        finally:
            for planner in planners:
                if planner._pid is not None:
                    planner.kill()
            nursery.end()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

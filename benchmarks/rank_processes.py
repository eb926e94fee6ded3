"""Starts the ranks of a benchmark as processes, and a planner beside them; ends them all, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PLANNER_START_SECONDS = 180.0
"""On a first run the planner compiles its kernels."""


def end_on_terminate() -> None:
    """Lets SIGTERM end this process as Ctrl-C does, so that what it has started is ended too.

    SIGINT as well: a shell lets it be ignored by what it starts in the background.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def run_ranks(
    script: str,
    task: Mapping[str, Any],
    *,
    prefixes: Sequence[Sequence[str]],
    environment: Mapping[str, str] | None = None,
    limit_seconds: float,
) -> Any:
    """Runs `script --rank R --task FILE` once per prefix, and returns what rank 0 has written to task["result"].

    Args:
        script: path of the benchmark itself.
        task: what the ranks have to know.
        prefixes: of each rank's command line, such as `ip netns exec NAME`.
        environment: added to that of this process.
        limit_seconds: after which all are ended.

    Raises:
        RuntimeError: if a rank fails or the time is over; with the end of what it said.
    """
    with tempfile.TemporaryDirectory(prefix="taot-ranks-") as name:
        folder = Path(name)
        result = folder / "result.json"
        (folder / "task.json").write_text(json.dumps({**task, "result": str(result), "size": len(prefixes)}))
        processes = []
        try:
            for rank, prefix in enumerate(prefixes):
                command = [*prefix, sys.executable, script, "--rank", str(rank), "--task", str(folder / "task.json")]
                with (folder / f"log{rank}").open("w") as log:
                    variables = {**os.environ, **(environment or {})}
                    said = log if rank else None  # rank 0 says how far they are
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=said, env=variables
                    )
                processes.append(process)
            _wait(processes, folder, limit_seconds)
        finally:
            end(processes)
        return json.loads(result.read_text())


def _wait(processes: Sequence[subprocess.Popen[bytes]], folder: Path, limit_seconds: float) -> None:
    deadline = time.monotonic() + limit_seconds
    while any(process.poll() is None for process in processes):
        failed = [rank for rank, process in enumerate(processes) if process.poll()]
        if failed or time.monotonic() > deadline:
            rank = failed[0] if failed else 0
            said = (folder / f"log{rank}").read_text()[-4000:]
            raise RuntimeError(f"rank {rank} {'failed' if failed else 'did not end in time'}:\n{said}")
        time.sleep(0.1)
    failed = [rank for rank, process in enumerate(processes) if process.returncode]
    if failed:
        raise RuntimeError(f"rank {failed[0]} failed:\n{(folder / f'log{failed[0]}').read_text()[-4000:]}")


def end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends processes that were started here, politely first."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)


@contextmanager
def serving_planner(prefix: Sequence[str] = ()) -> Iterator[str]:
    """Starts a planner behind a command prefix; gives its address on the loopback of its machine or namespace."""
    with tempfile.TemporaryDirectory(prefix="taot-planner-") as name:
        ports = Path(name) / "ports.json"
        command = [*prefix, sys.executable, "-m", "taot_cli", "serve"]
        command += ["--grpc-port", "0", "--http-port", "0", "--ports-file", str(ports)]
        with (Path(name) / "log").open("w") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + PLANNER_START_SECONDS
            while not ports.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the planner did not start:\n{(Path(name) / 'log').read_text()[-4000:]}")
                time.sleep(0.1)
            time.sleep(0.2)  # the file appears before it is written
            yield f"127.0.0.1:{json.loads(ports.read_text())['grpc_port']}"
        finally:
            end([process])

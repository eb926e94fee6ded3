"""Planners on demand, each a process of its own; run as a script by planner_keeper.py.

They are forked from this process once everything has been imported and compiled, which takes far longer than all the
rest of a start. A line "PORT FOLDER" on standard input starts one, and its process id is printed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from taot_planning import warm_up
from taot_service.config import ServiceConfig
from taot_service.server import run


def be_a_planner(port: int, folder: Path) -> int:
    """What the process of one planner does; returns its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(folder / "stderr", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = ServiceConfig(grpc_port=port, http_port=0)
    return run(config, announce=lambda line: None, complain=lambda line: print(line, file=sys.stderr, flush=True))


def main() -> None:
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    print("ready", flush=True)
    for line in sys.stdin:
        port, folder = line.rstrip("\n").split(" ", 1)
        pid = os.fork()
        if pid == 0:
            os._exit(be_a_planner(int(port), Path(folder)))
        print(pid, flush=True)


if __name__ == "__main__":
    main()

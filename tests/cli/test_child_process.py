"""What the command line starts is gone with it, also what has left its process group."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from link_samples import eventually

from taot_cli import child_process
from taot_cli.child_process import ChildProcess

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(300)
"""


def is_alive(process: int) -> bool:
    """Whether it runs; one that nobody has waited for yet has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_that_does_not_listen_takes_its_own_children_along(tmp_path, monkeypatch):
    monkeypatch.setattr(child_process, "STOP_SECONDS", 0.2)
    with ChildProcess("stubborn", [sys.executable, "-c", STUBBORN], folder=tmp_path) as child:
        log = tmp_path / "stubborn.log"
        assert eventually(lambda: log.read_text().endswith("\n"))
        grandchild = int(log.read_text())
        assert is_alive(grandchild)
        assert os.getsid(grandchild) == grandchild
        assert child.is_running()
    assert eventually(lambda: not is_alive(grandchild))

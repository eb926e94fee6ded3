"""A Prometheus of this command, on the loopback interface, that scrapes one planner and ends with the command."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sysconfig
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taot_cli.child_process import ChildFailedError, ChildProcess
from taot_cli.loopback_http import get_text

START_BOUND_SECONDS = 60
POLL_SECONDS = 0.1

MISSING = (
    "prometheus is missing: run `make tools` in a checkout, or install the Debian package `prometheus`"
    " (apt-get install prometheus), or put the program on the PATH"
)

_CONFIG = """\
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files:
  - {rules}/*.yml
scrape_configs:
  - job_name: taot-planner
    static_configs:
      - targets: ["127.0.0.1:{http_port}"]
"""


@dataclass(frozen=True, kw_only=True)
class LocalPrometheus:
    """Where it listens, and what it knows."""

    url: str
    """Its address, for browsers and for Grafana."""

    def query(self, expr: str, *, at_seconds: float | None = None) -> list[dict[str, Any]]:
        """The samples of an instant query: metric and [time, value as text]; none where Prometheus has none.

        Args:
            expr: PromQL.
            at_seconds: seconds since 1970; None: now.

        Raises:
            ChildFailedError: if Prometheus does not answer the query.
        """
        arguments = {"query": expr} | ({} if at_seconds is None else {"time": f"{at_seconds:.3f}"})
        text = get_text(f"{self.url}/api/v1/query?{urllib.parse.urlencode(arguments)}")
        if text is None:
            raise ChildFailedError(f"Prometheus at {self.url} does not answer: {expr}")
        result: list[dict[str, Any]] = json.loads(text)["data"]["result"]
        return result


def find_prometheus() -> Path:
    """The program: on the PATH, or beside this interpreter, where `make tools` puts it.

    Raises:
        ChildFailedError: if there is none.
    """
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    program = shutil.which("prometheus", path=path)
    if program is None:
        raise ChildFailedError(MISSING)
    return Path(program)


@contextmanager
def local_prometheus(folder: Path, *, http_port: int, rules: Path) -> Iterator[LocalPrometheus]:
    """Runs a Prometheus that scrapes the planner at `http_port` every second; yields once it answers.

    Raises:
        ChildFailedError: if it cannot.
    """
    program, port = find_prometheus(), _free_port()
    config = folder / "prometheus.yml"
    config.write_text(_CONFIG.format(rules=rules, http_port=http_port), encoding="utf-8")
    command = [
        str(program),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    assets = program.parent.parent / "share/prometheus/web"
    if assets.is_dir():  # Debian keeps them beside the program, others inside it
        command.append(f"--web.local-assets={assets}")
    prometheus = LocalPrometheus(url=f"http://127.0.0.1:{port}")
    with ChildProcess("prometheus", command, folder=folder) as process:
        bound = time.monotonic() + START_BOUND_SECONDS
        while get_text(f"{prometheus.url}/-/ready") is None:
            if time.monotonic() > bound or not process.is_running():
                raise process.failure(f"was not ready within {START_BOUND_SECONDS} s")
            time.sleep(POLL_SECONDS)
        yield prometheus


def _free_port() -> int:
    """A port that is free now. Prometheus does not tell which one it has chosen, so it cannot choose by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

"""The health check of the image, asked of a real planner outside of any container."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from certificates import Authority
from deploy_files import ROOT
from running_planner import running_planner

from taot_service.config import ServiceConfig

BOUND_SECONDS = 30


def health_check() -> list[str]:
    """The words of the command in the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text()
    command = re.search(r"^HEALTHCHECK .*? CMD (\[.*?\])$", text, re.MULTILINE | re.DOTALL)
    return json.loads(command[1].replace("\\\n", ""))


@pytest.mark.parametrize("has_tls", [False, True])
def test_the_health_check_of_the_image_speaks_as_the_planner_does(tmp_path, has_tls):
    config, environment = ServiceConfig(), {}
    if has_tls:
        certificate, key = Authority().issue("planner.example").write(tmp_path)
        config = ServiceConfig(tls_cert=certificate, tls_key=key)
        environment = {"TAOT_TLS_CERT": str(certificate)}
    python, *arguments = health_check()
    assert python == "python3"
    with running_planner(config, is_warm_awaited=False) as planner:
        environment |= {"TAOT_HTTP_PORT": str(planner.http_port), "no_proxy": "*"}
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
            check=False,
        )
    # It is not ready while it compiles kernels.
    assert done.returncode == 0 or "HTTP Error 503" in done.stderr, done.stderr

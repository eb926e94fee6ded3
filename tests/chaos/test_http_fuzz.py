"""What schemathesis makes of the HTTP side's own OpenAPI document is answered as that document says.

Needs the program in an environment of its own, which `make fuzz` prepares and names in TAOT_SCHEMATHESIS.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from chaos.process_memory import resident_mib
from chaos.settings import number, seed
from planner_client import planner_client
from routing_samples import make_report, make_spec
from running_planner import planner_process

MAX_GROWTH_MIB = 100
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("has_session", [False, True], ids=["any session", "an open session"])
def test_requests_made_from_the_openapi_document_are_answered_as_it_says(tmp_path, has_session):
    program = os.environ.get("TAOT_SCHEMATHESIS")
    if program is None:
        pytest.skip("schemathesis is not there: use make fuzz")
    with planner_process(flags=["--lease-seconds", "3600"]) as planner, planner_client(planner.address) as client:
        spec = make_spec()
        session_id = client.open(spec)
        client.report_and_wait(session_id, spec, make_report(spec, step=1))
        if has_session:
            (tmp_path / "schemathesis.toml").write_text(f'[parameters]\n"path.session_id" = "{session_id}"\n')
        before = resident_mib(planner.pid)
        done = _schemathesis(Path(program), planner.http_port, tmp_path)
        print(done.stdout[-3000:])
        grown = resident_mib(planner.pid) - before
        print(f"memory of the planner: {before:.0f} MiB before, {grown:+.0f} MiB")
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        client.report_and_wait(session_id, spec, make_report(spec, step=2))
        assert planner.terminate() == 0
        assert "Traceback" not in planner.stderr, planner.stderr[-5000:]
    assert grown < MAX_GROWTH_MIB


def _schemathesis(program: Path, port: int, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            str(program),
            "run",
            f"http://127.0.0.1:{port}/openapi.json",
            f"--checks={CHECKS}",
            f"--max-examples={number('HTTP_INPUTS', 3000) // 10}",
            f"--seed={seed()}",
            "--exclude-path=/v1/events",  # a stream, which goes on for ever
            "--phases=examples,coverage,fuzzing",
            "--request-timeout=20",
            "--no-color",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={key: value for key, value in os.environ.items() if "proxy" not in key.lower()},
    )

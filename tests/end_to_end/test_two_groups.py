"""A job with two expert-parallel groups, neither of which is ranks 0 to n-1, in real processes."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from link_samples import eventually
from running_planner import running_planner

from taot_cli.child_process import ChildProcess


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_groups_of_a_job_have_sessions_of_their_own(tmp_path):
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    with running_planner() as planner:
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"),
            *("--nproc-per-node", "4", str(here / "two_groups.py"), planner.address),
        ]
        with ChildProcess("job", command, folder=tmp_path, environment={"PYTHONPATH": path}) as job:
            assert eventually(lambda: not job.is_running(), seconds=150)
    moved = dict(re.findall(r"group (ep\d) rank 0: moved (\d+)", (tmp_path / "job.log").read_text()))
    assert moved.keys() == {"ep0", "ep1"}
    assert all(int(count) > 0 for count in moved.values())

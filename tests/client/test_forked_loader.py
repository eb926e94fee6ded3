"""A data loader that forks its workers while the agent's connection is in use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset
from link_samples import WAIT, eventually, report, spec
from taot_client.planner.planner_link import PlannerLink

class Windows(Dataset):
    def __len__(self): return 100
    def __getitem__(self, index):
        # A worker must not hold a connection to the planner that it uses, nor be able to use the agent's.
        if link is not None and os.getpid() != parent:
            try:
                link.report(report())
            except RuntimeError as error:
                assert "forked child" in str(error)
            else:
                raise AssertionError("a forked child reported")
            assert link._channel is None
        return torch.tensor(index)

parent, link = os.getpid(), None
link = PlannerLink(sys.argv[1], spec("forked"))
assert link.start(wait=WAIT) is None
for round in range(20):
    loader = DataLoader(Windows(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    for index, batch in enumerate(loader):
        link.report(report(round * 100 + index))
assert eventually(lambda: link.plan is not None)
link.close()
print("all rounds done")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_forked_workers_neither_crash_nor_touch_the_connection(planner):
    tests = Path(__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, planner.address],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), os.environ.get("PYTHONPATH", "")])},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "all rounds done" in ended.stdout

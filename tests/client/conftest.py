from __future__ import annotations

import pytest
import torch
from running_planner import running_planner

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def planner():
    with running_planner() as running:
        yield running

from __future__ import annotations

import pytest
from planner_client import planner_client
from running_planner import running_planner


@pytest.fixture(scope="module")
def planner():
    with running_planner() as running:
        yield running


@pytest.fixture
def client(planner):
    with planner_client(planner.address) as opened:
        yield opened

from __future__ import annotations

import httpx
import pytest
from planner_client import CALL_SECONDS, planner_client
from running_planner import running_planner


@pytest.fixture(scope="module")
def planner():
    with running_planner() as running:
        yield running


@pytest.fixture
def client(planner):
    with planner_client(planner.address) as opened:
        yield opened


@pytest.fixture
def http(planner):
    with httpx.Client(
        base_url=f"http://127.0.0.1:{planner.http_port}", timeout=CALL_SECONDS, trust_env=False
    ) as opened:
        yield opened

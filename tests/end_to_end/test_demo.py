"""The demo as a user runs it: a live planner, four processes under torchrun, and the result as JSON."""

from __future__ import annotations

import json
import sys

import pytest
from link_samples import eventually

from taot_cli.child_process import ChildProcess

KEYS = [
    "loss_max_relative_difference",
    "imbalance_static",
    "imbalance_taot",
    "guests_intra",
    "guests_inter",
    "weighted_cost",
    "planning_seconds_p50",
    "planning_seconds_p99",
    "transfer_hidden_share",
    "fallbacks",
    "seconds",
]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_balances_real_training_with_the_same_loss(tmp_path):
    command = [sys.executable, "-m", "taot_cli", "demo", "--steps", "10", "--json", str(tmp_path / "demo.json")]
    with ChildProcess("demo", command, folder=tmp_path) as demo:
        assert eventually(lambda: not demo.is_running(), seconds=380)
    printed = (tmp_path / "demo.log").read_text()
    result = json.loads((tmp_path / "demo.json").read_text())
    assert list(result) == KEYS
    assert result["loss_max_relative_difference"] <= 1e-5
    assert result["imbalance_static"] > 0.15  # visible without any balancing loss
    assert result["imbalance_taot"] < result["imbalance_static"] / 5
    assert result["guests_intra"] > 0
    assert result["guests_inter"] > 0
    assert result["weighted_cost"] == result["guests_intra"] + 3 * result["guests_inter"]
    assert 0 < result["planning_seconds_p50"] <= result["planning_seconds_p99"]
    assert 0 < result["transfer_hidden_share"] <= 1
    for words in ("static", "with TAOT", "mean imbalance", "largest relative loss difference"):
        assert words in printed

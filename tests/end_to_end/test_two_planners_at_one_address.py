"""Two planners behind one address: the job notices, says so once, and trains on."""

from __future__ import annotations

import logging
import re
import urllib.request

import pytest
from link_samples import eventually
from rank_threads import run_ranks
from running_planner import PlannerProcess, planner_process
from tcp_forwarder import tcp_forwarder
from tiny_moe import TinyConfig, assert_same_gradients, merged, tiny_options, train, train_dense

from taot_client import Agent

pytestmark = pytest.mark.slow

CONFIG = TinyConfig(num_layers=1)
RANKS, STEPS = 4, 12
SWITCHES = (2, 4, 6, 8)
"""Steps before which the connection breaks and the next one leads to the other planner."""
BACK = len(SWITCHES) - 1
"""Of these switches, those that lead to a planner that has answered before."""


def counted(planner: PlannerProcess, reason: str) -> float:
    """Errors of agents that a planner has been told of."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{planner.http_port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return sum(map(float, re.findall(rf'^taot_agent_errors_total{{.*reason="{reason}".*}} (\S+)$', text, re.M)))


@pytest.mark.timeout(300)
def test_two_planners_behind_one_address_are_detected_and_training_goes_on(caplog):
    told: list[float] = []
    epochs: list[str] = []

    def before_step(agent: Agent, step: int) -> None:
        if not agent.planner_stats:  # not the leader
            return
        if step:
            assert eventually(lambda: (plan := agent.planner_stats["plan"]) and plan.source_step >= step - 1)
            epochs.append(agent.planner_stats["plan"].identity.planner_epoch)
        if step in SWITCHES:
            reconnects = agent.planner_stats["reconnects"]
            forwarder.break_connections()
            assert eventually(lambda: agent.planner_stats["reconnects"] > reconnects)
        if step == STEPS - 1:  # while the session is there, since its series end with it
            assert eventually(lambda: sum(counted(each, "two_planners") for each in planners) >= BACK)
            told.append(sum(counted(each, "two_planners") for each in planners))

    with planner_process() as one, planner_process() as other:
        planners = (one, other)
        with tcp_forwarder(one.grpc_port, other.grpc_port) as forwarder, caplog.at_level(logging.ERROR, "taot_client"):
            options = tiny_options(ranks_per_node=2, planner_address=forwarder.address)
            histories = run_ranks(
                RANKS,
                lambda rank: train(rank, CONFIG, options, num_steps=STEPS, before_step=before_step),
                timeout_seconds=150,
            )
    got = merged(histories)
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=STEPS), tolerance=1e-9)
    assert len(set(epochs)) == 2
    assert told == [BACK]
    (message,) = [record.message for record in caplog.records if "more than one planner" in record.message]
    assert forwarder.address in message
    assert got.summaries[-1].mode.name == "PLAN"

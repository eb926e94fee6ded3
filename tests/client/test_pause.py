"""An operator's pause, from the HTTP side of the planner to the ranks and back."""

from __future__ import annotations

import itertools

import httpx
import pytest
from link_samples import WAIT, eventually, report, spec
from plans_awaited import await_plan
from rank_threads import run_ranks
from running_planner import free_port, planner_process, running_planner
from tiny_moe import TinyConfig, assert_same_gradients, merged, tiny_options, train, train_dense

from taot_client import Agent
from taot_client.planner.planner_link import PlannerLink

CONFIG = TinyConfig(num_layers=2)
RANKS, STEPS, PAUSE_AT, RESUME_AT = 4, 12, 4, 8


@pytest.mark.slow
def test_a_paused_session_trains_without_guests_until_it_is_resumed():
    with running_planner() as planner:
        session_of = planner.planner

        def switch(agent: Agent, verb: str) -> None:
            [session] = session_of.sessions
            url = f"http://127.0.0.1:{planner.http_port}/v1/sessions/{session.session_id}/{verb}"
            httpx.post(url, headers={"x-taot-request": "1"}, trust_env=False).raise_for_status()

        def before_step(agent: Agent, step: int) -> None:
            if not agent.planner_stats:  # not the leader
                return
            await_plan(agent, step)
            if step in (PAUSE_AT, RESUME_AT):
                switch(agent, "pause" if step == PAUSE_AT else "resume")
            if step in (PAUSE_AT + 1, RESUME_AT + 1):  # the answer to the report of the step before has come
                assert eventually(lambda: agent.planner_stats["paused"] == (step == PAUSE_AT + 1))

        histories = run_ranks(
            RANKS,
            lambda rank: train(
                rank,
                CONFIG,
                tiny_options(ranks_per_node=2, planner_address=planner.address),
                num_steps=STEPS,
                before_step=before_step,
            ),
        )
    got = merged(histories)
    assert_same_gradients(got, train_dense(CONFIG, num_ranks=RANKS, num_steps=STEPS), tolerance=1e-9)
    modes = [summary.mode.name for summary in got.summaries]
    assert set(modes[1:PAUSE_AT]) == {"PLAN"}
    # The record of a step is written when the step before ends, so a switch acts one or two steps later.
    assert set(modes[PAUSE_AT + 2 : RESUME_AT]) == {"HOME_ONLY"}, modes
    assert {summary.reason.name for summary in got.summaries[PAUSE_AT + 2 : RESUME_AT]} == {"PAUSED"}
    assert sum(s.guests_intra + s.guests_inter for s in got.summaries[PAUSE_AT + 2 : RESUME_AT]) == 0
    assert set(modes[RESUME_AT + 2 :]) == {"PLAN"}, modes


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_pause_holds_while_the_planner_is_away_and_ends_with_its_next_life(monkeypatch):
    port, steps = free_port(), itertools.count()

    def reports_until(condition) -> bool:
        return eventually(lambda: link.report(report(next(steps))) or condition(), seconds=40)

    link = PlannerLink(f"127.0.0.1:{port}", spec("paused"))
    attempts, open_session = [], link._open
    monkeypatch.setattr(link, "_open", lambda: attempts.append(None) or open_session())
    try:
        with planner_process(grpc_port=port) as planner:
            assert link.start(wait=WAIT) is None
            url = f"http://127.0.0.1:{planner.http_port}/v1/sessions"
            [session] = httpx.get(url, trust_env=False).json()["sessions"]
            pause = f"{url}/{session['session_id']}/pause"
            httpx.post(pause, headers={"x-taot-request": "1"}, trust_env=False).raise_for_status()
            assert reports_until(lambda: link.is_paused)
            planner.kill()
        assert reports_until(lambda: not link.is_connected)
        before = len(attempts)
        assert eventually(lambda: len(attempts) >= before + 2), "it does not look for the planner"
        assert link.is_paused, "nobody has resumed it"
        with planner_process(grpc_port=port) as planner:
            assert reports_until(lambda: not link.is_paused)
            url = f"http://127.0.0.1:{planner.http_port}/v1/sessions"
            [session] = httpx.get(url, trust_env=False).json()["sessions"]
            assert not session["is_paused"]
    finally:
        link.close()

from __future__ import annotations

import io

import pytest
from rank_threads import Rank, run_ranks
from rich.console import Console
from tiny_moe import TinyConfig, TinyMoE, batch, loss_of

from taot_client import Agent, AgentOptions
from taot_client.planner.step_record import ModeReason, StepMode
from taot_client.run_report import RankTotals, RunReport
from taot_client.step_summary import StepSummary


def summary(step: int, *, imbalance: float, fallbacks: dict[str, int], mode: StepMode = StepMode.PLAN) -> StepSummary:
    return StepSummary(
        step=step,
        mode=mode,
        reason=ModeReason.AS_CONFIGURED,
        imbalance_static={"a": 0.5, "b": 1.0},
        imbalance_planned={"a": 0.01, "b": 0.02},
        imbalance={"a": imbalance, "b": 0.02},
        guests_intra=3,
        guests_inter=1,
        weighted_cost=6.0,
        fallbacks=fallbacks,
        layers_off=("b",) if step == 1 else (),
    )


def shown(report: RunReport, totals: RankTotals, planner: dict[str, object]) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.render(totals, planner))
    return console.export_text()


def test_steps_add_up_and_imbalances_are_means() -> None:
    report = RunReport("taot, ahead, 4 ranks")
    report.add(summary(0, imbalance=0.1, fallbacks={"no_plan_yet": 2}, mode=StepMode.HOME_ONLY))
    report.add(summary(1, imbalance=0.3, fallbacks={"not_arrived": 1}))
    assert report.imbalances() == {"a": pytest.approx((0.5, 0.01, 0.2)), "b": pytest.approx((1.0, 0.02, 0.02))}
    totals = RankTotals(flight_seconds=2.0, exposed_seconds=0.5, intra_node_sent_bytes=3_000_000)
    text = shown(report, totals, {"connected": True, "reconnects": 2, "plan": object()})
    rows = {tuple(cell.strip() for cell in line.strip().strip("│┃").split("│")) for line in text.splitlines()}
    assert ("a", "50.0%", "1.0%", "20.0%", "0") in rows
    assert ("b", "100.0%", "2.0%", "2.0%", "1") in rows
    assert ("mean", "75.0%", "1.5%", "11.0%", "") in rows
    assert {
        ("steps", "1 home_only, 1 plan"),
        ("guests moved, intra / inter node", "6 / 2"),
        ("weighted cost per layer and step", "3.00"),
        ("hidden behind other work", "75.0%"),
        ("guest bytes sent, intra / inter node", "3.0 MB / 0.0 MB"),
        ("passes without wanted guests", "3"),
        ("no_plan_yet", "2"),
        ("planner: reconnects", "2"),
    } <= rows
    assert "taot, ahead, 4 ranks, 2 steps" in text


def test_a_report_can_be_shown_before_the_first_step() -> None:
    text = shown(RunReport("taot, inline, 2 ranks"), RankTotals(), {})
    assert "0 steps" in text
    assert "100.0%" in text


@pytest.mark.parametrize("disabled", [False, True])
def test_an_agent_reports_what_its_summaries_say(disabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if disabled:
        monkeypatch.setenv("TAOT_DISABLE", "1")
    config = TinyConfig(num_layers=2, tokens_by_rank=(40, 33))

    def body(rank: Rank) -> str:
        model = TinyMoE(config, rank.group)
        agent = Agent(model, AgentOptions(ranks_per_node=1, measured_gates=False), groups=rank.agent_groups)
        moved = 0
        for step in range(3):
            agent.begin_step()
            loss_of(model(batch(config, step=step, rank=rank.group.rank))).backward()
            moved += agent.end_step().guests_inter
        console = Console(width=120, record=True, file=io.StringIO())
        console.print(agent.report())
        agent.close()
        text = console.export_text()
        assert f"0 / {moved}" in text
        assert moved > 0 or disabled
        return text

    first, second = run_ranks(2, body)
    layers = lambda text: [line for line in text.splitlines() if "layers." in line]  # noqa: E731
    assert layers(first) == layers(second)
    assert len(layers(first)) == config.num_layers
    assert ("switched off" in first) == disabled

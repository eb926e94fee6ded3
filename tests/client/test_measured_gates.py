"""Guests only where they gain: gates that follow what ranks measure, alike on all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from forced_splits import stale_layout
from link_samples import eventually
from rank_threads import Rank, run_ranks
from tiny_moe import FixedRouter, TinyConfig, TinyMoE, loss_of, tiny_options

from taot_client import Agent, AgentOptions, StepSummary, layer_agent
from taot_client.measuring import layer_switch, rates
from taot_client.measuring.layer_switch import SwitchRules
from taot_client.measuring.rates import RateRules
from taot_client.moe_layer import GatedExperts
from taot_client.planner import step_record
from taot_client.planner.step_record import ModeReason, StepMode
from taot_client.transfers import gloo_mover

RANKS = 4
SKEWED = np.repeat(np.arange(8), (1, 17, 18, 1, 0, 3, 0, 0))[:, None].tolist()
"""Two guests balance it: the fullest rank has 76 tokens without them and 40 with them."""
BALANCED = np.repeat(np.arange(8), 5)[:, None].tolist()
CONFIG = TinyConfig(
    num_layers=2,
    top_k=1,
    tokens_by_rank=(40,) * RANKS,
    router_of=lambda config, layer: FixedRouter(config, layer, choices=BALANCED if layer else SKEWED),
)
GATED = AgentOptions(ranks_per_node=2, tolerance=0.1)
TOKEN_SECONDS = 0.0005
"""Guests save 36 tokens: 54 ms in forward and backward, far above what busy cores add."""
SLOW_SECONDS = 0.2
"""Delay of a slow link, far above that gain."""

Step = Callable[[Agent, int], None]


@pytest.fixture
def slow_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts whose time is their tokens, on any machine: sleeping takes no core from other ranks."""
    compute = GatedExperts.compute

    def slow(self: GatedExperts, x_ND: torch.Tensor, expert: tuple[torch.Tensor, ...]) -> torch.Tensor:
        time.sleep(x_ND.shape[0] * TOKEN_SECONDS)
        return compute(self, x_ND, expert)

    monkeypatch.setattr(GatedExperts, "compute", slow)


def train(
    rank: Rank,
    options: AgentOptions,
    *,
    num_steps: int,
    before_step: Step = lambda agent, step: None,
    config: TinyConfig = CONFIG,
) -> tuple[list[StepSummary], float]:
    """The steps of one rank, without an optimizer: gates do not look at weights. And the seconds of transfers."""
    model = TinyMoE(config, rank.group)
    agent = Agent(model, options, groups=rank.agent_groups)
    x = torch.ones(40, config.dim, dtype=config.dtype)
    summaries = []
    for step in range(num_steps):
        before_step(agent, step)
        agent.begin_step()
        loss_of(model(x)).backward()
        summaries.append(agent.end_step())
    flight_seconds, _ = agent.transfer_seconds()
    agent.close()
    return summaries, flight_seconds


def alike(by_rank: list[list[StepSummary]]) -> list[StepSummary]:
    for summaries in by_rank[1:]:
        assert summaries == by_rank[0], "ranks decide alike"
    return by_rank[0]


def moved(summaries: list[StepSummary]) -> list[int]:
    return [each.guests_intra + each.guests_inter for each in summaries]


@dataclass
class _Late:
    """A completion that comes late."""

    on_time: object
    until: float

    def is_done(self) -> bool:
        return self.on_time.is_done() and time.monotonic() >= self.until

    def wait(self, timeout_seconds: float) -> bool:
        ended = self.on_time.wait(timeout_seconds)
        time.sleep(max(0.0, self.until - time.monotonic()))
        return ended


class SlowLink:
    """A real mover behind a link that delays what it receives."""

    def __init__(self, mover) -> None:
        self._mover = mover
        self.delay_seconds = 0.0

    def post(self, shipments) -> None:
        self._mover.post(shipments)
        for shipment in shipments:
            if shipment.is_receive:
                shipment.completion = _Late(shipment.completion, time.monotonic() + self.delay_seconds)

    def drain(self, timeout_seconds: float) -> None:
        self._mover.drain(timeout_seconds)

    def close(self) -> None:
        self._mover.close()


def slow_gradients(slow_steps: range) -> Step:
    """The gradients' link is slow in these steps. Weights travel fast, so that nothing is predicted."""

    def before_step(agent: Agent, step: int) -> None:
        state = agent._agent.state
        if not step:
            state.gradient_mover = SlowLink(state.gradient_mover)
        state.gradient_mover.delay_seconds = SLOW_SECONDS if step in slow_steps else 0.0

    return before_step


@pytest.mark.parametrize(
    "options", [GATED, replace(GATED, measured_gates=False), AgentOptions()], ids=["gated", "ungated", "default"]
)
def test_on_balanced_input_nothing_is_moved(options: AgentOptions) -> None:
    balanced = replace(CONFIG, router_of=lambda config, layer: FixedRouter(config, layer, choices=BALANCED))
    by_rank = run_ranks(RANKS, lambda rank: train(rank, options, num_steps=6, config=balanced))
    for summaries, flight_seconds in by_rank:
        assert moved(summaries) == [0] * 6
        assert flight_seconds == 0
        assert all(value == 0 for each in summaries for value in each.imbalance.values())


@pytest.mark.usefixtures("slow_experts")
def test_a_layer_that_loses_goes_off_on_all_ranks_at_once_is_probed_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = SwitchRules(window_steps=2, patience_windows=2, probe_steps=2, first_rest_steps=3)
    monkeypatch.setattr(layer_switch, "RULES", patient)
    before_step = slow_gradients(range(11))
    by_rank = run_ranks(RANKS, lambda rank: train(rank, GATED, num_steps=21, before_step=before_step)[0])
    summaries = alike(by_rank)
    # The rate of the experts is known from step 2 on; two windows of two steps, three steps of rest, a probe of two
    # that fails, six steps of rest, a probe that gains.
    off = [*range(6, 9), *range(11, 17)]
    assert [each.step for each in summaries if each.layers_off] == off
    for each, guests in zip(summaries, moved(summaries), strict=True):
        assert each.layers_off in ((), ("layers.0",))
        assert guests == (0 if each.step in off else 2)
        assert each.fallbacks == ({"layer_off": 1} if each.step in off else {})


@pytest.mark.usefixtures("slow_experts")
def test_guests_of_a_slow_link_are_not_made_until_the_link_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "RULES", RateRules(least_steps=3, life_steps=4))
    complete, link = gloo_mover._Flight.complete, {"delay_seconds": SLOW_SECONDS}

    def late(flight) -> None:
        if flight.on_arrival is not None:  # weights that this rank receives
            time.sleep(link["delay_seconds"])
        complete(flight)

    monkeypatch.setattr(gloo_mover._Flight, "complete", late)

    def before_step(agent: Agent, step: int) -> None:
        if step == 5:
            link["delay_seconds"] = 0.0

    by_rank = run_ranks(RANKS, lambda rank: train(rank, GATED, num_steps=12, before_step=before_step)[0])
    summaries = alike(by_rank)
    # Known after three steps; forgotten four steps after it was last measured.
    assert moved(summaries) == [2] * 3 + [0] * 4 + [2] * 5
    assert not any(each.layers_off for each in summaries)


@pytest.mark.usefixtures("slow_experts")
def test_guests_of_a_planner_are_left_out_while_their_layer_is_off(planner, monkeypatch) -> None:
    monkeypatch.setattr(
        layer_switch, "RULES", SwitchRules(window_steps=1, patience_windows=1, probe_steps=1, first_rest_steps=50)
    )
    options = replace(GATED, planner_address=planner.address, group="measured-gates", when_away="none")
    before_step = slow_gradients(range(100))

    def meet(agent: Agent, step: int) -> None:
        before_step(agent, step)
        if step and agent.planner_stats:
            assert eventually(lambda: (plan := agent.planner_stats["plan"]) and plan.source_step >= step - 1)

    by_rank = run_ranks(RANKS, lambda rank: train(rank, options, num_steps=14, before_step=meet)[0])
    summaries = alike(by_rank)
    off = [each for each in summaries if each.layers_off]
    assert sum(moved(summaries)) > 0, "there were guests to lose with"
    assert off
    assert moved(off) == [0] * len(off)
    assert all(each.mode is StepMode.PLAN for each in off)


def test_ranks_with_other_rates_stay_home_together() -> None:
    def spoil(agent: Agent, step: int) -> None:
        state = agent._agent.state
        buffer, work = state.control._pending
        if step == 2 and state.group.rank == 1:
            work.wait()
            buffer[step_record._HEAD.size] ^= 1  # the bandwidth within a node

    by_rank = run_ranks(RANKS, lambda rank: train(rank, GATED, num_steps=4, before_step=spoil)[0])
    summaries = alike(by_rank)
    assert [each.reason for each in summaries] == [
        ModeReason.AS_CONFIGURED,
        ModeReason.AS_CONFIGURED,
        ModeReason.RECORD_MISMATCH,
        ModeReason.AS_CONFIGURED,
    ]
    assert moved(summaries)[2] == 0


def test_deterministic_training_measures_nothing_that_decides() -> None:
    assert not AgentOptions(deterministic=True).uses_measured_gates
    assert not AgentOptions(measured_gates=False).uses_measured_gates
    assert AgentOptions().uses_measured_gates

    def body(rank: Rank) -> list[bool]:
        agent = Agent(TinyMoE(CONFIG, rank.group), replace(GATED, deterministic=True), groups=rank.agent_groups)
        x, unknown = torch.ones(40, CONFIG.dim, dtype=CONFIG.dtype), []
        for _ in range(5):
            agent.begin_step()
            gates = agent._agent.state.record.gates
            unknown.append(not any((*gates.token_picoseconds_L, *gates.bandwidth_V, *gates.is_off_L)))
            loss_of(agent._layers[0][1].module(x)).backward()
            agent.end_step()
        agent.close()
        return unknown

    assert run_ranks(RANKS, body) == [[True] * 5] * RANKS


# Realised imbalance.


def test_imbalances_are_those_of_tokens_that_were_really_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = tiny_options(ranks_per_node=2, tolerance=0.1)
    right = alike(run_ranks(RANKS, lambda rank: train(rank, options, num_steps=2)[0]))
    monkeypatch.setattr(layer_agent, "split_pass", stale_layout(layer_agent.split_pass))
    broken = alike(run_ranks(RANKS, lambda rank: train(rank, options, num_steps=2)[0]))
    for each in right:
        assert each.imbalance["layers.0"] <= 0.1
        assert each.imbalance_static["layers.0"] == pytest.approx(0.9)
    for each in broken:  # guests move, and do next to nothing
        assert each.guests_intra + each.guests_inter == 2
        assert each.imbalance["layers.0"] == pytest.approx(0.85)  # 74 tokens of 40 on average


def test_reports_tell_what_the_ranks_computed_in_the_micro_batch_before(planner, monkeypatch) -> None:
    monkeypatch.setattr(layer_agent, "split_pass", stale_layout(layer_agent.split_pass))
    options = tiny_options(
        ranks_per_node=2, tolerance=0.1, planner_address=planner.address, plan_source="blocking", group="computed"
    )
    reports = []

    def listen(agent: Agent, step: int) -> None:
        leader = agent._agent.state.leader
        if not step and leader is not None:
            monkeypatch.setattr(leader, "report", reports.append)

    run_ranks(RANKS, lambda rank: train(rank, options, num_steps=3, before_step=listen))
    computed_NRL = np.array([[each.computed_tokens_L for each in report.telemetry_R] for report in reports])
    assert computed_NRL.shape == (3, RANKS, 2)
    assert not computed_NRL[0].any()
    assert computed_NRL[1:, :, 1].tolist() == [[40] * RANKS] * 2
    assert computed_NRL[1:, :, 0].sum(axis=1).tolist() == [160] * 2
    assert (computed_NRL[1:, :, 0].max(axis=1) == 74).all(), "and not the 40 of the plan"

"""What was measured in reports that never got through is told with the next one that does, once."""

from __future__ import annotations

import dataclasses

import httpx
import numpy as np
import pytest
import torch
from link_samples import WAIT, eventually, report, spec
from rank_threads import Rank, run_ranks
from running_planner import planner_process
from scraped import samples_of
from tiny_moe import FixedRouter, SkewedRouter, TinyConfig, TinyMoE, loss_of, tiny_options

from taot_api import RankTelemetry, RoutingReport
from taot_client import Agent
from taot_client.planner.planner_link import PlannerLink
from taot_client.planner.unsent_telemetry import UnsentTelemetry


def measured(step: int, **fields) -> RoutingReport:
    """A report in which every rank has measured the same."""
    rank = RankTelemetry(**({"computed_tokens_L": np.array([10 * step])} | fields))
    return dataclasses.replace(report(step), telemetry_R=(rank,) * 4)


def group_samples(planner, group: str) -> dict[tuple[str, str], float]:
    """What the planner shows of a group, by name and the value of any further label."""
    registry = planner.planner.metrics.registry
    samples = planner.on_loop(lambda: [sample for family in registry.collect() for sample in family.samples])
    return {
        (sample.name, "".join(value for key, value in sample.labels.items() if key not in ("training_job", "group"))): (
            sample.value
        )
        for sample in samples
        if sample.labels.get("group") == group
    }


def test_with_nothing_kept_a_report_stays_as_it_is():
    unsent = UnsentTelemetry()
    one = measured(1)
    assert unsent.ride_on(one) is one
    bare = report(1)
    assert unsent.ride_on(bare) is bare


def test_lost_measurements_ride_on_the_next_report_once_and_its_computed_tokens_stay():
    unsent = UnsentTelemetry()
    fields = {"intra_node_sent_bytes": 1, "inter_node_sent_bytes": 2, "applied_layers": 3, "transfer_seconds": 4.0}
    unsent.add_lost(measured(1, **fields, fallbacks={"paused": 1}, exposed_transfer_seconds=0.5))
    unsent.add_lost(measured(2, **fields, fallbacks={"paused": 1, "disabled": 1}, errors={"call_failed": 5}))
    unsent.add_error("call_failed")
    unsent.add_error("plan_refused")
    ridden = unsent.ride_on(measured(3, **fields))
    for rank, telemetry in enumerate(ridden.telemetry_R):
        assert telemetry.computed_tokens_L.tolist() == [30]
        assert (telemetry.intra_node_sent_bytes, telemetry.inter_node_sent_bytes, telemetry.applied_layers) == (3, 6, 9)
        assert (telemetry.transfer_seconds, telemetry.exposed_transfer_seconds) == (12.0, 0.5)
        assert telemetry.fallbacks == {"paused": 2, "disabled": 1}
        assert telemetry.errors == ({"call_failed": 6, "plan_refused": 1} if rank == 0 else {"call_failed": 5})
    again = measured(4)
    assert unsent.ride_on(again) is again


def test_a_report_that_is_lost_with_what_rode_on_it_is_kept_as_a_whole():
    unsent = UnsentTelemetry()
    unsent.add_error("call_failed")
    unsent.add_lost(unsent.ride_on(measured(1, applied_layers=1)))
    ridden = unsent.ride_on(report(2))
    assert [each.applied_layers for each in ridden.telemetry_R] == [1] * 4
    assert ridden.telemetry_R[0].errors == {"call_failed": 1}
    assert ridden.telemetry_R[0].computed_tokens_L.tolist() == [0]


def test_a_report_that_the_planner_refuses_is_told_and_takes_what_rode_on_it_along(planner):
    link = PlannerLink(planner.address, spec("refused"))
    assert link.start(wait=WAIT) is None
    link.report(measured(1, applied_layers=-1))
    assert eventually(lambda: link._unsent._errors["report_refused"] == 1)
    link.report(measured(2, applied_layers=7))
    assert eventually(lambda: group_samples(planner, "refused").get(("taot_step", "")) == 2)
    samples = group_samples(planner, "refused")
    assert samples["taot_applied_layers_total", ""] == 28
    assert samples["taot_agent_errors_total", "report_refused"] == 1
    link.close()


def test_a_plan_that_the_agent_refuses_is_told(planner):
    link = PlannerLink(planner.address, spec("rejects"))
    assert link.start(wait=WAIT) is None
    # The agent has other homes than the planner was told, so that it is sent a guest that is at home.
    link._spec = dataclasses.replace(
        link._spec, layers=tuple(dataclasses.replace(each, home_E=3 - np.arange(8) // 2) for each in link._spec.layers)
    )
    step = 0

    def refused_and_told() -> bool:
        nonlocal step
        step += 1
        link.report(measured(step))
        return group_samples(planner, "rejects").get(("taot_agent_errors_total", "plan_refused"), 0) > 0

    assert eventually(refused_and_told)
    assert link.num_rejected_plans > 0
    link.close()


@pytest.mark.slow
def test_what_happened_while_the_planner_was_away_is_told_when_it_is_back():
    with planner_process() as first:
        port = first.grpc_port
        link = PlannerLink(first.address, spec("away"))
        assert link.start(wait=WAIT) is None
        first.kill()
        assert eventually(lambda: not link.is_connected)
    for step in range(20):
        link.report(measured(step, fallbacks={"planner_away": 1}))
    with (
        planner_process(grpc_port=port) as second,
        httpx.Client(base_url=f"http://127.0.0.1:{second.http_port}", trust_env=False) as http,
    ):
        assert eventually(lambda: link.is_connected)
        link.report(measured(20))
        group = (("group", "away"), ("training_job", "link-test"))
        assert eventually(lambda: samples_of(http).get(("taot_step", group)) == 20)
        samples = samples_of(http)
        assert samples["taot_fallbacks_total", (group[0], ("reason", "planner_away"), group[1])] == 80
        assert samples["taot_agent_errors_total", (group[0], ("reason", "call_failed"), group[1])] >= 1
        dropped = samples.get(("taot_agent_errors_total", (group[0], ("reason", "report_dropped"), group[1])), 0)
        assert dropped == link.num_dropped_reports
        link.close()


def test_what_a_training_run_has_done_is_what_the_planner_shows(planner):
    def router_of(config: TinyConfig, layer: int):
        # The second layer is even as it is, so that its passes have no guests.
        even = [[0, 1], [2, 3], [4, 5], [6, 7]]
        return SkewedRouter(config, layer) if layer == 0 else FixedRouter(config, layer, choices=even)

    num_steps, config = 6, TinyConfig(num_layers=2, tokens_by_rank=(40,) * 4, router_of=router_of)

    def body(rank: Rank):
        model = TinyMoE(config, rank.group)
        options = tiny_options(
            ranks_per_node=2, plan_source="inline", planner_address=planner.address, training_job="run", group="shown"
        )
        agent = Agent(model, options, groups=rank.agent_groups)
        guests, sent = 0, []
        for step in range(num_steps):
            agent.begin_step()
            generator = torch.Generator().manual_seed(10 * step + rank.group.rank)
            tokens = config.tokens_by_rank[rank.group.rank]
            loss_of(model(torch.randn(tokens, config.dim, dtype=config.dtype, generator=generator))).backward()
            guests += sum(bool((layer.supply.resident_RK >= 0).any()) for layer in agent._agent.state.layers)
            agent.end_step()
            sent.append(agent._agent.state.rank_totals())
        # The last report holds what was measured before the last layer of the last step.
        if rank.group.rank == 0:
            assert eventually(lambda: group_samples(planner, "shown").get(("taot_step", "")) == num_steps - 1)
            shown.update(group_samples(planner, "shown"))
        agent.close()
        return guests, sent

    shown: dict[tuple[str, str], float] = {}
    by_rank = run_ranks(4, body)
    guests = by_rank[0][0]
    assert shown["taot_applied_layers_total", ""] == guests == num_steps
    for reach, name in (("intra_node", "intra_node_sent_bytes"), ("inter_node", "inter_node_sent_bytes")):
        before, after = (sum(getattr(sent[at], name) for _, sent in by_rank) for at in (-2, -1))
        assert before <= shown["taot_sent_bytes_total", reach] <= after
    assert shown["taot_sent_bytes_total", "intra_node"] + shown["taot_sent_bytes_total", "inter_node"] > 0
    exposed = sum(sent[-1].exposed_seconds for _, sent in by_rank)
    assert 0 < shown["taot_exposed_transfer_seconds_total", ""] <= exposed
    assert shown["taot_hidden_transfer_seconds_total", ""] >= 0

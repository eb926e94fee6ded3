"""What a scrape shows is of one moment, also where it is written out while the planner goes on."""

from __future__ import annotations

from prometheus_client.exposition import generate_latest
from routing_samples import make_spec

from taot_service.config import ServiceConfig
from taot_service.planner import Planner


def test_a_snapshot_does_not_change_with_the_planner():
    planner = Planner(ServiceConfig())
    session = planner.open_session(make_spec(training_job="seen"))
    snapshot = planner.metrics.snapshot()
    planner.set_paused(session, is_paused=True)
    planner.metrics.plans.labels("installed").inc()
    planner.metrics.report_to_plan_seconds.observe(1.0)
    planner.open_session(make_spec(training_job="too-late"))
    text = generate_latest(snapshot).decode()
    assert 'taot_paused{group="ep0",training_job="seen"} 0.0' in text
    assert 'taot_plans_total{outcome="installed"} 0.0' in text
    assert "taot_report_to_plan_seconds_count 0.0" in text
    assert "taot_sessions 1.0" in text
    assert "too-late" not in text
    now = generate_latest(planner.metrics.snapshot()).decode()
    assert 'taot_paused{group="ep0",training_job="seen"} 1.0' in now
    assert "too-late" in now

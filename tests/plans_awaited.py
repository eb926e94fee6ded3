"""Waiting for the planner, so that what a test sees does not depend on how fast it is."""

from __future__ import annotations

from link_samples import eventually

from taot_client import Agent


def await_plan(agent: Agent, step: int) -> None:
    """Waits on the leader, before `step`, for a plan made from the counts of the step before."""
    if step and agent.planner_stats:
        assert eventually(lambda: (plan := agent.planner_stats["plan"]) and plan.source_step >= step - 1, seconds=40)

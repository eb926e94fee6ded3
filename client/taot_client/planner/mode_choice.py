"""Which mode the next step has: a pure function of what the leader knows."""

from __future__ import annotations

from dataclasses import dataclass

from taot_api import PublishedPlan
from taot_client.options import AgentOptions
from taot_client.planner.step_record import ModeReason, StepMode


@dataclass(frozen=True, kw_only=True, eq=False)
class PlannerView:
    """What the leader knows of the planner at a step boundary."""

    is_connected: bool = False
    """Whether the planner answered the last call."""

    is_paused: bool = False
    """Whether an operator has paused the session."""

    plan: PublishedPlan | None = None
    """The newest plan that passed the agent's checks."""


def choose_mode(options: AgentOptions, view: PlannerView, *, step: int) -> tuple[StepMode, ModeReason]:
    """Chooses the mode of `step`; the same input gives the same answer.

    A lost planner costs balance, never progress: without it, ranks plan inline (or not at all, as
    `options.when_away` says).
    """
    source = options.effective_plan_source
    if source == "inline":
        return StepMode.INLINE, ModeReason.AS_CONFIGURED
    if source == "observe":
        return StepMode.OBSERVE, ModeReason.AS_CONFIGURED if view.plan else ModeReason.NO_PLAN_YET
    if view.is_paused:
        return StepMode.HOME_ONLY, ModeReason.PAUSED
    trouble = _trouble(options, view, step=step)
    if trouble is None:
        return (StepMode.BLOCKING if source == "blocking" else StepMode.PLAN), ModeReason.AS_CONFIGURED
    if trouble is ModeReason.NO_PLAN_YET or options.when_away == "none":
        return StepMode.HOME_ONLY, trouble
    return StepMode.INLINE, trouble


def _trouble(options: AgentOptions, view: PlannerView, *, step: int) -> ModeReason | None:
    """Why the planner cannot be relied on in `step`, or None."""
    if not view.is_connected:
        return ModeReason.PLANNER_AWAY
    if options.effective_plan_source == "blocking":
        return None
    # A planner that is connected and silent for too long is as good as away.
    newest = view.plan.source_step if view.plan else 0
    if step - newest > options.max_plan_age_steps:
        return ModeReason.PLAN_TOO_OLD
    return None if view.plan else ModeReason.NO_PLAN_YET

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from taot_api import PlanIdentity, PublishedPlan
from taot_client.options import AgentOptions, PlanSource
from taot_client.planner.mode_choice import PlannerView, choose_mode
from taot_client.planner.step_record import ModeReason, StepMode

PATIENCE = 16
"""The options' max_plan_age_steps in these tests."""

AWAY_INLINE = (StepMode.INLINE, ModeReason.PLANNER_AWAY)
AWAY_NONE = (StepMode.HOME_ONLY, ModeReason.PLANNER_AWAY)
OLD_INLINE = (StepMode.INLINE, ModeReason.PLAN_TOO_OLD)
OLD_NONE = (StepMode.HOME_ONLY, ModeReason.PLAN_TOO_OLD)
PAUSED = (StepMode.HOME_ONLY, ModeReason.PAUSED)
NO_PLAN_YET = (StepMode.HOME_ONLY, ModeReason.NO_PLAN_YET)
PLAN = (StepMode.PLAN, ModeReason.AS_CONFIGURED)
BLOCKING = (StepMode.BLOCKING, ModeReason.AS_CONFIGURED)
INLINE = (StepMode.INLINE, ModeReason.AS_CONFIGURED)
OBSERVE = (StepMode.OBSERVE, ModeReason.AS_CONFIGURED)
OBSERVE_NO_PLAN = (StepMode.OBSERVE, ModeReason.NO_PLAN_YET)

TABLE = [
    # source, connected, paused, age of the plan (None: no plan), step, then: when away inline, when away none
    ("inline", False, False, None, 0, INLINE, INLINE),
    ("inline", True, True, 0, 9, INLINE, INLINE),
    ("observe", True, False, None, 0, OBSERVE_NO_PLAN, OBSERVE_NO_PLAN),
    ("observe", True, False, 1, 5, OBSERVE, OBSERVE),
    ("observe", False, False, None, 99, OBSERVE_NO_PLAN, OBSERVE_NO_PLAN),
    ("observe", False, True, 50, 99, OBSERVE, OBSERVE),
    ("ahead", False, False, None, 0, AWAY_INLINE, AWAY_NONE),
    ("ahead", False, False, 1, 5, AWAY_INLINE, AWAY_NONE),
    ("ahead", False, True, 1, 5, PAUSED, PAUSED),
    ("ahead", True, True, 1, 5, PAUSED, PAUSED),
    ("ahead", True, True, None, 99, PAUSED, PAUSED),
    ("ahead", True, False, None, 0, NO_PLAN_YET, NO_PLAN_YET),
    ("ahead", True, False, None, PATIENCE, NO_PLAN_YET, NO_PLAN_YET),
    ("ahead", True, False, None, PATIENCE + 1, OLD_INLINE, OLD_NONE),
    ("ahead", True, False, 1, 5, PLAN, PLAN),
    ("ahead", True, False, 0, 5, PLAN, PLAN),
    ("ahead", True, False, PATIENCE, 40, PLAN, PLAN),
    ("ahead", True, False, PATIENCE + 1, 40, OLD_INLINE, OLD_NONE),
    ("blocking", True, False, None, 0, BLOCKING, BLOCKING),
    ("blocking", True, False, 90, 99, BLOCKING, BLOCKING),
    ("blocking", True, True, None, 5, PAUSED, PAUSED),
    ("blocking", False, False, 1, 5, AWAY_INLINE, AWAY_NONE),
    ("blocking", False, True, 1, 5, PAUSED, PAUSED),
]


def view_of(*, connected: bool, paused: bool, age: int | None, step: int) -> PlannerView:
    plan = None
    if age is not None:
        plan = PublishedPlan(
            identity=PlanIdentity(planner_epoch="epoch", version=1),
            source_step=step - age,
            source_micro_batch=0,
            guests_L=(np.full((2, 1), -1),),
        )
    return PlannerView(is_connected=connected, is_paused=paused, plan=plan)


def options_of(source: PlanSource, when_away: str) -> AgentOptions:
    return AgentOptions(
        planner_address="127.0.0.1:1",
        plan_source=source,
        when_away=when_away,  # type: ignore[arg-type]
        max_plan_age_steps=PATIENCE,
    )


@pytest.mark.parametrize(("source", "connected", "paused", "age", "step", "inline", "none"), TABLE)
def test_the_mode_follows_the_table(
    source: PlanSource,
    connected: bool,
    paused: bool,
    age: int | None,
    step: int,
    inline: tuple[StepMode, ModeReason],
    none: tuple[StepMode, ModeReason],
) -> None:
    view = view_of(connected=connected, paused=paused, age=age, step=step)
    assert choose_mode(options_of(source, "inline"), view, step=step) == inline
    assert choose_mode(options_of(source, "none"), view, step=step) == none


def test_the_table_reaches_every_reason_a_leader_can_give() -> None:
    reached = {reason for row in TABLE for _, reason in row[-2:]}
    # The last two are found by the ranks themselves, not chosen by the leader.
    assert reached == set(ModeReason) - {ModeReason.RECORD_MISMATCH, ModeReason.DISABLED}
    assert {mode for row in TABLE for mode, _ in row[-2:]} == set(StepMode)


def test_guests_move_only_with_a_planner_that_answers_and_is_not_paused() -> None:
    """Whatever else is true: a plan is carried out only when it is fresh, and nobody asks a planner that is away."""
    for source, connected, paused, age, step in product(
        ("ahead", "blocking", "observe"), (False, True), (False, True), (None, 0, PATIENCE, PATIENCE + 1), (0, 100)
    ):
        view = view_of(connected=connected, paused=paused, age=age, step=step)
        mode, _ = choose_mode(options_of(source, "none"), view, step=step)
        if mode in (StepMode.PLAN, StepMode.BLOCKING):
            assert connected
            assert not paused
        if mode is StepMode.PLAN:
            assert age is not None
            assert age <= PATIENCE


def test_without_a_planner_address_ranks_plan_inline() -> None:
    assert choose_mode(AgentOptions(), PlannerView(), step=0) == INLINE

"""What the sources of a replay do with steps and micro-batches."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from taot_api import LayerSpec
from taot_api.trace import TraceHeader, TraceRecord
from taot_planning import (
    LayerPlan,
    LayerProblem,
    PlanningOptions,
    contiguous_homes,
    plan_layer,
    two_level_topology,
)
from taot_replay import SOURCES, ReplayCase, ReplayFigures, replay

OPTIONS = PlanningOptions(tolerance_ppm=20_000)


class Steps:
    """Given counts of one layer, [ranks, experts], as the micro-batches of given steps; 4 ranks on 2 nodes."""

    def __init__(self, *batches: tuple[int, np.ndarray]) -> None:
        num_experts = batches[0][1].shape[1]
        home_E = contiguous_homes(num_experts=num_experts, num_ranks=4)
        self.header = TraceHeader(
            training_job="steps",
            topology=two_level_topology(num_ranks=4, ranks_per_node=2, slots=0, inter_cost=3),
            layers=(LayerSpec(name="layer", top_k=1, expert_size_bytes=0, home_E=home_E),),
        )
        self.records = [
            TraceRecord(step=step, micro_batch=index, counts_L=(counts_RE.astype(np.int32),))
            for index, (step, counts_RE) in enumerate(batches)
        ]
        self.num_records = len(self.records)

    def __iter__(self):
        return iter(self.records)


HOT = np.array([[90, 60, 10, 10, 10, 10, 10, 10]] * 4)
CHANGED = HOT[:, ::-1]
"""The same with other experts hot."""


def replay_taot(steps: Steps, source: str, **arguments: int) -> ReplayFigures:
    (got,) = replay(steps, [ReplayCase(algorithm="taot", source=source, num_slots=2)], options=OPTIONS, **arguments)
    return got


def test_a_second_micro_batch_with_the_same_counts_moves_nothing() -> None:
    once, twice = Steps((0, HOT), (1, HOT)), Steps((0, HOT), (1, HOT), (1, HOT))
    for source in SOURCES:
        assert replay_taot(twice, source).weighted_cost == replay_taot(once, source).weighted_cost > 0


def test_guests_are_not_resident_in_the_next_step() -> None:
    steps = Steps((0, HOT), (1, HOT), (2, HOT))
    for source in SOURCES:
        first, second = replay_taot(steps, source).weighted_cost_by_step
        assert first == second > 0


def test_a_layer_that_turns_out_stale_is_placed_again_and_pays_twice() -> None:
    steps = Steps((0, HOT), (1, HOT), (2, CHANGED), (3, CHANGED))
    ahead, corrected, inline = (replay_taot(steps, source) for source in ("ahead", "ahead+inline", "inline"))
    assert ahead.imbalance_by_step[1] > 0.5
    assert corrected.imbalance_by_step[1] == inline.imbalance_by_step[1] < 0.05
    assert (
        corrected.weighted_cost_by_step[1]
        == ahead.weighted_cost_by_step[1] + inline.weighted_cost_by_step[1]
        > inline.weighted_cost_by_step[1]
    )
    for step in (0, 2):
        assert corrected.imbalance_by_step[step] == ahead.imbalance_by_step[step]
        assert corrected.weighted_cost_by_step[step] == ahead.weighted_cost_by_step[step]


def test_a_corrected_layer_stays_corrected_for_the_rest_of_the_step() -> None:
    changing = Steps((0, HOT), (1, CHANGED), (1, CHANGED))
    assert replay_taot(changing, "ahead+inline").imbalance < 0.05
    once = Steps((0, HOT), (1, CHANGED))
    assert replay_taot(changing, "ahead+inline").weighted_cost == replay_taot(once, "ahead+inline").weighted_cost


def test_small_drift_is_not_stale() -> None:
    """Expert 4 alone puts its rank 3 % above the mean, of which the guests that are there can take nothing."""
    drifted = HOT + np.array([[0, 0, 0, 0, 46, 0, 0, 0]] * 4)
    steps = Steps((0, HOT), (1, drifted))
    ahead, corrected = (replay_taot(steps, source) for source in ("ahead", "ahead+inline"))
    assert ahead.imbalance == corrected.imbalance == pytest.approx(66 / 64 - 1)
    assert ahead.weighted_cost == corrected.weighted_cost


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[LayerProblem]:
    """Every problem that is planned."""
    problems: list[LayerProblem] = []

    def plan(problem: LayerProblem, **arguments: Any) -> LayerPlan:
        problems.append(problem)
        return plan_layer(problem, **arguments)

    # By its name in the table of modules: as an attribute of the package it is the function.
    monkeypatch.setattr(sys.modules["taot_replay.replay"], "plan_layer", plan)
    return problems


def test_recent_micro_batches_reach_the_planner_newest_first(planned: list[LayerProblem]) -> None:
    def taken() -> list[tuple[int, list[int] | None]]:
        """Tokens at hand, and of the recent micro-batches."""
        recents = [each.recent_tokens_NE for each in planned]
        totals = [int(each.counts_RE.sum()) for each in planned]
        planned.clear()
        return [
            (total, None if recent_NE is None else recent_NE.sum(axis=1).tolist())
            for total, recent_NE in zip(totals, recents, strict=True)
        ]

    # A total names its micro-batch.
    steps = Steps(*((step, np.full((4, 8), total)) for step, total in ((0, 1), (1, 2), (1, 3), (2, 4), (2, 5), (3, 6))))
    replay_taot(steps, "ahead", num_recent=2)
    assert taken() == [(32, []), (3 * 32, [2 * 32, 32]), (5 * 32, [4 * 32, 3 * 32])]
    replay_taot(steps, "ahead")
    assert taken() == [(32, None), (3 * 32, None), (5 * 32, None)]
    replay_taot(steps, "inline", num_recent=2)
    assert [recent for _, recent in taken()] == [None] * 5


def test_each_step_is_planned_from_the_guests_of_the_one_before(planned: list[LayerProblem]) -> None:
    steps = Steps((0, HOT), (1, HOT), (2, HOT))
    replay_taot(steps, "ahead", num_recent=2)
    first, second = planned
    assert first.begin_guests_RK is None
    np.testing.assert_array_equal(second.begin_guests_RK, plan_layer(first, options=OPTIONS).guests_RK)
    planned.clear()
    replay_taot(steps, "ahead")
    assert [each.begin_guests_RK for each in planned] == [None, None], "it is for the counts at hand"


def test_cases_share_plans_where_they_can(planned: list[LayerProblem]) -> None:
    """What `inline` has planned in a step of one micro-batch is what `ahead` holds in the next."""
    cases = [ReplayCase(algorithm="taot", source=source, num_slots=2) for source in SOURCES]
    replay(Steps((0, HOT), (1, HOT), (2, HOT)), cases, options=OPTIONS)
    assert len(planned) == 3

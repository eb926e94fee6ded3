from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from taot_client.options import MAX_SLOTS, AgentOptions

MILLISECOND = timedelta(milliseconds=1)


def test_the_defaults_are_valid_and_plan_inline() -> None:
    options = AgentOptions()
    assert options.planner_address is None
    assert options.effective_plan_source == "inline"


@pytest.mark.parametrize(
    ("address", "source", "effective"),
    [
        (None, None, "inline"),
        (None, "inline", "inline"),
        ("127.0.0.1:1", None, "ahead"),
        ("127.0.0.1:1", "ahead", "ahead"),
        ("127.0.0.1:1", "inline", "inline"),
        ("unix:/run/planner", "blocking", "blocking"),
        ("127.0.0.1:1", "observe", "observe"),
    ],
)
def test_the_source_of_plans_follows_the_address_unless_given(address: Any, source: Any, effective: str) -> None:
    assert AgentOptions(planner_address=address, plan_source=source).effective_plan_source == effective


@pytest.mark.parametrize("source", ["ahead", "blocking", "observe"])
def test_a_source_that_needs_a_planner_is_refused_without_one(source: Any) -> None:
    with pytest.raises(ValueError, match=f"plan_source '{source}' needs a planner: set planner_address"):
        AgentOptions(plan_source=source)


def test_an_unknown_source_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'ahead', 'inline', 'blocking', 'observe'.*got 'later'"):
        AgentOptions(plan_source="later")  # type: ignore[arg-type]


WAITS = ["plan_deadline", "transfer_timeout", "group_timeout"]


@pytest.mark.parametrize(
    "milliseconds",
    [(0, 2, 3), (-1, 2, 3), (2, 2, 3), (3, 2, 4), (1, 3, 3), (1, 4, 3), (3, 2, 1)],
    ids=str,
)
def test_waits_that_form_no_ladder_are_refused(milliseconds: tuple[int, int, int]) -> None:
    waits: dict[str, Any] = {name: number * MILLISECOND for name, number in zip(WAITS, milliseconds, strict=True)}
    with pytest.raises(ValueError, match="plan_deadline < transfer_timeout < group_timeout, got") as refusal:
        AgentOptions(**waits)
    assert all(str(wait) in str(refusal.value) for wait in waits.values())


def test_waits_that_form_a_ladder_are_accepted() -> None:
    waits: dict[str, Any] = {name: number * MILLISECOND for name, number in zip(WAITS, (1, 2, 3), strict=True)}
    assert AgentOptions(**waits).transfer_timeout == 2 * MILLISECOND


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("num_slots", [0, 1, MAX_SLOTS], [-1, MAX_SLOTS + 1]),
        ("max_plan_age_steps", [1, 10**6], [0, -1]),
        ("when_away", ["inline", "none"], ["stop", ""]),
        ("tolerance", [0, 0.0, 0.5, 100], [-0.001, 100.5, NAN, INFINITY]),
        ("min_imbalance", [0, 0.2, 100], [-0.001, 100.5, NAN]),
        ("min_tokens_per_guest", [0, 1, 2**31 - 1], [-1, 2**31]),
        ("recent_reports", [None, 0, 64], [-1, 65]),
        ("ranks_per_node", [None, 1, 8], [0, -4]),
        ("inter_node_cost", [1, 1.0, 3.5], [0.9, 0, -1, NAN, INFINITY]),
    ],
)
def test_ranges(field: str, accepted: list[Any], refused: list[Any]) -> None:
    for value in accepted:
        assert getattr(AgentOptions(**{field: value}), field) == value
    for value in refused:
        with pytest.raises(ValueError, match=field) as refusal:
            AgentOptions(**{field: value})
        assert str(value) in str(refusal.value), "the message says what was got"


def test_readiness_of_the_largest_number_of_slots_fits_its_word() -> None:
    assert (1 << MAX_SLOTS) - 1 <= 2**63 - 1


def test_options_are_given_once_and_by_name() -> None:
    options = AgentOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.num_slots = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        AgentOptions("127.0.0.1:1")  # type: ignore[misc]


def test_an_algorithm_whose_answer_may_differ_between_ranks_is_never_planned_inline():
    for changes in ({}, {"planner_address": "127.0.0.1:1"}):
        with pytest.raises(ValueError, match="cannot be planned by the ranks"):
            AgentOptions(algorithm="lplb", **changes)
    AgentOptions(algorithm="lplb", planner_address="127.0.0.1:1", when_away="none")

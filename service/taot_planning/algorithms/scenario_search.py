"""The search for the cheapest guests that hold in every scenario.

A placement *holds* in a scenario when its tokens can be split over the copies so that no rank is above its cap: a
maximum flow, kept up by augmenting paths while guests come and go. The first answer adds guests one by one,
each the one that takes most tokens off full ranks for its cost, counted over a few scenarios until these hold, then
over all until all do; then guests that no scenario needs are dropped. Where guests to begin with are given, as a rule
those found for the micro-batch before, they stand in for what a few scenarios need. After that some guests near each
other are taken out, again and again, and the placement is completed anew (ruin and recreate); what is no worse is kept.
Chance is a fixed pseudo-random sequence, floats hold whole tokens exactly and products are rounded alike: every machine
finds the same guests from the same beginning. The cost of tokens that cross nodes is ignored.

Axis letters: as in `scenario_state`.
"""

from __future__ import annotations

import numpy as np

from taot_planning.algorithms.scenario_completion import complete, draw
from taot_planning.algorithms.scenario_flow import add_up_excess, fill_guest, level, link, send_home, take, unlink
from taot_planning.algorithms.scenario_state import ScenarioState, start_scenarios
from taot_planning.arrays import IntArray
from taot_planning.kernel import inner_kernel, kernel

MAX_TAKEN_OUT = 4
"""Guests that are taken out at a time, at most."""

BLINKS = 128
"""Of 1024 better candidates so many are overlooked by chance when a placement is completed anew."""


FEW = 3
"""The first guests are found for every third scenario: most of them are what all scenarios need."""


@inner_kernel
def _is_possible(place: int, expert: int, slots_R: IntArray, state: ScenarioState) -> bool:
    """Whether a guest of the expert may come to an empty place: a slot of a rank without a copy of the expert."""
    num_places, rank = state.rank_C.size - state.home_H.size, state.rank_C[place]
    if not 0 <= expert < state.home_H.size or place - rank * (num_places // slots_R.size) >= slots_R[rank]:
        return False
    copy = num_places + expert
    while copy >= 0 and state.rank_C[copy] != rank:
        copy = state.next_C[copy]
    return copy < 0


@inner_kernel
def _adopt(guest_P: IntArray, slots_R: IntArray, state: ScenarioState) -> None:
    """Puts guests into their places where that is possible, and splits the tokens of all scenarios over them."""
    for place, expert in enumerate(guest_P):
        if _is_possible(place, expert, slots_R, state):
            link(place, expert, state)
    for scenario in range(state.excess_J.size):
        for place in range(guest_P.size):
            if state.expert_C[place] >= 0:
                take(scenario, place, state)
        level(scenario, state)


@inner_kernel
def _drop(place: int, order_J: IntArray, state: ScenarioState) -> None:
    """Takes a guest out for good unless a scenario gets worse by it; that one moves to the front of `order_J`."""
    expert, home = state.expert_C[place], unlink(place, state)
    for index, scenario in enumerate(order_J):
        if state.tokens_JC[scenario, place] == 0.0:
            continue
        before = state.excess_J[scenario]
        send_home(scenario, place, home, state)
        if level(scenario, state) > before:
            link(place, expert, state)
            fill_guest(scenario, place, state)
            for later in range(index, 0, -1):
                order_J[later] = order_J[later - 1]
            order_J[0] = scenario
            return


@kernel
def _drop_unneeded(order_J: IntArray, state: ScenarioState) -> None:
    """Drops guests that no scenario needs, the dearest first."""
    num_places = state.rank_C.size - state.home_H.size
    cost_P = np.zeros(num_places, dtype=np.int64)
    for place in range(num_places):
        if state.expert_C[place] >= 0:
            home_rank = state.rank_C[num_places + state.expert_C[place]]
            cost_P[place] = state.cost_RR[home_rank, state.rank_C[place]]
    for place in np.argsort(-cost_P, kind="mergesort"):
        if state.expert_C[place] >= 0:
            _drop(place, order_J, state)


@inner_kernel
def _take_out(state: ScenarioState) -> None:
    """Takes out some guests at random: of a rank drawn, and of experts at home there."""
    num_places = state.rank_C.size - state.home_H.size
    near = draw(state, state.free_R.size)
    left = 1 + draw(state, MAX_TAKEN_OUT)
    offset = draw(state, num_places)
    for index in range(num_places):
        place = (offset + index) % num_places
        if state.expert_C[place] < 0:
            continue
        is_near = state.rank_C[place] == near or state.rank_C[num_places + state.expert_C[place]] == near
        if left > 0 and (is_near or draw(state, 16) == 0):
            left -= 1
            home = unlink(place, state)
            for scenario in range(state.excess_J.size):
                send_home(scenario, place, home, state)
    for scenario in range(state.excess_J.size):
        level(scenario, state)


@kernel
def _copy(source: ScenarioState, target: ScenarioState) -> None:
    """Copies the placement and the tokens, but not the pseudo-random sequence."""
    target.expert_C[:] = source.expert_C
    target.next_C[:] = source.next_C
    target.free_R[:] = source.free_R
    target.tokens_JC[:] = source.tokens_JC
    target.load_JR[:] = source.load_JR
    target.excess_J[:] = source.excess_J
    target.total[0] = source.total[0]


@kernel
def _try_anew(rounds: int, rescue_rounds: int, order_J: IntArray, state: ScenarioState, best: ScenarioState) -> None:
    """Takes guests out and completes the placement anew, round by round; `best` keeps what is no worse."""
    best_excess = add_up_excess(best)
    for round_number in range(rounds + rescue_rounds):
        if round_number >= rounds and best_excess == 0:
            break
        _take_out(state)
        excess = complete(BLINKS, state)
        if excess <= best_excess:
            _drop_unneeded(order_J, state)
        if excess < best_excess or (excess == best_excess and state.total[0] <= best.total[0]):
            best_excess = excess
            _copy(state, best)
        else:
            _copy(best, state)


@kernel
def search_robust_guests(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    tokens_JE: IntArray,
    home_E: IntArray,
    cost_RR: IntArray,
    slots_R: IntArray,
    cap_R: IntArray,
    begin_RK: IntArray,
    rounds: int,
    rescue_rounds: int,
) -> IntArray:
    """Finds the cheapest guests that keep ranks at their caps in all scenarios, or leave the fewest tokens above.

    One kernel with its own states: handing them over costs more than a quick search.

    Args:
        tokens_JE: tokens of each expert. Shape: [scenarios, experts].
        home_E: home rank of each expert. Shape: [experts].
        cost_RR: cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks].
        slots_R: guest slots; some rank has one. Shape: [ranks].
        cap_R: the most tokens of each rank, the same in all scenarios. Shape: [ranks].
        begin_RK: guests to begin with, -1 where none; impossible ones are passed over. Shape: [ranks, slots].
        rounds: rounds of improvement.
        rescue_rounds: further rounds while something is above a cap.

    Returns:
        The expert in each slot, -1 where empty. Shape: [ranks, slots].
    """
    guest_P = begin_RK.flatten()
    if guest_P.max() < 0:
        few = start_scenarios(tokens_JE[::FEW], home_E, cost_RR, slots_R, cap_R)
        for scenario in range(few.excess_J.size):
            level(scenario, few)
        complete(0, few)
        guest_P = few.expert_C[: guest_P.size]
    state = start_scenarios(tokens_JE, home_E, cost_RR, slots_R, cap_R)
    order_J = np.arange(state.excess_J.size)
    _adopt(guest_P, slots_R, state)
    excess = complete(0, state)
    _drop_unneeded(order_J, state)
    best = state
    if rounds > 0 or (rescue_rounds > 0 and excess > 0):
        best = start_scenarios(tokens_JE, home_E, cost_RR, slots_R, cap_R)
        _copy(state, best)
        _try_anew(rounds, rescue_rounds, order_J, state, best)
    return best.expert_C[: guest_P.size].copy().reshape(begin_RK.shape)

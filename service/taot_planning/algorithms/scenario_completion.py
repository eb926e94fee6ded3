"""Guests added one by one until every scenario holds.

Each is the one that takes most tokens off full ranks for its cost, counted over all scenarios.

Axis letters: as in `scenario_state`.
"""

from __future__ import annotations

from taot_planning.algorithms.scenario_flow import add_up_excess, fill_guest, link
from taot_planning.algorithms.scenario_state import ScenarioState
from taot_planning.kernel import inner_kernel


@inner_kernel
def draw(state: ScenarioState, bound: int) -> int:
    """The next number of a fixed pseudo-random sequence, 0 to bound - 1; a linear congruential generator."""
    state.total[1] = (state.total[1] * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state.total[1] >> 7) % bound)


@inner_kernel
def _begin(state: ScenarioState) -> None:
    """Knows nothing about the scenarios yet."""
    state.is_stale_J[:] = True
    state.movable_JE[:] = 0.0
    state.merit_E[:] = 0.0


@inner_kernel
def _measure_movable(scenario: int, state: ScenarioState) -> None:
    """Notes how many tokens of each expert could leave ranks above their caps, and what more it is than before.

    What can be reached from those ranks is full: a copy elsewhere is a way out for all tokens there. Where a guest's
    tokens are reached, so is the rank of its home.
    """
    num_places = state.rank_C.size - state.home_H.size
    for rank in range(state.free_R.size):
        is_reached = state.reached_JR[scenario, rank]
        for index in range(state.first_R[rank], state.first_R[rank + 1]):
            expert = state.home_H[index] - num_places
            movable = 0.0
            if is_reached:
                copy = state.home_H[index]
                while copy >= 0:
                    if state.reached_JR[scenario, state.rank_C[copy]]:
                        movable += state.tokens_JC[scenario, copy]
                    copy = state.next_C[copy]
                movable = min(movable, state.excess_J[scenario])
                state.rise_E[expert] += max(movable - state.movable_JE[scenario, expert], 0.0)
            state.movable_JE[scenario, expert] = movable


@inner_kernel
def _measure_rooms(state: ScenarioState) -> None:
    """Notes per scenario what could leave ranks above their caps and where there is room for a guest to take it.

    Room does not grow while guests come: so a guest gains no more than it did, but for what has become movable since.
    """
    num_places = state.rank_C.size - state.home_H.size
    state.rise_E[:] = 0.0
    for scenario in range(state.excess_J.size):
        if state.is_stale_J[scenario]:
            state.is_stale_J[scenario] = False
            _measure_movable(scenario, state)
            for rank in range(state.free_R.size):
                state.room_JR[scenario, rank] = max(state.cap_R[rank] - state.load_JR[scenario, rank], 0.0)
    for expert in range(state.rise_E.size):
        if state.rise_E[expert] > 0.0:
            state.merit_E[expert] += state.rise_E[expert] * state.most_worth_R[state.rank_C[num_places + expert]]


@inner_kernel
def _measure_merit(expert: int, state: ScenarioState) -> int:
    """Measures what a guest takes off full ranks for its cost, path by path an upper bound. Returns its best rank."""
    state.gain_R[:] = 0.0
    for scenario in range(state.excess_J.size):
        movable = state.movable_JE[scenario, expert]
        if movable > 0.0:
            for rank in range(state.gain_R.size):
                state.gain_R[rank] += min(movable, state.room_JR[scenario, rank])
    home = state.rank_C[state.rank_C.size - state.home_H.size + expert]
    best_rank, most = -1, 0.0
    for rank in range(state.gain_R.size):
        merit = state.gain_R[rank] * state.worth_RR[home, rank]
        if merit > most and state.free_R[rank] > 0:
            best_rank, most = rank, merit
    state.merit_E[expert] = most
    return best_rank


@inner_kernel
def _choose_guest(blinks: int, state: ScenarioState) -> tuple[int, int]:
    """Chooses the guest that gains most for its cost, overlooking some, as expert and place; -1: nothing gains."""
    num_slots = (state.rank_C.size - state.home_H.size) // state.free_R.size
    first = 0
    for expert in range(1, state.merit_E.size):
        if state.merit_E[expert] > state.merit_E[first]:
            first = expert
    chosen, chosen_rank, most = -1, -1, 0.0
    # The more the first one gains, the more of the others need no closer look.
    for index in range(-1, state.merit_E.size):
        expert = first if index < 0 else index
        if index == first or state.merit_E[expert] <= most:
            continue
        rank = _measure_merit(expert, state)
        if state.merit_E[expert] > most and draw(state, 1024) >= blinks:
            chosen, chosen_rank, most = expert, rank, state.merit_E[expert]
    place = chosen_rank * num_slots
    while chosen >= 0 and state.expert_C[place] >= 0:
        place += 1
    return chosen, place


@inner_kernel
def complete(blinks: int, state: ScenarioState) -> float:
    """Adds guests until every scenario holds or nothing helps. Returns the tokens that stay above the caps."""
    _begin(state)
    while True:
        excess = add_up_excess(state)
        if excess == 0.0:
            return 0.0
        _measure_rooms(state)
        expert, place = _choose_guest(blinks, state)
        if expert < 0:
            return excess
        link(place, expert, state)
        for scenario in range(state.excess_J.size):
            # Without tokens to take, or where its rank could be reached before, the guest opens no new path.
            if state.movable_JE[scenario, expert] > 0.0 and not state.reached_JR[scenario, state.rank_C[place]]:
                state.is_stale_J[scenario] = True
                fill_guest(scenario, place, state)

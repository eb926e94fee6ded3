"""Guests added one by one until every scenario holds.

Each is the one that takes most tokens off full ranks for its cost, counted over all scenarios.

Axis letters: as in `scenario_state`.
"""

from __future__ import annotations

from taot_planning.algorithms.scenario_flow import fill_guest, link
from taot_planning.algorithms.scenario_state import ScenarioState
from taot_planning.kernel import inner_kernel


@inner_kernel
def draw(state: ScenarioState, bound: int) -> int:
    """The next number of a fixed pseudo-random sequence, 0 to bound - 1; a linear congruential generator."""
    state.total[1] = (state.total[1] * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state.total[1] >> 7) % bound)


@inner_kernel
def _measure_rooms(state: ScenarioState) -> None:
    """Notes per scenario what could leave ranks above their caps and where there is room for a guest to take it.

    What can be reached from those ranks is full: a copy elsewhere is a way out for all tokens there. `bound_E` is what
    a guest of each expert takes off them at most, wherever it is, `bound_R` what one on each rank does, whatever it is.
    """
    num_places = state.rank_C.size - state.home_H.size
    num_slots = num_places // state.free_R.size
    state.movable_JE[:] = 0
    state.bound_E[:] = 0
    state.bound_R[:] = 0
    for scenario in range(state.excess_J.size):
        excess = state.excess_J[scenario]
        if excess == 0:
            continue
        most_room = 0
        for rank in range(state.free_R.size):
            room = state.cap_R[rank] - state.load_JR[scenario, rank]
            room = max(room, 0) if state.free_R[rank] > 0 else 0
            state.room_JR[scenario, rank] = room
            state.bound_R[rank] += room
            most_room = max(most_room, room)
        for rank in range(state.free_R.size):
            if not state.reached_JR[scenario, rank]:
                continue
            for place in range(rank * num_slots, (rank + 1) * num_slots):
                if state.expert_C[place] >= 0:
                    state.movable_JE[scenario, state.expert_C[place]] += state.tokens_JC[scenario, place]
            for index in range(state.first_R[rank], state.first_R[rank + 1]):
                home = state.home_H[index]
                state.movable_JE[scenario, home - num_places] += state.tokens_JC[scenario, home]
        for expert in range(state.bound_E.size):
            movable = min(state.movable_JE[scenario, expert], excess)
            state.movable_JE[scenario, expert] = movable
            state.bound_E[expert] += min(movable, most_room)


@inner_kernel
def _measure_gain(expert: int, rank: int, state: ScenarioState) -> int:
    """Adds up what a guest could take off ranks above their caps: path by path an upper bound."""
    gain = 0
    for scenario in range(state.excess_J.size):
        movable = state.movable_JE[scenario, expert]
        if movable > 0:
            gain += min(movable, state.room_JR[scenario, rank])
    return gain


@inner_kernel
def _choose_guest(blinks: int, state: ScenarioState) -> tuple[int, int]:
    """Chooses the guest that gains most for its cost, overlooking some, as expert and place; -1: nothing gains."""
    num_places = state.rank_C.size - state.home_H.size
    num_slots = num_places // state.free_R.size
    chosen, chosen_rank, most, most_cost = -1, -1, 0, 1
    for expert in range(state.bound_E.size):
        home = state.rank_C[num_places + expert]
        # Rounded products grow with their factors: no place for this expert could pass the comparison below.
        if float(state.bound_E[expert]) * most_cost <= float(most) * state.least_cost_R[home]:
            continue
        for rank in range(state.bound_R.size):
            cost = state.cost_RR[home, rank]
            bound = min(state.bound_E[expert], state.bound_R[rank])
            if float(bound) * most_cost <= float(most) * cost:
                continue
            gain = _measure_gain(expert, rank, state)
            if gain > 0 and float(gain) * most_cost > float(most) * cost and draw(state, 1024) >= blinks:
                chosen, chosen_rank, most, most_cost = expert, rank, gain, cost
    place = chosen_rank * num_slots
    while chosen >= 0 and state.expert_C[place] >= 0:
        place += 1
    return chosen, place


@inner_kernel
def complete(blinks: int, state: ScenarioState) -> int:
    """Adds guests until every scenario holds or nothing helps. Returns the tokens that stay above the caps."""
    while True:
        excess = state.excess_J.sum()
        if excess == 0:
            return 0
        _measure_rooms(state)
        expert, place = _choose_guest(blinks, state)
        if expert < 0:
            return int(excess)
        link(place, expert, state)
        for scenario in range(state.excess_J.size):
            # Without tokens to take, or where its rank could be reached before, the guest opens no new path.
            if state.movable_JE[scenario, expert] > 0 and not state.reached_JR[scenario, state.rank_C[place]]:
                fill_guest(scenario, place, state)

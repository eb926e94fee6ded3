"""The search for the cheapest guests that hold in every scenario.

A placement *holds* in a scenario when its tokens can be split over the copies so that no rank is above its cap: a
maximum flow, kept up by augmenting paths while guests come and go. The first answer adds guests one by one,
each the one that takes most tokens off full ranks for its cost, counted over all scenarios; then guests that no
scenario needs are dropped. After that some guests near each other are taken out, again and again, and the placement
is completed anew (ruin and recreate); what is no worse is kept. Chance is a fixed pseudo-random sequence and
everything is an integer but for products that are compared: every machine finds the same guests.
The cost of tokens that cross nodes is ignored.

Axis letters: as in `scenario_state`.
"""

from __future__ import annotations

import numpy as np

from taot_planning.algorithms.scenario_state import ScenarioState
from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel

MAX_TAKEN_OUT = 4
"""Guests that are taken out at a time, at most."""

BLINKS = 128
"""Of 1024 better candidates so many are overlooked by chance when a placement is completed anew."""


@kernel
def _draw(state: ScenarioState, bound: int) -> int:
    """The next number of a fixed pseudo-random sequence, 0 to bound - 1; a linear congruential generator."""
    state.total[1] = (state.total[1] * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state.total[1] >> 7) % bound)


@kernel
def _find_room(scenario: int, state: ScenarioState) -> int:
    """Searches breadth-first for the nearest rank below its cap that tokens of ranks above theirs can reach.

    Returns the rank; -1: there is none, and `reached_JR` holds what was reached.
    """
    num_places = state.rank_C.size - state.home_H.size
    num_slots = num_places // state.free_R.size
    head, tail = 0, 0
    for rank in range(state.free_R.size):
        state.reached_JR[scenario, rank] = state.load_JR[scenario, rank] > state.cap_R[rank]
        if state.reached_JR[scenario, rank]:
            state.giver_R[rank] = -1
            state.queue_R[tail] = rank
            tail += 1
    while head < tail:
        rank = state.queue_R[head]
        head += 1
        homes = state.first_R[rank] - num_slots
        for index in range(num_slots + state.first_R[rank + 1] - state.first_R[rank]):
            if index < num_slots:
                giver = rank * num_slots + index
                if state.tokens_JC[scenario, giver] == 0:
                    continue
                taker = num_places + state.expert_C[giver]
            else:  # most experts have no guest
                giver = state.home_H[homes + index]
                taker = state.next_C[giver]
                if taker < 0 or state.tokens_JC[scenario, giver] == 0:
                    continue
            while taker >= 0:
                other = state.rank_C[taker]
                if not state.reached_JR[scenario, other]:
                    state.reached_JR[scenario, other] = True
                    state.giver_R[other], state.taker_R[other] = giver, taker
                    state.queue_R[tail] = other
                    tail += 1
                    if state.load_JR[scenario, other] < state.cap_R[other]:
                        return int(other)
                taker = state.next_C[taker]
    return -1


@kernel
def _push(scenario: int, sink: int, state: ScenarioState) -> None:
    """Moves as many tokens as fit along the path that `_find_room` left."""
    amount = state.cap_R[sink] - state.load_JR[scenario, sink]
    full = sink
    while state.giver_R[full] >= 0:
        amount = min(amount, state.tokens_JC[scenario, state.giver_R[full]])
        full = state.rank_C[state.giver_R[full]]
    amount = min(amount, state.load_JR[scenario, full] - state.cap_R[full])
    rank = sink
    while rank != full:
        state.tokens_JC[scenario, state.giver_R[rank]] -= amount
        state.tokens_JC[scenario, state.taker_R[rank]] += amount
        rank = state.rank_C[state.giver_R[rank]]
    state.load_JR[scenario, full] -= amount
    state.load_JR[scenario, sink] += amount


@kernel
def _level(scenario: int, state: ScenarioState) -> int:
    """Brings every rank down to its cap where there is a way. Returns the tokens that stay above."""
    sink = _find_room(scenario, state)
    while sink >= 0:
        _push(scenario, sink, state)
        sink = _find_room(scenario, state)
    excess = 0
    for rank in range(state.free_R.size):
        excess += max(state.load_JR[scenario, rank] - state.cap_R[rank], 0)
    state.excess_J[scenario] = excess
    return excess


@kernel
def _link(place: int, expert: int, state: ScenarioState) -> None:
    """Puts a guest, as yet without tokens, into an empty place."""
    home = state.rank_C.size - state.home_H.size + expert
    state.expert_C[place] = expert
    state.next_C[place] = state.next_C[home]
    state.next_C[home] = place
    state.free_R[state.rank_C[place]] -= 1
    state.total[0] += state.cost_RR[state.rank_C[home], state.rank_C[place]]


@kernel
def _unlink(place: int, state: ScenarioState) -> int:
    """Takes a guest out of its place, where its tokens stay for now. Returns the copy at home."""
    home = state.rank_C.size - state.home_H.size + state.expert_C[place]
    before = home
    while state.next_C[before] != place:
        before = state.next_C[before]
    state.next_C[before] = state.next_C[place]
    state.expert_C[place] = -1
    state.free_R[state.rank_C[place]] += 1
    state.total[0] -= state.cost_RR[state.rank_C[home], state.rank_C[place]]
    return int(home)


@kernel
def _send_home(scenario: int, place: int, home: int, state: ScenarioState) -> None:
    amount = state.tokens_JC[scenario, place]
    state.tokens_JC[scenario, place] = 0
    state.tokens_JC[scenario, home] += amount
    state.load_JR[scenario, state.rank_C[place]] -= amount
    state.load_JR[scenario, state.rank_C[home]] += amount


@kernel
def _measure_rooms(state: ScenarioState) -> None:
    """Notes per scenario what could leave ranks above their caps and where there is room for a guest to take it.

    What can be reached from those ranks is full: a copy elsewhere is a way out for all tokens there. `bound_E` is what
    a guest of each expert takes off them at most, wherever it is.
    """
    state.movable_JE[:] = 0
    state.bound_E[:] = 0
    for scenario in range(state.excess_J.size):
        excess = state.excess_J[scenario]
        if excess == 0:
            continue
        most_room = 0
        for rank in range(state.free_R.size):
            room = state.cap_R[rank] - state.load_JR[scenario, rank]
            room = max(room, 0) if state.free_R[rank] > 0 else 0
            state.room_JR[scenario, rank] = room
            most_room = max(most_room, room)
        for copy in range(state.rank_C.size):
            tokens = state.tokens_JC[scenario, copy]
            if tokens > 0 and state.reached_JR[scenario, state.rank_C[copy]]:
                state.movable_JE[scenario, state.expert_C[copy]] += tokens
        for expert in range(state.bound_E.size):
            movable = min(state.movable_JE[scenario, expert], excess)
            state.movable_JE[scenario, expert] = movable
            state.bound_E[expert] += min(movable, most_room)


@kernel
def _measure_gains(expert: int, state: ScenarioState) -> None:
    """Adds up in `gain_R` what a guest could take off ranks above their caps: path by path an upper bound."""
    gain_R = state.gain_R
    gain_R[:] = 0
    for scenario in range(state.excess_J.size):
        movable = state.movable_JE[scenario, expert]
        if movable > 0:
            room_R = state.room_JR[scenario]
            for rank in range(gain_R.size):
                gain_R[rank] += min(movable, room_R[rank])


@kernel
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
        _measure_gains(expert, state)
        for rank in range(state.gain_R.size):
            gain = state.gain_R[rank]
            if gain == 0:
                continue
            cost = state.cost_RR[home, rank]
            if float(gain) * most_cost > float(most) * cost and _draw(state, 1024) >= blinks:
                chosen, chosen_rank, most, most_cost = expert, rank, gain, cost
    place = chosen_rank * num_slots
    while chosen >= 0 and state.expert_C[place] >= 0:
        place += 1
    return chosen, place


@kernel
def _complete(blinks: int, state: ScenarioState) -> int:
    """Adds guests until every scenario holds or nothing helps. Returns the tokens that stay above the caps."""
    while True:
        excess = state.excess_J.sum()
        if excess == 0:
            return 0
        _measure_rooms(state)
        expert, place = _choose_guest(blinks, state)
        if expert < 0:
            return int(excess)
        _link(place, expert, state)
        for scenario in range(state.excess_J.size):
            # Without tokens to take, or where its rank could be reached before, the guest opens no new path.
            if state.movable_JE[scenario, expert] > 0 and not state.reached_JR[scenario, state.rank_C[place]]:
                _level(scenario, state)


@kernel
def _drop(place: int, order_J: IntArray, state: ScenarioState) -> None:
    """Takes a guest out for good unless a scenario gets worse by it; that one moves to the front of `order_J`."""
    expert, home = state.expert_C[place], _unlink(place, state)
    for index, scenario in enumerate(order_J):
        if state.tokens_JC[scenario, place] == 0:
            continue
        before = state.excess_J[scenario]
        _send_home(scenario, place, home, state)
        if _level(scenario, state) > before:
            _link(place, expert, state)
            _level(scenario, state)
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


@kernel
def _take_out(state: ScenarioState) -> None:
    """Takes out some guests at random: of a rank drawn, and of experts at home there."""
    num_places = state.rank_C.size - state.home_H.size
    near = _draw(state, state.free_R.size)
    left = 1 + _draw(state, MAX_TAKEN_OUT)
    offset = _draw(state, num_places)
    for index in range(num_places):
        place = (offset + index) % num_places
        if state.expert_C[place] < 0:
            continue
        is_near = state.rank_C[place] == near or state.rank_C[num_places + state.expert_C[place]] == near
        if left > 0 and (is_near or _draw(state, 16) == 0):
            left -= 1
            home = _unlink(place, state)
            for scenario in range(state.excess_J.size):
                _send_home(scenario, place, home, state)
    for scenario in range(state.excess_J.size):
        _level(scenario, state)


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
def search_robust_guests(rounds: int, rescue_rounds: int, state: ScenarioState, best: ScenarioState) -> IntArray:
    """Finds the cheapest guests that keep ranks at their caps in all scenarios, or leave the fewest tokens above.

    Args:
        rounds: rounds of improvement.
        rescue_rounds: further rounds while something is above a cap.
        state: without guests; used up.
        best: another state of the same scenarios; overwritten.

    Returns:
        The expert in each slot, -1 where empty. Shape: [ranks, slots].
    """
    order_J = np.arange(state.excess_J.size)
    for scenario in range(state.excess_J.size):
        _level(scenario, state)
    best_excess = _complete(0, state)
    _drop_unneeded(order_J, state)
    _copy(state, best)
    for round_number in range(rounds + rescue_rounds):
        if round_number >= rounds and best_excess == 0:
            break
        _take_out(state)
        excess = _complete(BLINKS, state)
        if excess <= best_excess:
            _drop_unneeded(order_J, state)
        if excess < best_excess or (excess == best_excess and state.total[0] <= best.total[0]):
            best_excess = excess
            _copy(state, best)
        else:
            _copy(best, state)
    num_ranks, num_places = best.free_R.size, best.rank_C.size - best.home_H.size
    return best.expert_C[:num_places].copy().reshape((num_ranks, num_places // num_ranks))

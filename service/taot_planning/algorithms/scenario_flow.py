"""How the tokens of every scenario are split over the copies while guests come and go.

A placement *holds* in a scenario when no rank is above its cap: a maximum flow, kept up by augmenting paths.

Axis letters: as in `scenario_state`.
"""

from __future__ import annotations

from taot_planning.algorithms.scenario_state import ScenarioState
from taot_planning.kernel import inner_kernel


@inner_kernel
def _start_search(scenario: int, state: ScenarioState) -> int:
    """Puts the ranks above their caps into the queue, and adds up the tokens there. Returns how many ranks it are."""
    length, excess = 0, 0.0
    for rank in range(state.free_R.size):
        above = state.load_JR[scenario, rank] - state.cap_R[rank]
        state.reached_JR[scenario, rank] = above > 0.0
        state.giver_R[rank] = -1
        state.queue_R[length] = rank
        length += above > 0.0
        excess += max(above, 0.0)
    state.excess_J[scenario] = excess
    return length


@inner_kernel
def _find_room(scenario: int, length: int, state: ScenarioState) -> int:
    """Searches breadth-first for the nearest rank below its cap that tokens of the first ranks in the queue can reach.

    Returns the rank; -1: there is none, and `reached_JR` holds what was reached.
    """
    num_places = state.rank_C.size - state.home_H.size
    num_slots = num_places // state.free_R.size
    head, tail = 0, length
    while head < tail:
        rank = state.queue_R[head]
        head += 1
        homes = state.first_R[rank] - num_slots
        for index in range(num_slots + state.first_R[rank + 1] - state.first_R[rank]):
            if index < num_slots:
                giver = rank * num_slots + index
                if state.tokens_JC[scenario, giver] == 0.0:
                    continue
                taker = num_places + state.expert_C[giver]
            else:  # most experts have no guest
                giver = state.home_H[homes + index]
                taker = state.next_C[giver]
                if taker < 0 or state.tokens_JC[scenario, giver] == 0.0:
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


@inner_kernel
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


@inner_kernel
def level(scenario: int, state: ScenarioState) -> float:
    """Brings every rank down to its cap where there is a way. Returns the tokens that stay above."""
    while True:
        sink = _find_room(scenario, _start_search(scenario, state), state)
        if sink < 0:
            return float(state.excess_J[scenario])
        _push(scenario, sink, state)


@inner_kernel
def add_up_excess(state: ScenarioState) -> float:
    """The tokens above their caps in all scenarios."""
    excess = 0.0
    for scenario in range(state.excess_J.size):
        excess += state.excess_J[scenario]
    return excess


@inner_kernel
def _find_giver(scenario: int, place: int, state: ScenarioState) -> int:
    """The copy of a guest's expert that has tokens on a rank above its cap, the first such rank; -1: there is none."""
    giver = -1
    copy = state.rank_C.size - state.home_H.size + state.expert_C[place]
    while copy >= 0:
        rank = state.rank_C[copy]
        if state.tokens_JC[scenario, copy] > 0.0 and state.load_JR[scenario, rank] > state.cap_R[rank]:
            giver = copy if giver < 0 or rank < state.rank_C[giver] else giver
        copy = state.next_C[copy]
    return giver


@inner_kernel
def take(scenario: int, place: int, state: ScenarioState) -> int:
    """Gives a guest what it can take straight from copies on ranks above their caps.

    Returns the copy that gave, if it is the only one and tokens of it stay above the cap; else -1.
    """
    rank = state.rank_C[place]
    room = max(state.cap_R[rank] - state.load_JR[scenario, rank], 0.0)
    is_left = True
    giver = _find_giver(scenario, place, state)
    while giver >= 0:
        full = state.rank_C[giver]
        amount = min(room, state.tokens_JC[scenario, giver], state.load_JR[scenario, full] - state.cap_R[full])
        state.tokens_JC[scenario, giver] -= amount
        state.tokens_JC[scenario, place] += amount
        state.load_JR[scenario, full] -= amount
        state.load_JR[scenario, rank] += amount
        state.excess_J[scenario] -= amount
        room -= amount
        is_left &= state.tokens_JC[scenario, giver] > 0.0 and state.load_JR[scenario, full] > state.cap_R[full]
        if room == 0.0:
            break
        giver = _find_giver(scenario, place, state)
    return giver if is_left else -1


@inner_kernel
def fill_guest(scenario: int, place: int, state: ScenarioState) -> None:
    """Does what `level` does after a guest has come to `place`, where there was no way before.

    All new ways lead through the guest. The shortest need no search. Where they leave tokens of the only giver above
    its cap, all that was reached still is: the search goes on from the guest's rank alone.
    """
    giver = take(scenario, place, state)
    if giver >= 0:
        rank = state.rank_C[place]
        state.reached_JR[scenario, rank] = True
        state.queue_R[0] = rank
        state.giver_R[state.rank_C[giver]] = -1
        state.giver_R[rank], state.taker_R[rank] = giver, place
        sink = _find_room(scenario, 1, state)
        if sink < 0:
            return
        _push(scenario, sink, state)
    level(scenario, state)


@inner_kernel
def link(place: int, expert: int, state: ScenarioState) -> None:
    """Puts a guest, as yet without tokens, into an empty place."""
    home = state.rank_C.size - state.home_H.size + expert
    state.expert_C[place] = expert
    state.next_C[place] = state.next_C[home]
    state.next_C[home] = place
    state.free_R[state.rank_C[place]] -= 1
    state.total[0] += state.cost_RR[state.rank_C[home], state.rank_C[place]]


@inner_kernel
def unlink(place: int, state: ScenarioState) -> int:
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


@inner_kernel
def send_home(scenario: int, place: int, home: int, state: ScenarioState) -> None:
    """Gives the tokens of a guest that was taken out to the copy at home."""
    amount = state.tokens_JC[scenario, place]
    state.tokens_JC[scenario, place] = 0.0
    state.tokens_JC[scenario, home] += amount
    state.load_JR[scenario, state.rank_C[place]] -= amount
    state.load_JR[scenario, state.rank_C[home]] += amount

"""Putting guests in and taking them out: which cold rank takes a hot rank's surplus, and which expert carries it.

Axis letters: as in `guest_state`.
"""

from __future__ import annotations

from taot_planning.algorithms.guest_state import (
    BEFORE,
    EXPERT,
    FREE,
    FROM,
    HOT,
    LATEST,
    LEFT,
    PAID,
    ROOM,
    TO,
    TOKENS,
    GuestState,
)
from taot_planning.kernel import inner_kernel

_NOWHERE = 2**62
"""Costs more than any guest."""


@inner_kernel
def _holds(hot: int, cold: int, expert: int, state: GuestState) -> bool:
    """Whether the cold rank holds a guest of this expert of the hot rank already."""
    num_slots = state.guest_P.shape[0] // state.cold_C.shape[0]
    place = state.hot_H[hot, LATEST]
    while place >= 0:
        if place // num_slots == cold and state.guest_P[place, EXPERT] == expert:
            return True
        place = state.guest_P[place, BEFORE]
    return False


@inner_kernel
def _price(hot: int, cold: int, expert: int, state: GuestState) -> int:
    """What a guest would cost: from its home, or where guests are passed on from the cheapest rank that has it."""
    price = int(state.price_XC[expert, cold])
    if state.cost_CC.size == 0:
        return price
    num_slots = state.guest_P.shape[0] // state.cold_C.shape[0]
    place = state.hot_H[hot, LATEST]
    while place >= 0:
        if state.guest_P[place, EXPERT] == expert:
            price = min(price, int(state.cost_CC[place // num_slots, cold]))
        place = state.guest_P[place, BEFORE]
    if state.total[4]:
        for other in range(state.cost_CC.shape[0]):
            if state.price_XC[expert, other] == 0:
                price = min(price, int(state.cost_CC[other, cold]))
    return price


@inner_kernel
def _has_one_price(hot: int, state: GuestState) -> bool:
    """Whether all experts of a hot rank cost the same on any cold rank: none can be passed on, and none is resident."""
    return bool(state.total[3] == 0 or (state.total[4] == 0 and state.hot_H[hot, LATEST] < 0))


@inner_kernel
def _choose_expert(hot: int, cold: int, amount: int, state: GuestState) -> int:
    """The hot rank's smallest expert that can carry the amount, else the largest; -1: none can carry anything.

    Where prices differ, the cheapest of those that can carry the amount, and the smallest only among equals.
    """
    chosen, chosen_price = -1, 0
    one_price = _has_one_price(hot, state)
    for expert in range(state.hot_H[hot, FROM], state.hot_H[hot, TO]):
        left = state.left_X[expert]
        if left == 0 or (chosen >= 0 and left < amount and left <= state.left_X[chosen]):
            continue
        price = 0 if one_price else _price(hot, cold, expert, state)
        is_dearer = price > chosen_price or (price == chosen_price and left >= state.left_X[chosen])
        if chosen >= 0 and state.left_X[chosen] >= amount and is_dearer:
            continue
        if not _holds(hot, cold, expert, state):
            chosen, chosen_price = expert, price
    return chosen


@inner_kernel
def _quote(hot: int, cold: int, amount: int, state: GuestState) -> int:
    """What the guest that would carry the amount costs, at least 1: guests that are free still take a slot."""
    expert = _choose_expert(hot, cold, amount, state)
    return _NOWHERE if expert < 0 else max(_price(hot, cold, expert, state), 1)


@inner_kernel
def add_guest(hot: int, cold: int, expert: int, amount: int, state: GuestState) -> None:
    """Puts a guest into the first free place of a cold rank."""
    price = _price(hot, cold, expert, state) if state.total[3] else state.price_XC[expert, cold]
    num_slots = state.guest_P.shape[0] // state.cold_C.shape[0]
    place = cold * num_slots
    while state.guest_P[place, HOT] >= 0:
        place += 1
    state.guest_P[place, HOT] = hot
    state.guest_P[place, EXPERT] = expert
    state.guest_P[place, TOKENS] = amount
    state.guest_P[place, BEFORE] = state.hot_H[hot, LATEST]
    state.guest_P[place, PAID] = price
    state.hot_H[hot, LATEST] = place
    state.left_X[expert] -= amount
    state.hot_H[hot, LEFT] -= amount
    state.cold_C[cold, ROOM] -= amount
    state.cold_C[cold, FREE] -= 1
    state.total[0] -= amount
    state.total[1] += price


@inner_kernel
def remove_guests(hot: int, state: GuestState) -> None:
    """Takes all guests of a hot rank out."""
    num_slots = state.guest_P.shape[0] // state.cold_C.shape[0]
    place = state.hot_H[hot, LATEST]
    state.hot_H[hot, LATEST] = -1
    while place >= 0:
        cold = place // num_slots
        amount = state.guest_P[place, TOKENS]
        state.left_X[state.guest_P[place, EXPERT]] += amount
        state.hot_H[hot, LEFT] += amount
        state.cold_C[cold, ROOM] += amount
        state.cold_C[cold, FREE] += 1
        state.total[0] += amount
        state.total[1] -= state.guest_P[place, PAID]
        state.guest_P[place, HOT] = -1
        place = state.guest_P[place, BEFORE]


@inner_kernel
def _choose_cold(hot: int, blinks: int, state: GuestState) -> int:
    """Chooses the cold rank for the next guest of a hot rank; -1: none has room.

    That is the tightest of the cheapest ranks that can take the whole surplus, unless two guests on cheaper
    ranks can; then, and where nothing takes the whole, it is the rank that takes most for its cost.

    Args:
        hot: index of the hot rank.
        blinks: of 1024 candidates so many are overlooked by chance.
        state: the guests so far.
    """
    want, chance = state.hot_H[hot, LEFT], state.total[2]
    first, one_price = state.hot_H[hot, FROM], _has_one_price(hot, state)
    single = 0
    for index in range(state.hot_H[hot, FROM], state.hot_H[hot, TO]):
        single = max(single, state.left_X[index])
    fit, fit_cost, fit_room = -1, _NOWHERE, 0
    most, most_tokens, most_cost = -1, 0, 1
    for cold in range(state.cold_C.shape[0]):
        room = state.cold_C[cold, ROOM]
        if room == 0 or state.cold_C[cold, FREE] == 0:
            continue
        chance = (chance * 1103515245 + 12345) & 0x7FFFFFFF
        if (chance >> 16) & 1023 < blinks:
            continue
        cost = state.price_XC[first, cold] if one_price else _quote(hot, cold, min(room, want), state)
        if room >= want and single >= want:
            if cost < fit_cost or (cost == fit_cost and room < fit_room):
                fit, fit_cost, fit_room = cold, cost, room
            continue
        tokens = min(room, want, single)
        if float(tokens) * most_cost > float(most_tokens) * cost:
            most, most_tokens, most_cost = cold, tokens, cost
    state.total[2] = chance
    if fit < 0 or most < 0:
        return max(fit, most)
    if most_cost < fit_cost:
        for cold in range(state.cold_C.shape[0]):
            takes_rest = (
                cold != most and state.cold_C[cold, FREE] > 0 and state.cold_C[cold, ROOM] >= want - most_tokens
            )
            if takes_rest and most_cost + state.price_XC[first, cold] < fit_cost:
                return most
    return fit


@inner_kernel
def insert(hot: int, blinks: int, state: GuestState) -> None:
    """Gives a hot rank guests until its surplus is carried or nothing has room."""
    while state.hot_H[hot, LEFT] > 0:
        cold = _choose_cold(hot, blinks, state)
        if cold < 0:
            break
        amount = min(state.hot_H[hot, LEFT], state.cold_C[cold, ROOM])
        expert = _choose_expert(hot, cold, amount, state)
        if expert < 0:
            break
        add_guest(hot, cold, expert, min(amount, state.left_X[expert]), state)

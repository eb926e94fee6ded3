"""The search for the cheapest guests that bring every rank down to a cap.

Seen from the ranks the problem is a fixed-charge transport: *hot* ranks, above the cap, hand tokens to *cold*
ranks, below it; a guest is one shipment and pays the cost between the two ranks however much it carries. Which
expert carries it matters little, so experts are chosen last, the smallest that has enough tokens.

The first answer inserts the hot ranks one by one, largest surplus first, each where it fits best. Then hot ranks
that compete for the same room are taken out and inserted again in another order, over and over (ruin and
recreate, as published for vehicle routing). The order comes from a fixed pseudo-random sequence; everything is an
integer but for products that are compared, which IEEE rounds alike everywhere. So every machine finds the same guests.
Hot ranks never take guests, and the cost of tokens that cross nodes is ignored.

Axis letters: as in `guest_state`; M moved hot ranks, B guests of the moved ranks as they were before.
"""

from __future__ import annotations

import numpy as np

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
from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel

MAX_MOVED = 8
"""Hot ranks that are taken out at a time, at most."""

BLINKS = 128
"""Of 1024 candidates so many are overlooked by chance when a hot rank is inserted again."""

_NOWHERE = 2**62
"""Costs more than any guest."""


@kernel
def _draw(state: GuestState, bound: int) -> int:
    """The next number of a fixed pseudo-random sequence, 0 to bound - 1; a linear congruential generator."""
    state.total[2] = (state.total[2] * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state.total[2] >> 7) % bound)


@kernel
def _holds(hot: int, cold: int, expert: int, state: GuestState) -> bool:
    """Whether the cold rank holds a guest of this expert of the hot rank already."""
    num_slots = state.guest_P.shape[0] // state.cold_C.shape[0]
    place = state.hot_H[hot, LATEST]
    while place >= 0:
        if place // num_slots == cold and state.guest_P[place, EXPERT] == expert:
            return True
        place = state.guest_P[place, BEFORE]
    return False


@kernel
def _price(hot: int, cold: int, expert: int, state: GuestState) -> int:
    """What a guest would cost: from its home, or where guests are passed on from the cheapest rank that has it."""
    price = int(state.price_XC[expert, cold])
    for other in range(state.cost_CC.shape[0]):
        if state.cost_CC[other, cold] < price:
            is_resident = state.price_XC[expert, other] == 0
            if is_resident or _holds(hot, other, expert, state):
                price = int(state.cost_CC[other, cold])
    return price


@kernel
def _choose_expert(hot: int, cold: int, amount: int, state: GuestState) -> int:
    """The hot rank's smallest expert that can carry the amount, else the largest; -1: none can carry anything.

    Where prices differ, the cheapest of those that can carry the amount, and the smallest only among equals.
    """
    chosen, chosen_price = -1, 0
    for expert in range(state.hot_H[hot, FROM], state.hot_H[hot, TO]):
        left = state.left_X[expert]
        if left == 0 or (chosen >= 0 and left < amount and left <= state.left_X[chosen]):
            continue
        price = _price(hot, cold, expert, state) if state.total[3] else 0
        is_dearer = price > chosen_price or (price == chosen_price and left >= state.left_X[chosen])
        if chosen >= 0 and state.left_X[chosen] >= amount and is_dearer:
            continue
        if not _holds(hot, cold, expert, state):
            chosen, chosen_price = expert, price
    return chosen


@kernel
def _quote(hot: int, cold: int, amount: int, state: GuestState) -> int:
    """What the guest that would carry the amount costs, at least 1: guests that are free still take a slot."""
    expert = _choose_expert(hot, cold, amount, state)
    return _NOWHERE if expert < 0 else max(_price(hot, cold, expert, state), 1)


@kernel
def _add_guest(hot: int, cold: int, expert: int, amount: int, state: GuestState) -> None:
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


@kernel
def _remove_guests(hot: int, state: GuestState) -> None:
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


@kernel
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
    first, one_price = state.hot_H[hot, FROM], state.total[3] == 0
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


@kernel
def _insert(hot: int, blinks: int, state: GuestState) -> None:
    """Gives a hot rank guests until its surplus is carried or nothing has room."""
    while state.hot_H[hot, LEFT] > 0:
        cold = _choose_cold(hot, blinks, state)
        if cold < 0:
            break
        amount = min(state.hot_H[hot, LEFT], state.cold_C[cold, ROOM])
        expert = _choose_expert(hot, cold, amount, state)
        if expert < 0:
            break
        _add_guest(hot, cold, expert, min(amount, state.left_X[expert]), state)


@kernel
def _choose_moved(moved_M: IntArray, state: GuestState) -> int:
    """Chooses a hot rank, and those that stand in its way on one or two cold ranks near it.

    Returns:
        How many; `moved_M` holds them.
    """
    num_hot, num_cold = state.hot_H.shape[0], state.cold_C.shape[0]
    num_slots = state.guest_P.shape[0] // num_cold
    moved_M[0] = _draw(state, num_hot)
    first = state.hot_H[moved_M[0], FROM]
    count = 1
    for _ in range(1 + _draw(state, 3)):
        cold, other = _draw(state, num_cold), _draw(state, num_cold)
        if state.price_XC[first, other] < state.price_XC[first, cold]:
            cold = other
        for place in range(cold * num_slots, (cold + 1) * num_slots):
            hot = state.guest_P[place, HOT]
            if hot < 0 or count == moved_M.size:
                continue
            is_new = True
            for index in range(count):
                is_new = is_new and moved_M[index] != hot
            if is_new:
                moved_M[count] = hot
                count += 1
    return count


@kernel
def _save_guests(moved_M: IntArray, count: int, before_B: IntArray, state: GuestState) -> int:
    """Writes down hot rank, expert, tokens and cold rank of the guests of moved ranks. Returns how many."""
    num_slots = state.guest_P.shape[0] // state.cold_C.shape[0]
    saved = 0
    for index in range(count):
        place = state.hot_H[moved_M[index], LATEST]
        while place >= 0:
            before_B[saved, 0] = moved_M[index]
            before_B[saved, 1] = state.guest_P[place, EXPERT]
            before_B[saved, 2] = state.guest_P[place, TOKENS]
            before_B[saved, 3] = place // num_slots
            saved += 1
            place = state.guest_P[place, BEFORE]
    return saved


@kernel
def _order_moved(moved_M: IntArray, count: int, state: GuestState) -> None:
    """Orders moved ranks by chance, or by descending surplus, with equal odds."""
    by_chance = _draw(state, 2) == 0
    for index in range(1, count):
        hot = moved_M[index]
        at = index
        if by_chance:
            at = _draw(state, index + 1)
            moved_M[index] = moved_M[at]
        else:
            while at > 0 and state.hot_H[moved_M[at - 1], LEFT] < state.hot_H[hot, LEFT]:
                moved_M[at] = moved_M[at - 1]
                at -= 1
        moved_M[at] = hot


@kernel
def _improve(rounds: int, rescue_rounds: int, state: GuestState) -> IntArray:
    """Moves hot ranks again and again and keeps what is no worse.

    Args:
        rounds: how often.
        rescue_rounds: how often on top while some surplus is not carried.
        state: the guests so far.

    Returns:
        The best `guest_P`. Shape: [places, 5].
    """
    best_P = state.guest_P.copy()
    best_left, best_cost = state.total[0], state.total[1]
    moved_M = np.empty(MAX_MOVED, dtype=np.int64)
    before_B = np.empty((state.guest_P.shape[0], 4), dtype=np.int64)
    for round_number in range(rounds + rescue_rounds):
        if round_number >= rounds and best_left == 0:
            break
        left, cost = state.total[0], state.total[1]
        count = _choose_moved(moved_M, state)
        saved = _save_guests(moved_M, count, before_B, state)
        for index in range(count):
            _remove_guests(moved_M[index], state)
        _order_moved(moved_M, count, state)
        for index in range(count):
            _insert(moved_M[index], BLINKS, state)
        new_left, new_cost = state.total[0], state.total[1]
        if new_left > left or (new_left == left and new_cost > cost):
            for index in range(count):
                _remove_guests(moved_M[index], state)
            for index in range(saved):
                _add_guest(before_B[index, 0], before_B[index, 3], before_B[index, 1], before_B[index, 2], state)
        elif new_left < best_left or (new_left == best_left and new_cost < best_cost):
            best_left, best_cost = new_left, new_cost
            best_P[:] = state.guest_P
    state.total[0], state.total[1] = best_left, best_cost
    return best_P


@kernel
def search_guests(state: GuestState, rounds: int, rescue_rounds: int) -> tuple[IntArray, int]:
    """Finds guests that bring every rank down to the cap, or as many tokens as possible, at the least cost.

    Args:
        state: no guests, and at least one hot and one cold rank; used up.
        rounds: rounds of improvement.
        rescue_rounds: further rounds while something is above the cap.

    Returns:
        The expert in each slot of the cold ranks, -1 where empty, and the tokens that stay above the cap.
        Shape: [cold ranks, slots].
    """
    for hot in np.argsort(-state.hot_H[:, LEFT], kind="mergesort"):
        _insert(hot, 0, state)
    best_P = _improve(rounds, rescue_rounds, state)
    num_cold = state.cold_C.shape[0]
    guests_CK = np.full((num_cold, best_P.shape[0] // num_cold), -1, dtype=np.int64)
    for place in range(best_P.shape[0]):
        if best_P[place, HOT] >= 0:
            guests_CK[place // guests_CK.shape[1], place % guests_CK.shape[1]] = state.expert_X[best_P[place, EXPERT]]
    return guests_CK, state.total[0]

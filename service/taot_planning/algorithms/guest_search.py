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

from taot_planning.algorithms.guest_insertion import add_guest, insert, remove_guests
from taot_planning.algorithms.guest_state import (
    BEFORE,
    EXPERT,
    FROM,
    HOT,
    LATEST,
    LEFT,
    TOKENS,
    GuestState,
    start_state,
)
from taot_planning.arrays import IntArray
from taot_planning.kernel import inner_kernel, kernel

MAX_MOVED = 8
"""Hot ranks that are taken out at a time, at most."""

BLINKS = 128
"""Of 1024 candidates so many are overlooked by chance when a hot rank is inserted again."""


@inner_kernel
def _draw(state: GuestState, bound: int) -> int:
    """The next number of a fixed pseudo-random sequence, 0 to bound - 1; a linear congruential generator."""
    state.total[2] = (state.total[2] * 1103515245 + 12345) & 0x7FFFFFFF
    return int((state.total[2] >> 7) % bound)


@inner_kernel
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


@inner_kernel
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


@inner_kernel
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
            remove_guests(moved_M[index], state)
        _order_moved(moved_M, count, state)
        for index in range(count):
            insert(moved_M[index], BLINKS, state)
        new_left, new_cost = state.total[0], state.total[1]
        if new_left > left or (new_left == left and new_cost > cost):
            for index in range(count):
                remove_guests(moved_M[index], state)
            for index in range(saved):
                add_guest(before_B[index, 0], before_B[index, 3], before_B[index, 1], before_B[index, 2], state)
        elif new_left < best_left or (new_left == best_left and new_cost < best_cost):
            best_left, best_cost = new_left, new_cost
            best_P[:] = state.guest_P
    state.total[0], state.total[1] = best_left, best_cost
    return best_P


@kernel
def find_guests(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    tokens_E: IntArray,
    home_E: IntArray,
    excess_R: IntArray,
    cost_RR: IntArray,
    slots_R: IntArray,
    resident_RK: IntArray,
    has_relay: bool,
    rounds: int,
    rescue_rounds: int,
) -> tuple[IntArray, int]:
    """Finds guests that bring every rank down to its capacity, or as many tokens as possible, at the least cost.

    Args:
        tokens_E: tokens of each expert. Shape: [experts].
        home_E: home rank of each expert. Shape: [experts].
        excess_R: load above the capacity, negative below it. Shape: [ranks].
        cost_RR: cost of a guest from home to guest rank, in thousandths. Shape: [ranks, ranks].
        slots_R: guest slots. Shape: [ranks].
        resident_RK: experts that each rank has already, see `start_state`. Shape: [ranks, any number].
        has_relay: whether guests are passed on.
        rounds: rounds of improvement.
        rescue_rounds: further rounds while something is above a capacity.

    Returns:
        The expert in each slot, -1 where empty, and the tokens that stay above capacities. Shape: [ranks, slots].
    """
    state, ranks_C = start_state(tokens_E, home_E, excess_R, cost_RR, slots_R, resident_RK, has_relay)
    guests_RK = np.full((slots_R.size, slots_R.max()), -1, dtype=np.int64)
    if ranks_C.size == 0 or state.total[0] == 0:
        return guests_RK, int(state.total[0])
    for hot in np.argsort(-state.hot_H[:, LEFT], kind="mergesort"):
        insert(hot, 0, state)
    best_P = _improve(rounds, rescue_rounds, state)
    num_slots = guests_RK.shape[1]
    for place in range(best_P.shape[0]):
        if best_P[place, HOT] >= 0:
            rank = ranks_C[place // num_slots]
            guests_RK[rank, place % num_slots] = state.expert_X[best_P[place, EXPERT]]
    return guests_RK, int(state.total[0])

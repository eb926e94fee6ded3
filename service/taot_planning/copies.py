"""The copies of experts that have guests, in the order in which they are served.

Axis letters: C copies of experts that have guests, homes included; F fields of a copy; the others as in the package.
"""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import IntArray
from taot_planning.kernel import kernel

EXPERT, RANK, SLOT, FIRST, END, NEXT, GROUP = 0, 1, 2, 3, 4, 5, 6
"""Columns of `copies_CF`: the expert; its rank; the slot there, -1 for the home; the expert's copies, from `FIRST` up
to but without `END`; the next copy on the same rank, -1 after the last; the expert's first copy in the same node."""


@kernel
def _count_copies(num_experts: int, guests_RK: IntArray) -> IntArray:
    """Copies of each expert, 0 where it has no guests. Shape: [experts]."""
    number_E = np.zeros(num_experts, dtype=np.int64)
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            if guests_RK[rank, slot] >= 0:
                number_E[guests_RK[rank, slot]] += 1
    for expert in range(num_experts):
        if number_E[expert] > 0:
            number_E[expert] += 1
    return number_E


@kernel
def _link_copies(nodes_R: IntArray, copies_CF: IntArray) -> None:
    """Fills `NEXT` and `GROUP`."""
    head_R = np.full(nodes_R.size, -1, dtype=np.int64)
    for copy in range(copies_CF.shape[0] - 1, -1, -1):
        rank = copies_CF[copy, RANK]
        copies_CF[copy, NEXT] = head_R[rank]
        head_R[rank] = copy
        group = copies_CF[copy, FIRST]
        while nodes_R[copies_CF[group, RANK]] != nodes_R[rank]:
            group += 1
        copies_CF[copy, GROUP] = group


@kernel
def list_copies(home_E: IntArray, nodes_R: IntArray, guests_RK: IntArray) -> IntArray:
    """Lists the copies expert by expert: the home, then the guests by rank.

    Args:
        home_E: home rank of each expert. Shape: [experts].
        nodes_R: node of each rank. Shape: [ranks].
        guests_RK: expert in each guest slot, -1 where empty; a read-only array. Shape: [ranks, slots].

    Returns:
        One row per copy, see `EXPERT`. Shape: [copies, 7].
    """
    number_E = _count_copies(home_E.size, guests_RK)
    copies_CF = np.empty((number_E.sum(), 7), dtype=np.int64)
    next_E = np.empty(home_E.size, dtype=np.int64)
    end = 0
    for expert in range(home_E.size):
        next_E[expert] = end
        first, end = end, end + number_E[expert]
        for copy in range(first, end):
            copies_CF[copy, EXPERT] = expert
            copies_CF[copy, FIRST] = first
            copies_CF[copy, END] = end
        if end > first:
            copies_CF[first, RANK] = home_E[expert]
            copies_CF[first, SLOT] = -1
            next_E[expert] += 1
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            expert = guests_RK[rank, slot]
            if expert >= 0:
                copies_CF[next_E[expert], RANK] = rank
                copies_CF[next_E[expert], SLOT] = slot
                next_E[expert] += 1
    _link_copies(nodes_R, copies_CF)
    return copies_CF

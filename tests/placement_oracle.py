"""Every placement of a small layer, what it costs and whether the tokens fit, worked out the slow way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
from scipy.optimize import linprog

from taot_planning import LayerProblem


def placements(problem: LayerProblem) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All placements: for each rank the experts that are guests there."""
    choices = [
        [
            chosen
            for size in range(int(problem.topology.slots_R[rank]) + 1)
            for chosen in combinations(np.flatnonzero(problem.home_E != rank).tolist(), size)
        ]
        for rank in range(problem.num_ranks)
    ]
    return product(*choices)


def cost_of(problem: LayerProblem, placement: tuple[tuple[int, ...], ...]) -> float:
    """Guests that are not resident come from the home, with relays from the nearest rank that has the expert."""
    cost_RR = problem.topology.cost_milli_RR
    total = 0
    for expert, home in enumerate(problem.home_E.tolist()):
        at = {rank for rank, guests in enumerate(placement) if expert in guests}
        resident = set()
        if problem.resident_RK is not None:
            resident = set(np.flatnonzero((problem.resident_RK == expert).any(axis=1)).tolist())
        sources, at = {home} | (resident if problem.topology.has_relay else set()), at - resident
        while at:
            cost, rank = min((int(cost_RR[source, rank]), rank) for source in sources for rank in at)
            total += cost
            at.remove(rank)
            if problem.topology.has_relay:
                sources.add(rank)
    return total / 1000


@dataclass(frozen=True)
class Copies:
    """Where the experts of a placement are; a set of ranks or experts is a number, one bit each."""

    tokens: list[int]
    """Tokens of each set of experts."""

    ranks: list[int]
    """Ranks that have a copy of any of them."""


def copies_of(problem: LayerProblem, placement: tuple[tuple[int, ...], ...]) -> Copies:
    tokens_E = problem.counts_RE.sum(axis=0).tolist()
    tokens, ranks = [0], [0]
    for expert, home in enumerate(problem.home_E.tolist()):
        bits = 1 << home | sum(1 << rank for rank, guests in enumerate(placement) if expert in guests)
        tokens += [others + tokens_E[expert] for others in tokens]
        ranks += [others | bits for others in ranks]
    return Copies(tokens, ranks)


def sums(values_R: np.ndarray) -> list[int]:
    """Sum over each set of ranks."""
    total = [0]
    for value in values_R.tolist():
        total += [others + value for others in total]
    return total


def fits(copies: Copies, capacity_R: np.ndarray) -> bool:
    """Hall: every set of experts has room on the ranks that have copies of it."""
    room = sums(capacity_R)
    return all(tokens <= room[ranks] for tokens, ranks in zip(copies.tokens, copies.ranks, strict=True))


def fits_with_least(
    problem: LayerProblem, placement: tuple[tuple[int, ...], ...], cap_R: np.ndarray, least: int
) -> bool:
    """Whether there is a split with `least` tokens for every guest, by a linear program."""
    guests = [(expert, rank) for rank, experts in enumerate(placement) for expert in experts]
    tokens_E = problem.counts_RE.sum(axis=0)
    loads_R = np.bincount(problem.home_E, tokens_E, problem.num_ranks)
    rows = np.zeros((problem.num_ranks + problem.num_experts, len(guests) + 1))
    for index, (expert, rank) in enumerate(guests):
        rows[rank, index] += 1
        rows[problem.home_E[expert], index] -= 1
        rows[problem.num_ranks + expert, index] = 1
    upper = np.concatenate([cap_R - loads_R, tokens_E])
    bounds = [*[(least, None)] * len(guests), (0, 0)]
    return bool(linprog(np.zeros(len(guests) + 1), A_ub=rows, b_ub=upper, bounds=bounds).status == 0)


def least_cost(problem: LayerProblem, capacity_R: np.ndarray, least: int = 0) -> float | None:
    """The least cost of a placement that fits; None: none does."""
    for cost, placement in sorted((cost_of(problem, each), each) for each in placements(problem)):
        if fits(copies_of(problem, placement), capacity_R) and (
            least == 0 or fits_with_least(problem, placement, capacity_R, least)
        ):
            return cost
    return None

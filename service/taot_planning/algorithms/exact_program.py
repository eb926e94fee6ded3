"""The mixed-integer program of the effort `exact`, and what HiGHS says about it.

Per group of experts and rank there is a whole number of guests `z` and an amount of tokens `x` that they take over. A
group of one expert is exact. A group of several experts of one home is a relaxation: each of its guests may take as
much as the largest of them. It has far fewer columns, and most often the same optimum.

    minimise    pace_weight * pace + cost_weight * cost(z)
    subject to  min_tokens * z_gr <= x_gr <= min(largest expert of g, capacity_r) * z_gr
                sum_r x_gr <= tokens_g,   sum_g z_gr <= slots_r,   z_gr <= experts in g
                load_r + in_r - out_r <= capacity_r,   and <= pace * speed_r / fastest where the pace is free

For fixed guests this is a flow through a network, experts to copies to ranks, with whole bounds: where there is a split
there is one in whole tokens, also with a least amount per guest. So amounts need not be integers here.

Amounts are in units of the load of a perfect split, because the solver's tolerances (1e-6) are absolute.

Axis letters: G groups of experts; P pairs of a group and a rank; N columns; M rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taot_planning.algorithms.exact_costs import charge_guests
from taot_planning.algorithms.exact_cuts import covering_sets
from taot_planning.algorithms.exact_rows import Rows
from taot_planning.arrays import FloatArray, IntArray
from taot_planning.layer_problem import LayerProblem

_OPTIMAL, _INFEASIBLE = 0, 2
"""What `scipy.optimize.milp` calls its answers."""

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Goal:
    """What to minimise, and what every rank must keep."""

    capacity_R: IntArray
    """The most tokens of each rank. Shape: [ranks]."""

    pace_weight: float = 0.0
    """Weight of the pace in units of a perfect split's, which is 1 + imbalance; 0: only capacities count."""

    cost_weight: float = 1.0
    """Weight of one unit of weighted cost."""

    min_tokens: int = 0
    """Tokens that every guest takes at least."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GuestProgram:
    """A program in the form that `scipy.optimize.milp` takes; the first columns are the guests of the pairs."""

    group_P: IntArray
    """Group of each pair. Shape: [pairs]."""

    rank_P: IntArray
    """Rank of each pair. Shape: [pairs]."""

    objective_N: FloatArray
    """Weight of each column. Shape: [columns]."""

    upper_N: FloatArray
    """Upper bound of each column; the lower is 0. Shape: [columns]."""

    is_whole_N: BoolArray
    """Whether each column is a whole number: the guests. Shape: [columns]."""

    rows: Rows
    """The constraints."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Solution:
    """What the solver found within its time."""

    guests_P: IntArray | None
    """Guests of each pair; None: nothing was found. Shape: [pairs]."""

    pace: float
    """Pace of that in units of a perfect split's, 0 where capacities are fixed; infinite where nothing was found."""

    bound: float
    """No solution has a lower objective than this; infinite: there is none."""


def perfect_pace(problem: LayerProblem) -> float:
    """Pace of a perfect split in tokens of the fastest rank, a real number: the unit of amounts."""
    speeds_R = problem.topology.speeds_R
    return int(problem.counts_RE.sum()) * int(speeds_R.max()) / int(speeds_R.sum())


def build_program(
    problem: LayerProblem, goal: Goal, group_E: IntArray, allowed_ER: BoolArray, *, has_cuts: bool = True
) -> GuestProgram:
    """Writes the program down.

    Args:
        problem: the layer, with at least one token.
        goal: what to minimise.
        group_E: group of each expert, from 0; those of one group share their home. Shape: [experts].
        allowed_ER: the pairs that may be guests; a group may go where one of its experts may. Shape: [experts, ranks].
        has_cuts: whether to add rows that raise the bound and slow down the search for a solution.
    """
    unit = perfect_pace(problem)
    groups = _measure_groups(problem, group_E)
    most_GR = np.minimum(groups.most_G[:, None], goal.capacity_R[None, :])
    can_hold_GR = (most_GR >= max(goal.min_tokens, 1)) & (problem.topology.slots_R > 0)
    group_P, rank_P = np.nonzero(_lift(allowed_ER, group_E, groups) & can_hold_GR)
    home_P, most_P = groups.home_G[group_P], most_GR[group_P, rank_P]

    rows = Rows(2 * group_P.size + 1)
    _add_amounts(rows, most_P / unit, goal.min_tokens / unit)
    _add_groups(rows, problem, group_P, rank_P, groups.tokens_G / unit)
    _add_loads(rows, problem, goal, home_P, rank_P)
    charges = charge_guests(problem, rows, group_P, rank_P, group_E)
    if goal.pace_weight == 0 and has_cuts:
        _add_covering_cuts(rows, problem, goal, home_P, rank_P, most_P)
    highest = np.inf if goal.pace_weight else 0.0
    amounts = np.zeros(group_P.size)
    return GuestProgram(
        group_P=group_P,
        rank_P=rank_P,
        objective_N=np.concatenate(
            [goal.cost_weight * charges.guest_P, amounts, [goal.pace_weight], goal.cost_weight * charges.extra_X]
        ),
        upper_N=np.concatenate(
            [groups.size_G[group_P], amounts + np.inf, [highest], np.full(charges.extra_X.size, np.inf)]
        ),
        is_whole_N=np.arange(rows.num_columns) < group_P.size,
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Groups:
    """What is known of each group of experts."""

    home_G: IntArray
    """Home of its experts. Shape: [groups]."""

    size_G: IntArray
    """Number of experts. Shape: [groups]."""

    tokens_G: IntArray
    """Tokens of all of them. Shape: [groups]."""

    most_G: IntArray
    """Tokens of the largest. Shape: [groups]."""


def _measure_groups(problem: LayerProblem, group_E: IntArray) -> _Groups:
    tokens_E = problem.counts_RE.sum(axis=0)
    home_G, size_G, tokens_G, most_G = np.zeros((4, int(group_E.max()) + 1), dtype=np.int64)
    home_G[group_E] = problem.home_E
    np.add.at(size_G, group_E, 1)
    np.add.at(tokens_G, group_E, tokens_E)
    np.maximum.at(most_G, group_E, tokens_E)
    return _Groups(home_G=home_G, size_G=size_G, tokens_G=tokens_G, most_G=most_G)


def _lift(allowed_ER: BoolArray, group_E: IntArray, groups: _Groups) -> BoolArray:
    """Which groups may go where: one of its experts may, and it is not home. Shape: [groups, ranks]."""
    allowed_GR = np.zeros((groups.home_G.size, allowed_ER.shape[1]), dtype=np.bool_)
    np.logical_or.at(allowed_GR, group_E, allowed_ER)
    allowed_GR[np.arange(groups.home_G.size), groups.home_G] = False
    return allowed_GR


def _add_amounts(rows: Rows, most_P: FloatArray, least: float) -> None:
    """Ties the tokens of each pair to its guests."""
    num_pairs = most_P.size
    pairs = np.arange(num_pairs)
    first = rows.append(np.full(num_pairs, -np.inf), np.zeros(num_pairs))
    rows.put(first + pairs, num_pairs + pairs, np.ones(num_pairs))
    rows.put(first + pairs, pairs, -most_P)
    if least > 0:
        first = rows.append(np.zeros(num_pairs), np.full(num_pairs, np.inf))
        rows.put(first + pairs, num_pairs + pairs, np.ones(num_pairs))
        rows.put(first + pairs, pairs, np.full(num_pairs, -least))


def _add_groups(rows: Rows, problem: LayerProblem, group_P: IntArray, rank_P: IntArray, tokens_G: FloatArray) -> None:
    """No group gives more than it has, no rank holds more guests than it has slots."""
    num_pairs = group_P.size
    pairs, ones = np.arange(num_pairs), np.ones(num_pairs)
    first = rows.append(np.full(tokens_G.size, -np.inf), tokens_G)
    rows.put(first + group_P, num_pairs + pairs, ones)
    first = rows.append(np.full(problem.num_ranks, -np.inf), problem.topology.slots_R.astype(np.float64))
    rows.put(first + rank_P, pairs, ones)


def _add_loads(rows: Rows, problem: LayerProblem, goal: Goal, home_P: IntArray, rank_P: IntArray) -> None:
    """Keeps every rank within its capacity, and within the pace where that is free."""
    unit, num_pairs = perfect_pace(problem), home_P.size
    loads_R = problem.loads.load_R
    pairs, ones = np.arange(num_pairs), np.ones(num_pairs)
    speeds_R = problem.topology.speeds_R
    limits = [(goal.capacity_R - loads_R, 0.0)] + [(-loads_R, 1.0)] * (goal.pace_weight > 0)
    for room_R, share in limits:
        first = rows.append(np.full(problem.num_ranks, -np.inf), room_R / unit)
        rows.put(first + rank_P, num_pairs + pairs, ones)
        rows.put(first + home_P, num_pairs + pairs, -ones)
        if share:
            ranks = np.arange(problem.num_ranks)
            rows.put(first + ranks, np.full(ranks.size, 2 * num_pairs), -speeds_R / speeds_R.max())


def _add_covering_cuts(
    rows: Rows, problem: LayerProblem, goal: Goal, home_P: IntArray, rank_P: IntArray, most_P: IntArray
) -> None:
    """Every set of ranks with a surplus sends at least as many guests out as are needed to carry it."""
    surplus_R = problem.loads.load_R - goal.capacity_R
    for members_R in covering_sets(problem.topology, surplus_R):
        leaving = np.flatnonzero(members_R[home_P] & ~members_R[rank_P])
        most = int(most_P[leaving].max(initial=1))
        needed = -(-int(surplus_R[members_R].sum()) // most)
        row = rows.append(np.array([needed], dtype=np.float64), np.array([np.inf]))
        rows.put(np.full(leaving.size, row), leaving, np.ones(leaving.size))


def solve_program(program: GuestProgram, *, seconds: float, cutoff: float = np.inf) -> Solution:
    """Solves a program with HiGHS, for solutions with an objective of at most `cutoff`.

    Raises:
        ValueError: if scipy is not installed.
    """
    result = _solve(program, seconds, cutoff, program.is_whole_N)
    if result.status == _INFEASIBLE:
        return Solution(guests_P=None, pace=np.inf, bound=np.inf)
    if result.x is None:
        return Solution(guests_P=None, pace=np.inf, bound=0.0)
    num_pairs = program.group_P.size
    guests_P: IntArray = np.rint(result.x[:num_pairs]).astype(np.int64)
    bound = result.fun if result.status == _OPTIMAL else result.mip_dual_bound
    return Solution(guests_P=guests_P, pace=float(result.x[2 * num_pairs]), bound=max(float(bound), 0.0))


def relax_program(program: GuestProgram, *, seconds: float) -> float:
    """The bound that the linear relaxation gives; infinite: there is no solution.

    Raises:
        ValueError: if scipy is not installed.
    """
    result = _solve(program, seconds, np.inf, np.zeros_like(program.is_whole_N))
    if result.status == _INFEASIBLE:
        return np.inf
    return float(result.fun) if result.status == _OPTIMAL else 0.0


def _solve(program: GuestProgram, seconds: float, cutoff: float, is_whole_N: BoolArray) -> Any:
    """What `scipy.optimize.milp` returns."""
    try:
        from scipy import optimize, sparse  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError as error:
        raise ValueError("the effort exact needs scipy, which is missing: pip install 'taot-planner[exact]'") from error
    rows = program.rows
    matrix_MN = sparse.coo_matrix(rows.entries(), shape=(rows.num_rows, program.objective_N.size)).tocsc()
    constraints = [optimize.LinearConstraint(matrix_MN, rows.lower(), rows.upper())]
    if np.isfinite(cutoff):
        constraints.append(optimize.LinearConstraint(program.objective_N[None, :], -np.inf, cutoff))
    return optimize.milp(
        program.objective_N,
        constraints=constraints,
        integrality=is_whole_N,
        bounds=optimize.Bounds(0, program.upper_N),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )

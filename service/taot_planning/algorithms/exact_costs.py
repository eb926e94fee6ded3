"""What guests cost in the mixed-integer program, as `guest_moves.list_moves` charges it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.algorithms.exact_rows import Rows
from taot_planning.arrays import FloatArray, IntArray
from taot_planning.layer_problem import LayerProblem
from taot_planning.topology import INNERMOST_COST_MILLI


@dataclass(frozen=True, kw_only=True, eq=False)
class Charges:
    """Weights of the objective, relative to the innermost level."""

    guest_P: FloatArray
    """Cost of each guest of a pair. Shape: [pairs]."""

    extra_X: FloatArray
    """Cost of further columns: an expert's way into a domain. Shape: [columns added]."""


def resident_pairs(problem: LayerProblem) -> np.ndarray:
    """Which guests are there already. Shape: [experts, ranks]."""
    resident_ER = np.zeros((problem.num_experts, problem.num_ranks), dtype=np.bool_)
    if problem.resident_RK is not None:
        ranks, places = np.nonzero(problem.resident_RK >= 0)
        resident_ER[problem.resident_RK[ranks, places], ranks] = True
    return resident_ER


def charge_guests(problem: LayerProblem, rows: Rows, group_P: IntArray, rank_P: IntArray, group_E: IntArray) -> Charges:
    """Charges each guest the way from its home, nothing where it is resident; with relays see `_charge_relays`.

    Experts that are resident anywhere must be groups of their own.
    """
    topology = problem.topology
    resident_ER = resident_pairs(problem)
    one_of_G = np.zeros(int(group_E.max()) + 1, dtype=np.int64)
    one_of_G[group_E] = np.arange(group_E.size)
    expert_P = one_of_G[group_P]
    source_ER = resident_ER.copy()
    source_ER[np.arange(problem.num_experts), problem.home_E] = True
    if not topology.has_relay:
        cost_P = topology.cost_milli_RR[problem.home_E[expert_P], rank_P]
        extra_X = np.zeros(0)
    elif topology.cost_matrix_milli is None:
        cost_P = np.full(rank_P.size, INNERMOST_COST_MILLI)
        extra_X = _charge_crossings(problem, rows, group_P, rank_P, source_ER[expert_P])
    else:
        # A bound only: whether a cheap source has the expert is left open.
        off_diagonal_RR = topology.cost_milli_RR + np.diag(np.full(problem.num_ranks, np.iinfo(np.int64).max // 2))
        cost_P = off_diagonal_RR.min(axis=0)[rank_P]
        extra_X = np.zeros(0)
    guest_P = np.where(resident_ER[expert_P, rank_P], 0, cost_P) / INNERMOST_COST_MILLI
    return Charges(guest_P=guest_P, extra_X=extra_X / INNERMOST_COST_MILLI)


def _charge_crossings(
    problem: LayerProblem, rows: Rows, group_P: IntArray, rank_P: IntArray, source_PR: np.ndarray
) -> FloatArray:
    """With relays on a tree of levels, a copy pays the innermost cost, and once per domain that had none the step up.

    The ways into a domain are at least the guests on each of its ranks, because those are different experts.

    Returns:
        Cost of each new column, in thousandths. Shape: [columns added].
    """
    topology = problem.topology
    costs: list[int] = []
    for level in range(len(topology.levels) - 1):
        step = topology.levels[level + 1].transfer_cost_milli - topology.levels[level].transfer_cost_milli
        domain_R = topology.domains_RV[:, level]
        has_source_P = (source_PR & (domain_R[None, :] == domain_R[rank_P][:, None])).any(axis=1)
        far = np.flatnonzero(~has_source_P)
        keys, way = np.unique(np.stack([group_P[far], domain_R[rank_P[far]]]), axis=1, return_inverse=True)
        first_column = rows.add_columns(keys.shape[1])
        first_row = rows.append(np.zeros(far.size), np.full(far.size, np.inf))
        entry = first_row + np.arange(far.size)
        rows.put(entry, first_column + way.reshape(-1), np.ones(far.size))
        rows.put(entry, far, -np.ones(far.size))
        costs += [step] * keys.shape[1]
    return np.array(costs, dtype=np.float64)

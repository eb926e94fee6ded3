from __future__ import annotations

import math

import numpy as np
import ot
import pytest
from made_up_routing import random_problem

from taot_planning.algorithms.placement import transport_costs
from taot_planning.algorithms.sinkhorn import exponential, sinkhorn_flow
from taot_planning.arrays import FloatArray

NODES_COST_RR = np.where(np.arange(8)[:, None] // 4 == np.arange(8)[None, :] // 4, 1.0, 3.0)


def coupling_by_pot(surplus_R: FloatArray, spare_R: FloatArray, cost_RR: FloatArray, iterations: int) -> FloatArray:
    """POT scales the second marginal first, so it gets the transposed problem to scale in the paper's order."""
    coupling = ot.sinkhorn(
        spare_R, surplus_R, cost_RR.T, reg=cost_RR.max(), numItermax=iterations, stopThr=0, warn=False
    )
    return np.asarray(coupling).T


def test_the_exponential_is_exact_to_rounding_wherever_the_flow_uses_it() -> None:
    for x in np.linspace(-1, 0, 20001).tolist():
        assert exponential(x) == pytest.approx(math.exp(x), rel=1e-14, abs=0)


@pytest.mark.parametrize("seed", range(20))
def test_the_flow_equals_pot_on_full_balanced_marginals(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_ranks = int(rng.integers(2, 12))
    cost_RR = rng.uniform(0.2, 3.0, (num_ranks, num_ranks))
    surplus_R = rng.uniform(1, 900, num_ranks)
    spare_R = rng.uniform(1, 900, num_ranks)
    spare_R *= surplus_R.sum() / spare_R.sum()
    ours_RR = sinkhorn_flow(surplus_R, spare_R, cost_RR)
    np.testing.assert_allclose(ours_RR, coupling_by_pot(surplus_R, spare_R, cost_RR, 50), rtol=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_the_flow_equals_pots_converged_coupling_between_hot_and_cold_ranks(seed: int) -> None:
    """POT cannot take empty marginals, so it solves the block of hot rows and cold columns."""
    rng = np.random.default_rng(seed)
    load_R = rng.integers(0, 1000, 8).astype(float)
    surplus_R, spare_R = np.maximum(load_R - load_R.mean(), 0), np.maximum(load_R.mean() - load_R, 0)
    hot_H, cold_C = np.flatnonzero(surplus_R), np.flatnonzero(spare_R)
    ours_RR = sinkhorn_flow(surplus_R, spare_R, NODES_COST_RR)
    block_HC = ot.sinkhorn(
        surplus_R[hot_H],
        spare_R[cold_C],
        NODES_COST_RR[np.ix_(hot_H, cold_C)],
        reg=3.0,
        numItermax=200,
        stopThr=0,
        warn=False,
    )
    np.testing.assert_allclose(ours_RR[np.ix_(hot_H, cold_C)], block_HC, rtol=1e-9)
    assert ours_RR.sum() == pytest.approx(ours_RR[np.ix_(hot_H, cold_C)].sum(), rel=1e-12)


def test_the_flow_follows_the_published_floors_and_iterations_step_by_step() -> None:
    """A transcription of the paper in NumPy, on marginals so small that the floors of 1e-8 act."""
    rng = np.random.default_rng(5)
    for magnitude in (1e-18, 1.0, 1e6):
        surplus_R, spare_R = rng.uniform(0, magnitude, 8), rng.uniform(0, magnitude, 8)
        surplus_R[:3], spare_R[3:] = 0, 0
        scaled_R = surplus_R * min(1, spare_R.sum() / surplus_R.sum())
        gibbs_RR = np.exp(-NODES_COST_RR / 3)
        u, v = np.ones(8), np.ones(8)
        for _ in range(50):
            u = scaled_R / np.maximum(gibbs_RR @ v, 1e-8)
            v = spare_R / np.maximum(gibbs_RR.T @ u, 1e-8)
        flow_RR = u[:, None] * gibbs_RR * v[None, :]
        column_R = flow_RR.sum(axis=0)
        flow_RR *= np.minimum(1, np.divide(spare_R, column_R, out=np.ones(8), where=column_R > 0))
        np.testing.assert_allclose(sinkhorn_flow(surplus_R, spare_R, NODES_COST_RR), flow_RR, rtol=1e-11)


def test_surplus_beyond_the_spare_is_scaled_down_and_columns_are_capped() -> None:
    surplus_R, spare_R = np.array([900.0, 0, 0, 300.0]), np.array([0, 30.0, 70.0, 0])
    flow_RR = sinkhorn_flow(surplus_R, spare_R, np.ones((4, 4)))
    np.testing.assert_allclose(flow_RR.sum(axis=1), [75, 0, 0, 25], rtol=1e-9)
    np.testing.assert_allclose(flow_RR.sum(axis=0), spare_R, rtol=1e-9)


def test_equal_costs_spread_the_surplus_in_proportion() -> None:
    surplus_R, spare_R = np.array([60.0, 0, 0, 40.0]), np.array([0, 30.0, 70.0, 0])
    flow_RR = sinkhorn_flow(surplus_R, spare_R, np.ones((4, 4)))
    np.testing.assert_allclose(flow_RR, np.outer(surplus_R, spare_R) / 100, rtol=1e-12)


def test_without_surplus_nothing_flows() -> None:
    assert not sinkhorn_flow(np.zeros(3), np.ones(3), np.ones((3, 3))).any()


def test_costs_of_the_flow_are_those_of_the_paper() -> None:
    topology = random_problem(3).topology
    nodes_R = topology.nodes_R
    expected_RR = np.where(nodes_R[:, None] == nodes_R[None, :], 1.0, 3.0)
    assert topology.num_ranks > 2
    assert np.array_equal(transport_costs(topology), expected_RR)

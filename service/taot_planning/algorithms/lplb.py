"""`lplb`: a fixed graph of replicas, tokens split by a linear program (DeepSeek's LPLB, github.com/deepseek-ai/LPLB).

The graph says whose expert each slot holds: cubes within nodes (`lplb`) or a torus over ranks and nodes
(`lplb-torus`), see `replica_graph`. A rank's largest expert goes along the graph's first step, its second largest
along the second, and so on, so an expert has at most one guest. All slots of the graph are filled at any load,
also with guests that get no tokens then: that is what the method moves. The graphs have four steps; slots beyond stay
empty.

It ignores where the surplus is when it places guests, and what a move costs.

The linear program is solved by HiGHS in floating point and has many optima. So the plan is the same wherever the same
build of scipy runs on the same kind of CPU, and not, as for the other algorithms, everywhere: a baseline to compare
with, not one for ranks that plan by themselves.
"""

from __future__ import annotations

import numpy as np

from taot_planning.algorithms.guest_slots import GuestSlots
from taot_planning.algorithms.replica_graph import Step, cube_graph, torus_graph
from taot_planning.arrays import IntArray
from taot_planning.layer_plan import LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PlanningOptions


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Plans on cubes within the nodes.

    Raises:
        ValueError: if scipy is not installed.
    """
    del options
    return plan_on_graph(problem, cube_graph(problem.topology))


def plan_on_torus(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Plans on a torus over ranks and nodes (`lplb-torus`).

    Raises:
        ValueError: if scipy is not installed.
    """
    del options
    return plan_on_graph(problem, torus_graph(problem.topology))


def plan_on_graph(problem: LayerProblem, graph: list[Step]) -> LayerPlan:
    """Fills the slots along the graph and splits the tokens for the smallest maximum load.

    Raises:
        ValueError: if scipy is not installed.
    """
    tokens_E = problem.counts_RE.sum(axis=0)
    descending = np.argsort(-tokens_E, kind="stable")
    slots = GuestSlots(problem)
    for number, step in enumerate(graph):
        for taker, giver in step.items():
            own = descending[problem.home_E[descending] == giver]
            if number < min(own.size, problem.topology.slots_R[taker]):
                slots.put(int(own[number]), taker, 0)
    ranks, places = np.nonzero(slots.guests_RK >= 0)
    if ranks.size and tokens_E.any():
        experts_G = slots.guests_RK[ranks, places]
        loads_R = problem.loads.load_R
        slots.tokens_RK[ranks, places] = split_tokens(loads_R, tokens_E[experts_G], problem.home_E[experts_G], ranks)
    return slots.to_plan()


def split_tokens(loads_R: IntArray, tokens_G: IntArray, home_G: IntArray, rank_G: IntArray) -> IntArray:
    """Splits each expert between its home and its one guest so that the maximum load is the smallest.

    Args:
        loads_R: load of each rank without guests, with at least one token. Shape: [ranks].
        tokens_G: tokens of each guest's expert. Shape: [guests].
        home_G: home rank of each guest. Shape: [guests].
        rank_G: rank of each guest. Shape: [guests].

    Returns:
        Tokens of each guest, the optimum of the linear program rounded to whole tokens; so a rank is at most half
        a token per guest that it gives or holds above it. Shape: [guests].

    Raises:
        ValueError: if scipy is not installed.
    """
    try:
        from scipy.optimize import linprog  # noqa: PLC0415 - an optional dependency, and slow to import
    except ImportError as error:
        raise ValueError("lplb needs scipy, which is missing: pip install 'taot-planner[exact]'") from error
    # Loads in units of the mean: the solver's tolerances are absolute.
    mean = int(loads_R.sum()) / loads_R.size
    num_guests = tokens_G.size
    change_RV = np.zeros((loads_R.size, num_guests + 1))
    change_RV[home_G, np.arange(num_guests)] = -1
    change_RV[rank_G, np.arange(num_guests)] = 1
    change_RV[:, -1] = -1
    result = linprog(
        np.eye(num_guests + 1)[-1],
        A_ub=change_RV,
        b_ub=-loads_R / mean,
        bounds=[*((0, tokens / mean) for tokens in tokens_G.tolist()), (0, None)],
        method="highs-ds",
    )
    assert result.status == 0, f"HiGHS found no optimum of a bounded, feasible program: {result.message}"
    rounded_G: IntArray = np.rint(result.x[:-1] * mean).astype(np.int64)
    return np.clip(rounded_G, 0, tokens_G)

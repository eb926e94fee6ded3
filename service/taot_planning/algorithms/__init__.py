"""The planning algorithms, one module each, behind one signature."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from taot_planning.algorithms import echo, eplb, llep, lplb, static, taot, taot_paper
from taot_planning.capacity import strain
from taot_planning.explanation import Explanation, Gate
from taot_planning.layer_plan import LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.load import imbalance
from taot_planning.options import PPM, PlanningOptions

Algorithm: TypeAlias = Callable[[LayerProblem, PlanningOptions], LayerPlan]
"""Counts in, plan out. Deterministic: the same input gives the same plan on every machine."""

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "echo": echo.plan,
        "eplb": eplb.plan,
        "eplb-global": eplb.plan_globally,
        "llep": llep.plan,
        "llep-exact": llep.plan_exact,
        "lplb": lplb.plan,
        "lplb-torus": lplb.plan_on_torus,
        "static": static.plan,
        "taot": taot.plan,
        "taot-paper": taot_paper.plan,
        "taot-paper-no-hint": taot_paper.plan_without_hint,
        "taot-paper-no-topology": taot_paper.plan_without_topology,
        "taot-paper-no-topology-no-hint": taot_paper.plan_without_topology_or_hint,
    }
)
"""Every algorithm by the name users select it with."""

NEEDS_SCIPY = frozenset({"lplb", "lplb-torus"})
"""Algorithms that refuse to plan without scipy (the extra `exact`)."""


def plan_layer(problem: LayerProblem, *, algorithm: str = "taot", options: PlanningOptions | None = None) -> LayerPlan:
    """Plans one layer.

    Raises:
        ValueError: if the algorithm is unknown; the message lists the known ones.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}: choose one of {', '.join(sorted(ALGORITHMS))}")
    options = options or PlanningOptions()
    if options.min_imbalance_ppm > 0:
        loads_R = problem.loads.load_R
        before = imbalance(loads_R, problem.topology.speed_milli_R)
        if before * PPM <= options.min_imbalance_ppm and strain(loads_R, problem.topology)[0] == 0:
            return static.plan(problem, options).explained(Explanation(gates=(Gate.BALANCED,)))
    return ALGORITHMS[algorithm](problem, options)


def plan_layers(
    problems: Sequence[LayerProblem], *, algorithm: str = "taot", options: PlanningOptions | None = None
) -> list[LayerPlan]:
    """Plans many layers, each as `plan_layer` does.

    Raises:
        ValueError: if the algorithm is unknown.
    """
    return [plan_layer(problem, algorithm=algorithm, options=options) for problem in problems]

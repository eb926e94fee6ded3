"""`llep`: least-loaded expert parallelism (arXiv 2601.17111).

Experts are taken in descending load. The home keeps what fits under a cap beside what is still to come of its
own; the rest goes, in chunks, to the rank with the least effective load: what it was given plus what is still to
come of its own. Layers that are nearly balanced are left alone.

The method has no limit of slots. Here a rank whose slots are taken is passed over, and what no rank has both a
slot and room for stays home, above the cap. The smallest chunk is the user's choice in the method; one token here.

It ignores the topology, and how many guests it makes.
"""

from __future__ import annotations

from dataclasses import dataclass

from taot_planning.algorithms import static
from taot_planning.algorithms.guest_slots import GuestSlots
from taot_planning.layer_plan import LayerPlan
from taot_planning.layer_problem import LayerProblem
from taot_planning.options import PPM, PlanningOptions


@dataclass(frozen=True, kw_only=True)
class LlepRule:
    """The method's settings; the defaults are the published ones."""

    cap_ppm: int = 1_100_000
    """Largest load of a rank, in parts per million of the mean. 1,000,000 asks for exact balance."""

    least_max_ppm: int = 1_300_000
    """Layers whose maximum load is below this stay as they are, in parts per million of the mean."""

    min_tokens: int = 1
    """Chunks with fewer tokens are not sent, >= 1."""


DEFAULT_RULE = LlepRule()

EXACT_RULE = LlepRule(cap_ppm=PPM, least_max_ppm=0)
"""Exact balance always. Only this can have moved guests at a start imbalance of 10 %, as the TAOT paper reports."""


def plan(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Plans by the published defaults."""
    del options
    return plan_by_rule(problem, DEFAULT_RULE)


def plan_exact(problem: LayerProblem, options: PlanningOptions) -> LayerPlan:
    """Plans for exact balance (`llep-exact`), whatever the imbalance is."""
    del options
    return plan_by_rule(problem, EXACT_RULE)


def plan_by_rule(problem: LayerProblem, rule: LlepRule) -> LayerPlan:
    """Spills what exceeds the cap to the least loaded ranks."""
    loads = problem.loads.load_R.tolist()
    total = sum(loads)
    if total == 0 or max(loads) * problem.num_ranks * PPM < rule.least_max_ppm * total:
        return static.plan(problem, PlanningOptions())
    cap = -(-total * rule.cap_ppm // (problem.num_ranks * PPM))
    tokens_of = problem.counts_RE.sum(axis=0).tolist()
    slots = GuestSlots(problem)
    # `loads` is the effective load all along: an expert that stays home counts alike before and after its turn.
    for expert in sorted(range(problem.num_experts), key=lambda expert: -tokens_of[expert]):
        home = int(problem.home_E[expert])
        spilled = min(max(loads[home] - cap, 0), tokens_of[expert])
        for rank in sorted(range(problem.num_ranks), key=lambda rank: loads[rank]):
            chunk = min(spilled, cap - loads[rank])
            if chunk < rule.min_tokens or not slots.has_room(expert, rank):
                continue
            slots.put(expert, rank, chunk)
            loads[rank] += chunk
            loads[home] -= chunk
            spilled -= chunk
    return slots.to_plan()

"""How close `taot` comes to the best known plans, and how long it takes.

Run as `python benchmarks/quality.py REFERENCE.npz REFERENCE.json`. The first holds count matrices by name, ranks x
experts; the second a list of cases: `name`, `ranks_per_node`, `slots`, `inter_cost`, `tolerance` and `best_cost`, the
least weighted cost that is known to reach the tolerance (null: it cannot be reached). Times are the best of a few
runs of a warm process, on one core.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from taot_planning import LayerProblem, PlanningOptions, contiguous_homes, plan_layer, two_level_topology, warm_up
from taot_planning.options import EFFORTS, PPM

REPEATS = 9


def make_problem(counts_RE: np.ndarray, case: dict[str, Any]) -> LayerProblem:
    """The layer of a case, with contiguous homes."""
    num_ranks, num_experts = counts_RE.shape
    return LayerProblem(
        counts_RE=counts_RE,
        home_E=contiguous_homes(num_experts=num_experts, num_ranks=num_ranks),
        topology=two_level_topology(
            num_ranks=num_ranks,
            ranks_per_node=case["ranks_per_node"],
            slots=case["slots"],
            inter_cost=case["inter_cost"],
        ),
    )


def measure(problem: LayerProblem, options: PlanningOptions) -> tuple[float, float, float]:
    """Weighted cost, tokens above the tolerance on the fullest rank, and seconds."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        plan = plan_layer(problem, options=options)
        seconds.append(time.perf_counter() - started)
    loads_R = plan.loads_R(problem)
    above = loads_R.max() - loads_R.sum() * (1 + options.tolerance_ppm / PPM) / problem.num_ranks
    return plan.stats(problem).weighted_cost, float(above), min(seconds)


def main(counts_path: Path, cases_path: Path) -> None:
    """Prints one row per effort and number of ranks; a plan within one token of the tolerance has reached it."""
    cases = json.loads(cases_path.read_text())
    archive = np.load(counts_path)
    problems = [make_problem(archive[case["name"]], case) for case in cases]
    warm_up()
    table = Table(title="taot against the best known plans", title_justify="left")
    for heading in ("effort", "R", "cases", "reached", "cost / best", "median", "slowest"):
        table.add_column(heading, justify="right")
    for effort in EFFORTS:
        groups: dict[str, list[tuple[float, float, float, float]]] = {}
        for problem, case in zip(problems, cases, strict=True):
            if case["best_cost"] is None:
                continue
            options = PlanningOptions(tolerance_ppm=round(case["tolerance"] * PPM), effort=effort)
            figures = (*measure(problem, options), case["best_cost"])
            for group in (str(problem.num_ranks), "all"):
                groups.setdefault(group, []).append(figures)
        for group in sorted(groups, key=lambda name: (len(name), name)):
            costs, above, seconds, best = np.array(groups[group]).T
            table.add_row(
                *(effort, group, str(costs.size), f"{(above <= 1).mean():.1%}", f"{costs.sum() / best.sum():.4f}"),
                *(f"{np.median(seconds) * 1e6:.0f} us", f"{seconds.max() * 1e6:.0f} us"),
            )
    Console().print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

"""How close `taot` comes to the best known plans, and how long it takes. Part of `make bench REFERENCE=FILE.npz`.

The reference holds count matrices by name, ranks x experts. Beside it lies a JSON file of the same name, a list of
cases: `name`, `ranks_per_node`, `slots`, `inter_cost`, `tolerance` and `best_cost`, the least weighted cost that is
known to reach the tolerance (null: it cannot be reached). Times are the best of a few runs of a warm process, on one
core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from planning_time import time_calls
from rich.console import Console
from rich.table import Table

from taot_planning import LayerProblem, PlanningOptions, contiguous_homes, plan_layer, two_level_topology, warm_up
from taot_planning.options import PPM, SEARCH_EFFORTS, Effort

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


def measure(problem: LayerProblem, options: PlanningOptions) -> tuple[float, float, float, bool]:
    """Weighted cost, tokens above the tolerance on the fullest rank, seconds, and whether the plan is proven."""
    started = time.perf_counter()
    plan = plan_layer(problem, options=options)
    seconds = time.perf_counter() - started
    if options.effort != "exact":
        seconds = float(time_calls([lambda: plan_layer(problem, options=options)], REPEATS).min())
    loads_R = plan.loads_R(problem)
    above = loads_R.max() - loads_R.sum() * (1 + options.tolerance_ppm / PPM) / problem.num_ranks
    return plan.stats(problem).weighted_cost, float(above), seconds, plan.explanation.is_optimal


def measure_effort(
    problems: list[LayerProblem], cases: list[dict[str, Any]], effort: Effort, *, exact_seconds: float
) -> list[dict[str, Any]]:
    """One row per number of ranks, and one for all; a plan within one token of the tolerance has reached it."""
    groups: dict[str, list[tuple[float, float, float, bool, float]]] = {}
    for problem, case in zip(problems, cases, strict=True):
        if case["best_cost"] is None:
            continue
        tolerance_ppm = round(case["tolerance"] * PPM)
        options = PlanningOptions(tolerance_ppm=tolerance_ppm, effort=effort, exact_seconds=exact_seconds)
        figures = (*measure(problem, options), case["best_cost"])
        for group in (str(problem.num_ranks), "all"):
            groups.setdefault(group, []).append(figures)
    rows = []
    for group in sorted(groups, key=lambda name: (len(name), name)):
        costs, above, seconds, proven, best = np.array(groups[group]).T
        rows.append(
            {
                **{"effort": effort, "ranks": group, "cases": int(costs.size)},
                "reached": float((above <= 1).mean()),
                "cost_ratio": float(costs.sum() / best.sum()),
                "not_dearer": int(((costs <= best) & (above <= 1)).sum()),
                "proven": int(proven.sum()),
                "median_seconds": float(np.median(seconds)),
                "slowest_seconds": float(seconds.max()),
            }
        )
    return rows


def print_table(console: Console, rows: list[dict[str, Any]]) -> None:
    """One line per effort and number of ranks."""
    table = Table(title="taot against the best known plans", title_justify="left")
    for heading in ("effort", "R", "cases", "reached", "cost / best", "not dearer", "proven", "median", "slowest"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            *(row["effort"], row["ranks"], str(row["cases"]), f"{row['reached']:.1%}", f"{row['cost_ratio']:.4f}"),
            *(str(row["not_dearer"]), str(row["proven"])),
            *(f"{row[name] * 1e6:.0f} us" for name in ("median_seconds", "slowest_seconds")),
        )
    console.print(table)


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", type=Path, help="an .npz file of counts, with its cases beside it as .json")
    parser.add_argument("--exact", type=float, metavar="SECONDS", help="add the effort exact, with this limit per case")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    cases = json.loads(arguments.reference.with_suffix(".json").read_text())
    with np.load(arguments.reference) as archive:
        problems = [make_problem(archive[case["name"]], case) for case in cases]
    warm_up(has_recent=False)
    efforts = SEARCH_EFFORTS if arguments.exact is None else (*SEARCH_EFFORTS, "exact")
    rows = [
        row
        for effort in efforts
        for row in measure_effort(problems, cases, effort, exact_seconds=arguments.exact or 1.0)
    ]
    print_table(Console(width=max(Console().width, 100)), rows)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

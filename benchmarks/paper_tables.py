"""The paper's tables on made-up counts: guests, weighted cost and residual of every algorithm. Part of `make bench`.

Settings are the published ones: EP16 and EP32, 8 ranks a node, 128 experts, 2 guest slots, a move between nodes
costs 3. How the counts are made to start at an imbalance is told in `synthetic_counts.counts_at`; the published counts
are not public, so published figures are shown beside ours and not compared row by row. Every algorithm gets the
same counts. Spreads are standard deviations over the seeds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from published_figures import ABLATION, GUESTS, IMPROVEMENTS, START_PERCENT
from rich.console import Console
from rich.table import Table
from synthetic_counts import counts_at

from taot_planning import (
    ALGORITHMS,
    LayerPlan,
    LayerProblem,
    PlanningOptions,
    check_plan,
    contiguous_homes,
    plan_layer,
    two_level_topology,
    warm_up,
)
from taot_planning.options import PPM

NUM_RANKS = (16, 32)
NUM_EXPERTS = 128
ABLATION_RANKS, ABLATION_PERCENT = 32, 70
ABLATED = ("taot-paper-no-topology-no-hint", "taot-paper-no-topology", "taot-paper-no-hint")


def make_problem(num_ranks: int, start_percent: int, seed: int) -> LayerProblem:
    """One layer at one of the published settings."""
    return LayerProblem(
        counts_RE=counts_at(start_percent / 100, num_ranks=num_ranks, num_experts=NUM_EXPERTS, seed=seed),
        home_E=contiguous_homes(num_experts=NUM_EXPERTS, num_ranks=num_ranks),
        topology=two_level_topology(num_ranks=num_ranks, ranks_per_node=8, slots=2, inter_cost=3),
    )


def measure(problems: list[LayerProblem], algorithm: str) -> dict[str, Any]:
    """Mean and spread of what an algorithm's plans achieve; imbalances in percent."""
    return describe(problems, [plan_layer(problem, algorithm=algorithm) for problem in problems])


def describe(problems: list[LayerProblem], plans: list[LayerPlan]) -> dict[str, Any]:
    """Mean and spread of what plans achieve; imbalances in percent."""
    stats = []
    for problem, plan in zip(problems, plans, strict=True):
        check_plan(plan, problem)
        stats.append(plan.stats(problem))
    columns = {
        "intra_guests": [each.intra_guests for each in stats],
        "inter_guests": [each.inter_guests for each in stats],
        "weighted_cost": [each.weighted_cost for each in stats],
        "residual_percent": [100 * each.imbalance_after for each in stats],
        "improvement_points": [100 * (each.imbalance_before - each.imbalance_after) for each in stats],
    }
    return {name: {"mean": float(np.mean(values)), "spread": float(np.std(values))} for name, values in columns.items()}


def published(num_ranks: int, start_percent: int, algorithm: str) -> dict[str, float] | None:
    """The paper's figures for a row, if it has any."""
    guests = GUESTS.get((num_ranks, algorithm), {}).get(start_percent)
    if guests is None:
        return None
    figures = {"intra_guests": guests.intra, "inter_guests": guests.inter, "weighted_cost": guests.cost}
    improvement = IMPROVEMENTS[num_ranks, algorithm].get(start_percent)
    return figures if improvement is None else {**figures, "improvement_points": improvement}


def measure_grid(num_seeds: int) -> list[dict[str, Any]]:
    """One row per ranks, start and algorithm."""
    rows = []
    for num_ranks in NUM_RANKS:
        for start_percent in START_PERCENT:
            problems = [make_problem(num_ranks, start_percent, seed) for seed in range(num_seeds)]
            for algorithm in sorted(set(ALGORITHMS) - set(ABLATED)):
                rows.append(
                    {
                        **{"ranks": num_ranks, "start_percent": start_percent, "algorithm": algorithm},
                        **measure(problems, algorithm),
                        "published": published(num_ranks, start_percent, algorithm),
                    }
                )
    return rows


def measure_ablation(num_seeds: int) -> list[dict[str, Any]]:
    """One row per variant of the published method."""
    problems = [make_problem(ABLATION_RANKS, ABLATION_PERCENT, seed) for seed in range(num_seeds)]
    rows = []
    for algorithm in (*ABLATED, "taot-paper"):
        row: dict[str, Any] = {"algorithm": algorithm, **measure(problems, algorithm), "published": None}
        if algorithm in ABLATION:
            guests, cost, residual, spread = ABLATION[algorithm]
            row["published"] = {
                **{"intra_guests": guests.intra, "inter_guests": guests.inter, "weighted_cost": cost},
                **{"residual_percent": residual, "residual_spread": spread},
            }
        rows.append(row)
    return rows


def measure_saving(num_ranks: int, num_seeds: int, *, is_matched: bool) -> dict[str, Any]:
    """What `taot` costs against the published method on the same counts, over all starts.

    Args:
        num_ranks: ranks.
        num_seeds: draws of the counts per start.
        is_matched: whether the tolerance of `taot` is the residual that `taot-paper` leaves on each counts; else
            it is the usual one.
    """
    problems = [make_problem(num_ranks, start, seed) for start in START_PERCENT for seed in range(num_seeds)]
    paper = [plan_layer(problem, algorithm="taot-paper") for problem in problems]
    ours = []
    for problem, plan in zip(problems, paper, strict=True):
        options = PlanningOptions(tolerance_ppm=residual_ppm(problem, plan)) if is_matched else PlanningOptions()
        ours.append(plan_layer(problem, options=options))
    loads = zip(problems, ours, paper, strict=True)
    no_worse = sum(
        plan.loads_R(each).max() <= published_plan.loads_R(each).max() for each, plan, published_plan in loads
    )
    ours_row, paper_row = describe(problems, ours), describe(problems, paper)
    cost, paper_cost = ours_row["weighted_cost"]["mean"], paper_row["weighted_cost"]["mean"]
    return {
        "ranks": num_ranks,
        "tolerance": "residual of taot-paper" if is_matched else f"{PlanningOptions().tolerance_ppm / PPM:.1%}",
        **{"taot_cost": cost, "taot_paper_cost": paper_cost, "cost_saved_percent": 100 * (1 - cost / paper_cost)},
        "taot_residual_percent": ours_row["residual_percent"]["mean"],
        "taot_paper_residual_percent": paper_row["residual_percent"]["mean"],
        **{"instances": len(problems), "instances_no_worse": int(no_worse)},
        "published_costs": {
            algorithm: float(np.mean([guests.cost for guests in by_start.values()]))
            for (ranks, algorithm), by_start in GUESTS.items()
            if ranks == num_ranks
        },
    }


def residual_ppm(problem: LayerProblem, plan: LayerPlan) -> int:
    """The tolerance that allows the plan's largest load and not a token more, in parts per million."""
    loads_R = plan.loads_R(problem)
    total = int(loads_R.sum())
    return (int(loads_R.max()) * loads_R.size - total) * PPM // total


def both(figure: dict[str, float]) -> str:
    """Mean and spread."""
    return f"{figure['mean']:.1f} +-{figure['spread']:.1f}"


def our_cells(row: dict[str, Any]) -> list[str]:
    """Guests, cost, residual and improvement."""
    names = ("intra_guests", "inter_guests", "weighted_cost", "residual_percent", "improvement_points")
    return [both(row[name]) for name in names]


def published_cells(figures: dict[str, float] | None) -> list[str]:
    """Guests and cost as the paper writes them, and its improvement or residual."""
    if figures is None:
        return ["", ""]
    guests = f"{figures['intra_guests']:g}/{figures['inter_guests']:g}={figures['weighted_cost']:g}"
    if "residual_percent" in figures:
        return [guests, f"{figures['residual_percent']:.2f} +-{figures['residual_spread']:.2f}"]
    return [guests, f"{figures['improvement_points']:.1f}" if "improvement_points" in figures else ""]


def make_table(title: str, last_heading: str) -> Table:
    """A table without rows."""
    table = Table(title=title, title_justify="left")
    headings = ("in node", "across", "cost", "residual %", "points", "paper", last_heading)
    table.add_column("algorithm", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def print_tables(console: Console, results: dict[str, Any]) -> None:
    """One table per ranks and start, the ablation, and what `taot` saves."""
    for num_ranks in NUM_RANKS:
        for start in START_PERCENT:
            table = make_table(f"EP{num_ranks}, start imbalance {start} %", "paper points")
            for row in results["rows"]:
                if (row["ranks"], row["start_percent"]) == (num_ranks, start):
                    table.add_row(row["algorithm"], *our_cells(row), *published_cells(row["published"]))
            console.print(table)
    table = make_table(f"Ablation, EP{ABLATION_RANKS}, start imbalance {ABLATION_PERCENT} %", "paper residual %")
    for row in results["ablation"]:
        table.add_row(row["algorithm"], *our_cells(row), *published_cells(row["published"]))
    console.print(table)
    console.print(saving_table(results["summary"]))


def saving_table(summary: list[dict[str, Any]]) -> Table:
    """What `taot` saves, one line per ranks and tolerance."""
    table = Table(title="In short: cost saved vs taot-paper, mean over the starts", title_justify="left")
    headings = ("EP", "tolerance of taot", "cost", "taot-paper", "saved", "residual %", "taot-paper %")
    for heading in (*headings, "residual no worse", "published taot-paper", "published llep"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in summary:
        table.add_row(
            *(str(each["ranks"]), each["tolerance"], f"{each['taot_cost']:.1f}", f"{each['taot_paper_cost']:.1f}"),
            *(f"{each['cost_saved_percent']:.0f} %", f"{each['taot_residual_percent']:.2f}"),
            *(f"{each['taot_paper_residual_percent']:.2f}", f"{each['instances_no_worse']}/{each['instances']}"),
            *(f"{each['published_costs'][name]:.1f}" for name in ("taot-paper", "llep-exact")),
        )
    return table


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="draws of the counts per setting (default 10)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    warm_up(has_recent=False)
    results = {
        "seeds": arguments.seeds,
        "rows": measure_grid(arguments.seeds),
        "ablation": measure_ablation(arguments.seeds),
        "summary": [
            measure_saving(num_ranks, arguments.seeds, is_matched=is_matched)
            for num_ranks in NUM_RANKS
            for is_matched in (False, True)
        ],
    }
    # Wide enough for every column also where the output goes to a file.
    print_tables(Console(width=max(Console().width, 150)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

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
    LayerProblem,
    PlanStats,
    check_plan,
    contiguous_homes,
    plan_layer,
    two_level_topology,
    warm_up,
)

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
    stats: list[PlanStats] = []
    for problem in problems:
        plan = plan_layer(problem, algorithm=algorithm)
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


def summarise(rows: list[dict[str, Any]], num_ranks: int) -> dict[str, float]:
    """What `taot` saves against the published method, averaged over the starts."""

    def average(algorithm: str, column: str) -> float:
        chosen = [row for row in rows if row["ranks"] == num_ranks and row["algorithm"] == algorithm]
        return float(np.mean([row[column]["mean"] for row in chosen]))

    cost, paper_cost = average("taot", "weighted_cost"), average("taot-paper", "weighted_cost")
    return {
        **{"ranks": num_ranks, "taot_cost": cost, "taot_paper_cost": paper_cost},
        "cost_saved_percent": 100 * (1 - cost / paper_cost),
        "taot_residual_percent": average("taot", "residual_percent"),
        "taot_paper_residual_percent": average("taot-paper", "residual_percent"),
    }


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
    for each in results["summary"]:
        console.print(
            f"EP{each['ranks']}, mean over the starts: taot costs {each['taot_cost']:.1f} at"
            f" {each['taot_residual_percent']:.2f} % residual, taot-paper {each['taot_paper_cost']:.1f} at"
            f" {each['taot_paper_residual_percent']:.2f} %: {each['cost_saved_percent']:.0f} % saved",
            highlight=False,
        )


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="draws of the counts per setting (default 10)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    warm_up()
    rows = measure_grid(arguments.seeds)
    results = {
        "seeds": arguments.seeds,
        "rows": rows,
        "ablation": measure_ablation(arguments.seeds),
        "summary": [summarise(rows, num_ranks) for num_ranks in NUM_RANKS],
    }
    # Wide enough for every column also where the output goes to a file.
    print_tables(Console(width=max(Console().width, 150)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

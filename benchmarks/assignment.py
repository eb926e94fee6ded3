"""How long it takes to assign the tokens of a layer, and how many of them cross nodes.

Run as `python benchmarks/assignment.py [REFERENCE.npz REFERENCE.json] [--json OUT]`; the reference is what
`quality.py` takes. Times are the best of a few runs of a warm process, on one core, for placements of `taot` made from
other counts. Crossings are compared with the fewest that a linear program finds at the same loads of the ranks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from quality import make_problem
from rich.console import Console
from rich.table import Table
from scipy.optimize import linprog
from scipy.sparse import csr_array
from synthetic_counts import counts_at

from taot_planning import LayerProblem, assign_tokens, plan_layer, warm_up
from taot_planning.arrays import IntArray

SIZES = [(8, 64), (32, 128), (64, 512), (256, 256), (1024, 1024)]
START_IMBALANCES = (0.1, 0.3, 0.5, 0.7, 0.9)
DRIFT = 0.2
"""Standard deviation of the logarithm of an expert's popularity from one micro-batch to the next."""

SLICE_SECONDS = 0.2
"""Time spent on one layer; the best run in it counts."""

LAYOUT = {"ranks_per_node": 8, "slots": 2, "inter_cost": 3}


class Case(NamedTuple):
    """A placement, and the counts at hand."""

    problem: LayerProblem
    guests_RK: IntArray


def made_up_cases(num_ranks: int, num_experts: int, *, filled: bool) -> Iterator[Case]:
    """Placements of `taot` from counts that then drift; `filled`: with hot experts in the slots it leaves empty."""
    for seed, start in enumerate(START_IMBALANCES):
        counts_RE = counts_at(start, num_ranks=num_ranks, num_experts=num_experts, seed=seed)
        guests_RK = plan_layer(make_problem(counts_RE, LAYOUT)).guests_RK
        generator = np.random.default_rng(seed)
        drifted_RE = generator.poisson(counts_RE * generator.lognormal(0, DRIFT, num_experts))
        problem = make_problem(drifted_RE, LAYOUT)
        yield Case(problem, fill_slots(problem, guests_RK) if filled else guests_RK)


def fill_slots(problem: LayerProblem, guests_RK: IntArray) -> IntArray:
    """Puts the experts with the most tokens into empty slots, in turn, as many experts as a quarter of the ranks."""
    hot = np.argsort(-problem.counts_RE.sum(axis=0), kind="stable")[: max(problem.num_ranks // 4, 4)].tolist()
    filled_RK = guests_RK.copy()
    for index, (rank, slot) in enumerate(np.argwhere(guests_RK < 0).tolist()):
        turned = hot[index % len(hot) :] + hot[: index % len(hot)]
        away = [expert for expert in turned if problem.home_E[expert] != rank and expert not in filled_RK[rank]]
        filled_RK[rank, slot] = away[0]
    return filled_RK


def reference_cases(counts_path: Path, cases_path: Path, algorithm: str) -> Iterator[Case]:
    """Placements made from the very counts of the reference, each at the default tolerance."""
    archive = np.load(counts_path)
    layouts = {each["name"]: each for each in json.loads(cases_path.read_text())}
    for name, layout in layouts.items():
        problem = make_problem(archive[name], layout)
        yield Case(problem, plan_layer(problem, algorithm=algorithm).guests_RK)


def seconds_of(case: Case) -> float:
    """The best time of one call."""
    best, started = np.inf, time.perf_counter()
    while (before := time.perf_counter()) < started + SLICE_SECONDS:
        assign_tokens(case.problem, case.guests_RK)
        best = min(best, time.perf_counter() - before)
    return float(best)


def count_crossings(case: Case) -> tuple[int, float, int]:
    """Crossings of experts with guests, the fewest at these loads of ranks, and those of experts without guests."""
    problem, guests_RK = case
    nodes_R, counts_RE = problem.topology.nodes_R, problem.counts_RE
    quota_SRK = assign_tokens(problem, guests_RK)
    ranks, slots = np.nonzero(guests_RK >= 0)
    has_guests_E = np.isin(np.arange(problem.num_experts), guests_RK)
    experts = np.flatnonzero(has_guests_E)
    flow_CS = np.concatenate([counts_RE.T[experts], quota_SRK[:, ranks, slots].T])
    np.subtract.at(flow_CS, np.searchsorted(experts, guests_RK[ranks, slots]), flow_CS[experts.size :])
    rank_C = np.concatenate([problem.home_E[experts], ranks])
    expert_C = np.concatenate([np.arange(experts.size), np.searchsorted(experts, guests_RK[ranks, slots])])
    ours = int(flow_CS[nodes_R[rank_C][:, None] != nodes_R].sum())
    away_RE = (nodes_R[:, None] != nodes_R[problem.home_E]) & ~has_guests_E
    fewest = fewest_crossings(problem, experts, (expert_C, rank_C), flow_CS.sum(axis=1)) if experts.size else 0.0
    return ours, fewest, int(counts_RE[away_RE].sum())


def fewest_crossings(
    problem: LayerProblem, experts: IntArray, copies: tuple[IntArray, IntArray], tokens_C: IntArray
) -> float:
    """The LP over tokens from each node to each copy; sums per node and expert, and loads of ranks, are fixed."""
    expert_C, rank_C = copies
    nodes, node_R = np.unique(problem.topology.nodes_R, return_inverse=True)
    supply_EN = np.zeros((experts.size, nodes.size))
    np.add.at(supply_EN.T, node_R, problem.counts_RE[:, experts])
    # Variables copy by copy, node by node; one equation per (expert, node), then one per rank.
    copy_V, node_V = np.divmod(np.arange(expert_C.size * nodes.size), nodes.size)
    rows = np.concatenate([expert_C[copy_V] * nodes.size + node_V, supply_EN.size + rank_C[copy_V]])
    columns = np.tile(np.arange(copy_V.size), 2)
    num_rows = supply_EN.size + problem.num_ranks
    load_R = np.bincount(rank_C, weights=tokens_C, minlength=problem.num_ranks)
    result = linprog(
        node_R[rank_C[copy_V]] != node_V,
        A_eq=csr_array((np.ones(rows.size), (rows, columns)), shape=(num_rows, copy_V.size)),
        b_eq=np.concatenate([supply_EN.ravel(), load_R]),
        method="highs",
    )
    assert result.status == 0, result.message
    return float(result.fun)


def time_row(num_ranks: int, num_experts: int, *, filled: bool) -> dict[str, Any]:
    """Times of the cases of one size."""
    cases = list(made_up_cases(num_ranks, num_experts, filled=filled))
    seconds = [seconds_of(case) for case in cases]
    return {
        "ranks": num_ranks,
        "experts": num_experts,
        "slots": "filled" if filled else "as planned",
        "guests": float(np.mean([(case.guests_RK >= 0).sum() for case in cases])),
        "median_us": float(np.median(seconds)) * 1e6,
        "slowest_us": max(seconds) * 1e6,
    }


def crossing_row(name: str, cases: Iterator[Case]) -> dict[str, Any]:
    """Crossings over the fewest, of experts that have guests and of all, summed over cases."""
    ours_B, fewest_B, others_B = np.array([count_crossings(case) for case in cases]).T
    crossing = fewest_B > 0
    return {
        "placements": name,
        "cases": int(ours_B.size),
        "crossings": int(ours_B.sum()),
        "over_fewest": float(ours_B.sum() / fewest_B.sum()) if crossing.any() else 1.0,
        "worst": float((ours_B[crossing] / fewest_B[crossing]).max(initial=1.0)),
        "over_fewest_of_all": float((ours_B + others_B).sum() / (fewest_B + others_B).sum()),
    }


def print_table(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """One column per key."""
    table = Table(title=title, title_justify="left")
    for key in rows[0]:
        table.add_column(key, justify="right", no_wrap=True)
    for row in rows:
        digits = {key: 4 if key.startswith(("over", "worst")) else 1 for key in row}
        table.add_row(
            *(f"{value:,.{digits[key]}f}" if isinstance(value, float) else str(value) for key, value in row.items())
        )
    console.print(table)


def main(
    reference: Annotated[list[Path] | None, typer.Argument(help="REFERENCE.npz REFERENCE.json")] = None,
    json_out: Annotated[Path | None, typer.Option("--json", help="Where to write the figures too.")] = None,
) -> None:
    """Prints the times per call and the crossings."""
    warm_up()
    times = [time_row(*size, filled=filled) for size in SIZES for filled in (False, True)]
    crossings = [
        crossing_row(f"{size}, {'filled' if filled else 'as planned'}", made_up_cases(*size, filled=filled))
        for size in SIZES[1:3]
        for filled in (False, True)
    ]
    if reference:
        counts_path, cases_path = reference
        for algorithm in ("taot", "taot-paper"):
            cases = reference_cases(counts_path, cases_path, algorithm)
            crossings.append(crossing_row(f"reference, {algorithm}", cases))
    console = Console(width=max(Console().width, 120))
    print_table(console, "Assigning the tokens of one layer, K = 2", times)
    print_table(console, "Tokens that cross nodes, over the fewest at the same loads of ranks", crossings)
    if json_out is not None:
        json_out.write_text(json.dumps({"times": times, "crossings": crossings}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)

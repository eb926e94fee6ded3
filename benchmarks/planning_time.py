"""How long planning one layer takes, by size, algorithm and effort. Part of `make bench`.

Counts are drawn from a skewed Dirichlet distribution. Times are those of a warm process on one core; repeats of
all algorithms alternate, so that a busy moment of the machine falls on all of them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from taot_planning import (
    ALGORITHMS,
    LayerProblem,
    PlanningOptions,
    contiguous_homes,
    plan_layer,
    two_level_topology,
    warm_up,
)
from taot_planning.arrays import FloatArray
from taot_planning.options import Effort

TOKENS_PER_RANK = 32_768


class Size(NamedTuple):
    """What is timed at one size."""

    num_ranks: int
    num_experts: int
    num_layers: int
    repeats: int
    has_others: bool
    """Whether the other algorithms are timed beside `taot`."""


SIZES = [
    Size(8, 64, num_layers=20, repeats=9, has_others=True),
    Size(32, 128, num_layers=20, repeats=9, has_others=True),
    Size(64, 512, num_layers=10, repeats=5, has_others=False),
    Size(256, 256, num_layers=5, repeats=5, has_others=False),
    Size(1024, 1024, num_layers=2, repeats=3, has_others=False),
]

MODEL = Size(32, 128, num_layers=48, repeats=15, has_others=False)
"""The layers of a whole model, planned in one go with effort `fast`, as ranks do that plan for themselves."""


class Variant(NamedTuple):
    """What is timed against each other."""

    algorithm: str
    effort: Effort | None
    """None where the algorithm knows none."""

    def plan(self, problem: LayerProblem) -> Any:
        """Plans a layer."""
        options = PlanningOptions() if self.effort is None else PlanningOptions(effort=self.effort)
        return plan_layer(problem, algorithm=self.algorithm, options=options)


TAOT = [Variant("taot", "fast"), Variant("taot", "balanced")]
OTHERS = [Variant(algorithm, None) for algorithm in sorted(set(ALGORITHMS) - {"taot"})]


def make_problems(size: Size) -> list[LayerProblem]:
    """Layers with a start imbalance of some tens of per cent."""
    generator = np.random.default_rng(0)
    topology = two_level_topology(num_ranks=size.num_ranks, ranks_per_node=8, slots=2, inter_cost=3)
    homes = contiguous_homes(num_experts=size.num_experts, num_ranks=size.num_ranks)
    problems = []
    for _ in range(size.num_layers):
        shares = generator.dirichlet(np.full(size.num_experts, 3.0))
        counts = generator.multinomial(TOKENS_PER_RANK, shares, size=size.num_ranks)
        problems.append(LayerProblem(counts_RE=counts, home_E=homes, topology=topology))
    return problems


def time_calls(calls: Sequence[Callable[[], object]], repeats: int) -> FloatArray:
    """Seconds of each call, in alternation. Shape: [repeats, calls]."""
    seconds_NC = np.empty((repeats, len(calls)))
    for repeat in range(repeats):
        for index, call in enumerate(calls):
            started = time.perf_counter()
            call()
            seconds_NC[repeat, index] = time.perf_counter() - started
    return seconds_NC


def measure_size(size: Size) -> list[dict[str, Any]]:
    """One row per algorithm and effort."""
    problems = make_problems(size)
    variants = TAOT + (OTHERS if size.has_others else [])
    # Also the first call of each, which is not timed.
    stats_VL = [[variant.plan(problem).stats(problem) for problem in problems] for variant in variants]
    calls = [lambda v=variant, p=problem: v.plan(p) for variant in variants for problem in problems]
    seconds_NVL = time_calls(calls, size.repeats).reshape(size.repeats, len(variants), len(problems))
    rows = []
    for index, (variant, stats) in enumerate(zip(variants, stats_VL, strict=True)):
        best_L = seconds_NVL[:, index].min(axis=0)
        rows.append(
            {
                **{"ranks": size.num_ranks, "experts": size.num_experts, **variant._asdict()},
                **{"layers": size.num_layers, "repeats": size.repeats},
                "min_seconds": float(np.median(best_L)),
                "median_seconds": float(np.median(seconds_NVL[:, index])),
                "slowest_layer_seconds": float(best_L.max()),
                "imbalance_before": float(np.mean([each.imbalance_before for each in stats])),
                "imbalance_after": float(np.mean([each.imbalance_after for each in stats])),
                "weighted_cost": float(np.mean([each.weighted_cost for each in stats])),
            }
        )
    return rows


def measure_model(size: Size) -> dict[str, Any]:
    """Time of all layers together."""
    problems = make_problems(size)
    fast = TAOT[0]
    seconds_N = time_calls([lambda: [fast.plan(problem) for problem in problems]], size.repeats)[:, 0]
    return {
        **{"ranks": size.num_ranks, "experts": size.num_experts, **fast._asdict()},
        **{"layers": size.num_layers, "repeats": size.repeats},
        "min_seconds": float(seconds_N.min()),
        "median_seconds": float(np.median(seconds_N)),
    }


def print_results(console: Console, results: dict[str, Any]) -> None:
    """One table, and a line for the whole model."""
    table = Table(title="Planning one layer: best and median of the repeats", title_justify="left")
    for heading in ("R", "E", "algorithm", "effort", "best", "median", "slowest layer", "imbalance", "after", "cost"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "effort") else "right", no_wrap=True)
    for row in results["layers"]:
        table.add_row(
            *(str(row["ranks"]), str(row["experts"]), row["algorithm"], row["effort"] or ""),
            *(f"{row[name] * 1e6:.0f} us" for name in ("min_seconds", "median_seconds", "slowest_layer_seconds")),
            *(f"{row['imbalance_before']:.1%}", f"{row['imbalance_after']:.2%}", f"{row['weighted_cost']:.1f}"),
        )
    console.print(table)
    model = results["model"]
    console.print(
        f"{model['layers']} layers at R = {model['ranks']}, E = {model['experts']} in one go, {model['effort']}:"
        f" best {model['min_seconds'] * 1e3:.2f} ms, median {model['median_seconds'] * 1e3:.2f} ms",
        highlight=False,
    )


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    warm_up(has_recent=False)
    results = {
        "layers": [row for size in SIZES for row in measure_size(size)],
        "model": measure_model(MODEL),
    }
    # Wide enough for every column also where the output goes to a file.
    print_results(Console(width=max(Console().width, 130)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

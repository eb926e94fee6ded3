"""How long planning one layer takes, by algorithm and size. Run as `make bench`.

Counts are drawn from a skewed Dirichlet distribution; times are those of a warm process on one core.
"""

from __future__ import annotations

import time

import numpy as np
from rich.console import Console
from rich.table import Table

from taot_planning import ALGORITHMS, LayerProblem, contiguous_homes, plan_layer, two_level_topology, warm_up

SIZES = [(8, 64), (16, 128), (32, 128), (64, 256)]
NUM_LAYERS = 20
TOKENS_PER_RANK = 32_768


def make_problems(num_ranks: int, num_experts: int) -> list[LayerProblem]:
    """Layers with a start imbalance of some tens of per cent."""
    generator = np.random.default_rng(0)
    topology = two_level_topology(num_ranks=num_ranks, ranks_per_node=8, slots=2, inter_cost=3)
    homes = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    problems = []
    for _ in range(NUM_LAYERS):
        shares = generator.dirichlet(np.full(num_experts, 3.0))
        counts = generator.multinomial(TOKENS_PER_RANK, shares, size=num_ranks)
        problems.append(LayerProblem(counts_RE=counts, home_E=homes, topology=topology))
    return problems


def main() -> None:
    """Prints one row per size and algorithm."""
    warm_up()
    table = Table(title=f"Planning one layer, {NUM_LAYERS} layers each", title_justify="left")
    for heading in ("R", "E", "algorithm", "median", "slowest", "imbalance", "after", "cost"):
        table.add_column(heading, justify="left" if heading == "algorithm" else "right", no_wrap=True)
    for num_ranks, num_experts in SIZES:
        problems = make_problems(num_ranks, num_experts)
        for algorithm in sorted(ALGORITHMS):
            plan_layer(problems[0], algorithm=algorithm)
            seconds, stats = [], []
            for problem in problems:
                started = time.perf_counter()
                plan = plan_layer(problem, algorithm=algorithm)
                seconds.append(time.perf_counter() - started)
                stats.append(plan.stats(problem))
            table.add_row(
                *(str(num_ranks), str(num_experts), algorithm),
                *(f"{np.median(seconds) * 1e6:.0f} us", f"{max(seconds) * 1e6:.0f} us"),
                *(f"{np.mean([each.imbalance_before for each in stats]):.1%}",),
                *(f"{np.mean([each.imbalance_after for each in stats]):.2%}",),
                *(f"{np.mean([each.weighted_cost for each in stats]):.1f}",),
            )
    # Wide enough for every column also where the output goes to a file.
    Console(width=max(Console().width, 120)).print(table)


if __name__ == "__main__":
    main()

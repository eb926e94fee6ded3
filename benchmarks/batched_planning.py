"""Whether it pays to plan many layers at once in torch: `taot_torch` against one layer after the other on one CPU core.

Run as `python benchmarks/batched_planning.py [LAYERS]`. Times are the best and the median of a few runs of a warm
process, splitting the tokens included. On a CPU torch gets one thread: its operations are too small for more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from planning_time import Size, make_problems
from rich.console import Console
from rich.table import Table

from taot_planning import LayerPlan, LayerProblem, PlanningOptions, plan_layer, warm_up
from taot_planning.options import SEARCH_EFFORTS
from taot_torch import plan_layers

NUM_RANKS, NUM_EXPERTS = 32, 128
REPEATS = 5

Planner = Callable[[], list[LayerPlan]]


def make_planners(problems: list[LayerProblem], options: PlanningOptions) -> dict[str, Planner]:
    """What is compared, by name."""

    def in_torch(device: torch.device) -> Planner:
        return lambda: plan_layers(problems, options=options, device=device)

    planners: dict[str, Planner] = {
        "taot_planning": lambda: [plan_layer(problem, options=options) for problem in problems],
        "taot_torch, cpu": in_torch(torch.device("cpu")),
    }
    if torch.cuda.is_available():
        planners[f"taot_torch, {torch.cuda.get_device_name()}"] = in_torch(torch.device("cuda"))
    return planners


def measure(planners: dict[str, Planner]) -> dict[str, tuple[list[float], list[LayerPlan]]]:
    """Seconds of each run and the plans, by name; runs take turns, so that a busy machine is equally unfair to all."""
    plans = {name: planner() for name, planner in planners.items()}
    seconds: dict[str, list[float]] = {name: [] for name in planners}
    for _ in range(REPEATS):
        for name, planner in planners.items():
            started = time.perf_counter()
            planner()
            seconds[name].append(time.perf_counter() - started)
    return {name: (seconds[name], plans[name]) for name in planners}


def main(num_layers: int) -> None:
    """Prints one row per effort and planner."""
    torch.set_num_threads(1)
    warm_up(has_recent=False)
    problems = make_problems(Size(NUM_RANKS, NUM_EXPERTS, num_layers=num_layers, repeats=1, has_others=False))
    table = Table(title=f"Planning {num_layers} layers, R = {NUM_RANKS}, E = {NUM_EXPERTS}", title_justify="left")
    for heading in ("effort", "planner", "best", "median", "a layer", "cost"):
        table.add_column(heading, justify="left" if heading in ("effort", "planner") else "right", no_wrap=True)
    for effort in SEARCH_EFFORTS:
        for name, (seconds, plans) in measure(make_planners(problems, PlanningOptions(effort=effort))).items():
            costs = [plan.stats(problem).weighted_cost for plan, problem in zip(plans, problems, strict=True)]
            table.add_row(
                *(effort, name, f"{min(seconds) * 1e3:.1f} ms", f"{np.median(seconds) * 1e3:.1f} ms"),
                *(f"{min(seconds) / num_layers * 1e6:.0f} us", f"{np.mean(costs):.2f}"),
            )
    Console(width=max(Console().width, 100)).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 48)

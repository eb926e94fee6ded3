"""How placements that were planned ahead fare on the micro-batch that follows.

Run as `python benchmarks/ahead_quality.py TRACE.npz [--cold] [--json OUT]`. The archive holds `trace`, counts by step,
layer, rank and expert, and `domain`, the kind of data of each step: only used here, to tell steps that follow one of
their kind from those where the data changes. Each layer of each step is planned from the steps before, then its tokens
are split exactly over that placement. A robust search begins with the guests of the step before, as a session's does,
or with none (`--cold`). The cost counts every guest placed, also those that get no tokens.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from taot_planning import (
    EMPTY_SLOT,
    LayerProblem,
    PlanningOptions,
    Topology,
    contiguous_homes,
    imbalance,
    plan_from_guests,
    plan_layer,
    two_level_topology,
    warm_up,
)
from taot_planning.algorithms.robust_guests import place_for_recent
from taot_planning.arrays import FloatArray, IntArray

RANKS_PER_NODE, SLOTS, INTER_COST = 4, 2, 3.0

NUM_OLDER = 4
"""Older micro-batches that are known beside the newest."""

Placing = Callable[[LayerProblem, IntArray, LayerProblem], IntArray]
"""Guests for a micro-batch, from the newest one before it, older ones, and (in no ahead mode) itself."""


def from_newest(tolerance_ppm: int) -> Placing:
    """`taot` on the newest counts."""
    options = PlanningOptions(tolerance_ppm=tolerance_ppm)
    return lambda newest, older_NE, to_come: plan_layer(newest, options=options).guests_RK


def inline(tolerance_ppm: int) -> Placing:
    """`taot` on the very counts, as ranks plan for themselves."""
    options = PlanningOptions(tolerance_ppm=tolerance_ppm)
    return lambda newest, older_NE, to_come: plan_layer(to_come, options=options).guests_RK


def robust(tolerance_ppm: int, stretch_percent: int) -> Placing:
    """Guests that hold for several recent counts."""
    options = PlanningOptions(tolerance_ppm=tolerance_ppm, stretch_percent=stretch_percent)
    return lambda newest, older_NE, to_come: place_for_recent(newest, older_NE, options)


SETTINGS: dict[str, Placing] = {
    "inline, 1.5 %": inline(15_000),
    "newest, 1.5 %": from_newest(15_000),
    "newest, 0 %": from_newest(0),
    "robust, 1.5 %, stretch 150": robust(15_000, 150),
    "robust, 1.5 %, stretch 200": robust(15_000, 200),
    "robust, 1.5 %, stretch 400": robust(15_000, 400),
    "robust, 0 %, stretch 200": robust(0, 200),
    "robust, 0 %, stretch 400": robust(0, 400),
}


def measure(trace_TLRE: IntArray, place: Placing, *, is_cold: bool) -> tuple[FloatArray, float]:
    """Imbalance and weighted cost per step from the second on, and the median seconds to place the guests of a layer.

    Where it is not cold, each search is given the guests of the same layer one step before.

    Shape: [steps - 1, layers, 2].
    """
    num_steps, num_layers, num_ranks, num_experts = trace_TLRE.shape
    topology = two_level_topology(
        num_ranks=num_ranks, ranks_per_node=RANKS_PER_NODE, slots=SLOTS, inter_cost=INTER_COST
    )
    home_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    figures_TL2 = np.empty((num_steps - 1, num_layers, 2))
    seconds = []
    placed_L: list[IntArray | None] = [None] * num_layers
    for step, layer in np.ndindex(num_steps - 1, num_layers):
        newest, to_come = (
            LayerProblem(counts_RE=trace_TLRE[at, layer], home_E=home_E, topology=topology) for at in (step, step + 1)
        )
        older_NE = trace_TLRE[max(step - NUM_OLDER, 0) : step, layer].sum(axis=1)[::-1]
        newest = replace(newest, begin_guests_RK=placed_L[layer])
        started = time.perf_counter()
        guests_RK = place(newest, older_NE, to_come)
        seconds.append(time.perf_counter() - started)
        placed_L[layer] = None if is_cold else guests_RK
        loads_R = plan_from_guests(to_come, guests_RK).loads_R(to_come)
        figures_TL2[step, layer] = imbalance(loads_R), weighted_cost(guests_RK, home_E, topology)
    return figures_TL2, float(np.median(seconds))


def weighted_cost(guests_RK: IntArray, home_E: IntArray, topology: Topology) -> float:
    """Cost of all guests of a placement."""
    ranks, slots = np.nonzero(guests_RK != EMPTY_SLOT)
    return float(topology.cost_milli_RR[home_E[guests_RK[ranks, slots]], ranks].sum() / 1000)


def main() -> None:
    """Prints one row per setting, and writes the same figures as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--cold", action="store_true", help="begin each search with nothing")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    archive = np.load(arguments.trace)
    trace_TLRE = archive["trace"].astype(np.int64)
    follows_T = archive["domain"][1:] == archive["domain"][:-1]
    warm_up()
    measure(trace_TLRE[:3, :1], robust(0, 100), is_cold=arguments.cold)
    rows = []
    for name, place in SETTINGS.items():
        figures_TL2, seconds = measure(trace_TLRE, place, is_cold=arguments.cold)
        same_2, other_2 = (figures_TL2[steps_T].mean(axis=(0, 1)) for steps_T in (follows_T, ~follows_T))
        later_2 = figures_TL2[1:][follows_T[1:]].mean(axis=(0, 1))
        rows.append((name, *same_2.tolist(), *later_2.tolist(), *other_2.tolist(), seconds))
    headings = ("setting", "same data", "cost", "3rd step on", "cost", "changed", "cost", "median")
    table = Table(title="Placements on the next micro-batch", title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, *figures, seconds in rows:
        cells = (f"{figure:.2f}" if index % 2 else f"{figure:.2%}" for index, figure in enumerate(figures))
        table.add_row(name, *cells, f"{seconds * 1e3:.2f} ms")
    Console(width=100).print(table)
    if arguments.json:
        keys = ("setting", "imbalance", "cost", "later_imbalance", "later_cost", "changed_imbalance", "changed_cost")
        arguments.json.write_text(json.dumps([dict(zip((*keys, "seconds"), row, strict=True)) for row in rows]))


if __name__ == "__main__":
    main()

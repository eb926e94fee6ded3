"""`taot plan`: would it help? Plans recorded counts, without a service or a training job.

This module reads and prints; the planning itself is `taot_planning`.
"""

from __future__ import annotations

import json
import math
import time
from fractions import Fraction
from pathlib import Path
from typing import Annotated, cast

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from taot_cli.counts_file import RecordedLayer, read_counts, read_homes
from taot_planning import (
    ALGORITHMS,
    EMPTY_SLOT,
    LayerPlan,
    LayerProblem,
    PlanningOptions,
    PlanStats,
    contiguous_homes,
    plan_layer,
    two_level_topology,
    warm_up,
)
from taot_planning.arrays import IntArray
from taot_planning.options import PPM, Effort

USAGE_ERROR = 2
"""Exit code for wrong input."""

Row = dict[str, object]
"""One plan, as the JSON file holds it."""


CountsFile = Annotated[
    Path, typer.Argument(help="An .npz file of arrays: ranks x experts or layers x ranks x experts.")
]
RanksPerNode = Annotated[int, typer.Option(help="Consecutive ranks that share a node.")]
Slots = Annotated[int, typer.Option(help="Guest experts a rank can hold per layer.")]
InterCost = Annotated[float, typer.Option(help="Cost of moving an expert between nodes; within a node it is 1.")]
Tolerance = Annotated[float, typer.Option(help="Imbalance to accept, (max - mean) / mean. Only taot reads it.")]
AlgorithmName = Annotated[str, typer.Option(help=f"One of {', '.join(sorted(ALGORITHMS))}.")]
EffortName = Annotated[
    str, typer.Option(help="fast or balanced: how hard taot searches for a cheaper plan. The others ignore it.")
]
HomesFile = Annotated[
    Path | None,
    typer.Option(help="Home rank of each expert, .npy or a JSON list. Without it e * ranks // experts."),
]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the plans here instead of printing a table.")]


def plan(  # noqa: PLR0913 - the command line's options are this function's parameters
    counts: CountsFile,
    *,
    ranks_per_node: RanksPerNode = 8,
    slots: Slots = 2,
    inter_cost: InterCost = 3.0,
    tolerance: Tolerance = 0.015,
    algorithm: AlgorithmName = "taot",
    effort: EffortName = "balanced",
    homes: HomesFile = None,
    json_path: JsonPath = None,
) -> None:
    """Plan recorded token counts and show what it would gain."""
    try:
        _check_choice("algorithm", algorithm, tuple(sorted(ALGORITHMS)))
        options = _options(tolerance, effort)
        layers = read_counts(counts)
        home_E = None if homes is None else read_homes(homes)
        problems = [
            _problem(layer, home_E, ranks_per_node=ranks_per_node, slots=slots, inter_cost=inter_cost)
            for layer in layers
        ]
        warm_up()
        rows = [
            _plan_row(layer, problem, algorithm=algorithm, options=options)
            for layer, problem in zip(layers, problems, strict=True)
        ]
        if json_path is not None:
            json_path.write_text(json.dumps({"plans": rows}, indent=1) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error
    if json_path is None:
        Console().print(_table(rows))


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(choices)}")


def _options(tolerance: float, effort: str) -> PlanningOptions:
    # The command line gives any text; PlanningOptions refuses what it does not know.
    return PlanningOptions(tolerance_ppm=parts_per_million(tolerance), effort=cast("Effort", effort))


def parts_per_million(tolerance: float) -> int:
    """A tolerance as options hold it.

    Raises:
        ValueError: if it is out of range.
    """
    if not 0 <= tolerance <= 100:
        raise ValueError(f"tolerance must be between 0 and 100 (100 times the mean), got {tolerance}")
    return round(tolerance * PPM)


def _problem(
    layer: RecordedLayer, home_E: IntArray | None, *, ranks_per_node: int, slots: int, inter_cost: float
) -> LayerProblem:
    num_ranks, num_experts = layer.counts_RE.shape
    if home_E is not None and home_E.size != num_experts:
        raise ValueError(f"{layer.name} has {num_experts} experts, the homes file has {home_E.size} entries")
    if slots > num_experts:
        raise ValueError(f"{slots} slots per rank are more than the {num_experts} experts of {layer.name}")
    topology = two_level_topology(
        num_ranks=num_ranks, ranks_per_node=ranks_per_node, slots=slots, inter_cost=inter_cost
    )
    if home_E is None:
        home_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    try:
        return LayerProblem(counts_RE=layer.counts_RE, home_E=home_E, topology=topology)
    except ValueError as error:
        raise ValueError(f"{layer.name}, layer {layer.layer}: {error}") from error


def _plan_row(layer: RecordedLayer, problem: LayerProblem, *, algorithm: str, options: PlanningOptions) -> Row:
    start = time.perf_counter()
    layer_plan = plan_layer(problem, algorithm=algorithm, options=options)
    seconds = time.perf_counter() - start
    stats: PlanStats = layer_plan.stats(problem)
    return {
        "name": layer.name,
        "layer": layer.layer,
        "algorithm": algorithm,
        "imbalance_before": stats.imbalance_before,
        "imbalance_after": stats.imbalance_after,
        "tolerance_reached": _reaches(layer_plan, problem, tolerance_ppm=options.tolerance_ppm),
        "intra_guests": stats.intra_guests,
        "inter_guests": stats.inter_guests,
        "weighted_cost": stats.weighted_cost,
        "planning_seconds": seconds,
        "guests": _guests(layer_plan),
    }


def _reaches(layer_plan: LayerPlan, problem: LayerProblem, *, tolerance_ppm: int) -> bool:
    """Whether the largest load is within (1 + tolerance) x mean, rounded up to a whole token."""
    loads_R = layer_plan.loads_R(problem)
    allowed = math.ceil(Fraction(int(loads_R.sum()) * (PPM + tolerance_ppm), PPM * problem.num_ranks))
    return int(loads_R.max()) <= allowed


def _guests(layer_plan: LayerPlan) -> list[list[int]]:
    """Lists [expert, rank, tokens] by rank and slot."""
    tokens_RK = layer_plan.tokens_RK
    return [
        [int(layer_plan.guests_RK[rank, slot]), rank, int(tokens_RK[rank, slot])]
        for rank, slot in zip(*(axis.tolist() for axis in (layer_plan.guests_RK != EMPTY_SLOT).nonzero()), strict=True)
    ]


def _table(rows: list[Row]) -> Table:
    """One line per plan; guests themselves are in the JSON form only."""
    table = Table(title="Imbalance and guests", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("name", no_wrap=True)
    for heading in ("layer", "before", "after", "within", "in node", "across", "cost", "time"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["layer"]),
            f"{row['imbalance_before']:.1%}",
            f"{row['imbalance_after']:.1%}",
            "yes" if row["tolerance_reached"] else "no",
            str(row["intra_guests"]),
            str(row["inter_guests"]),
            f"{row['weighted_cost']:g}",
            f"{float(str(row['planning_seconds'])) * 1e6:.0f} us",
        )
    return table

"""`taot plan`: would it help? Plans recorded counts, without a service or a training job.

This module reads options and files; the planning itself is `taot_planning`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias, cast

import typer
from rich.console import Console

from taot_cli.counts_file import RecordedLayer, read_counts, read_homes
from taot_cli.plan_row import PlannedLayer, plan_row
from taot_cli.plan_text import explanation_lines, plan_table
from taot_cli.topology_file import DEFAULT_SLOTS, read_topology
from taot_planning import (
    ALGORITHMS,
    LayerProblem,
    PlanningOptions,
    Topology,
    contiguous_homes,
    plan_layer,
    two_level_topology,
    warm_up,
)
from taot_planning.arrays import IntArray
from taot_planning.layer_problem import LayerRates
from taot_planning.options import OBJECTIVES, PPM, Effort, Objective
from taot_replay.array_file import DEFAULT_RANKS_PER_NODE
from taot_replay.recording import DEFAULT_INTER_COST

USAGE_ERROR = 2
"""Exit code for wrong input."""

TopologyOf: TypeAlias = Callable[[RecordedLayer], Topology]

CountsFile = Annotated[
    Path, typer.Argument(help="An .npz file of arrays: ranks x experts or layers x ranks x experts.")
]
RanksPerNode = Annotated[
    int | None, typer.Option(help=f"Consecutive ranks that share a node; {DEFAULT_RANKS_PER_NODE} when left out.")
]
Slots = Annotated[
    int | None, typer.Option(help=f"Guest experts a rank can hold per layer; {DEFAULT_SLOTS} when left out.")
]
InterCost = Annotated[
    float | None,
    typer.Option(help=f"Cost of moving an expert between nodes, 1 within; {DEFAULT_INTER_COST:g} when left out."),
]
TopologyFile = Annotated[
    Path | None,
    typer.Option(
        help="A JSON file with levels, costs, bandwidths, and slots and speeds of the ranks, in place of"
        " --ranks-per-node, --slots and --inter-cost. docs/planning.md shows one."
    ),
]
AlgorithmName = Annotated[str, typer.Option(help=f"One of {', '.join(sorted(ALGORITHMS))}.")]
EffortName = Annotated[
    str,
    typer.Option(
        help="fast, balanced or exact: how hard taot searches for a cheaper plan. The others ignore it."
        " exact needs scipy and proves how much cheaper a plan could be."
    ),
]
TimeLimit = Annotated[float, typer.Option(help="Seconds for one layer with the effort exact.")]
ObjectiveName = Annotated[
    str,
    typer.Option(
        help=f"{', '.join(OBJECTIVES)}: the cheapest guests that reach --tolerance, the least imbalance + mu x cost,"
        " or the least predicted time. Only taot reads it."
    ),
]
Tolerance = Annotated[float, typer.Option(help="Imbalance to accept, (max - mean) / mean. Only taot reads it.")]
Mu = Annotated[float, typer.Option(help="Imbalance that a guest within a node is worth, for --objective mu.")]
MinImbalance = Annotated[float, typer.Option(help="Leave layers alone whose imbalance is not above this.")]
MinTokens = Annotated[int, typer.Option(help="Make no guests that take fewer tokens. Only taot reads it.")]
TokenTime = Annotated[
    float | None, typer.Option("--token-ns", help="Nanoseconds that a rank computes one token in one expert, forward.")
]
ExpertBytes = Annotated[int | None, typer.Option(help="Weights of one expert that a guest moves, in bytes.")]
HomesFile = Annotated[
    Path | None,
    typer.Option(help="Home rank of each expert, .npy or a JSON list. Without it e * ranks // experts."),
]
Explain = Annotated[bool, typer.Option("--explain", help="Print how each plan came about.")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Write the plans here instead of printing a table.")]


def plan(  # noqa: PLR0913 - the command line's options are this function's parameters
    counts: CountsFile,
    *,
    ranks_per_node: RanksPerNode = None,
    slots: Slots = None,
    inter_cost: InterCost = None,
    topology: TopologyFile = None,
    homes: HomesFile = None,
    algorithm: AlgorithmName = "taot",
    effort: EffortName = "balanced",
    time_limit: TimeLimit = 30.0,
    objective: ObjectiveName = "tolerance",
    tolerance: Tolerance = 0.015,
    mu: Mu = 0.002,
    min_imbalance: MinImbalance = 0.0,
    min_tokens: MinTokens = 0,
    token_ns: TokenTime = None,
    expert_bytes: ExpertBytes = None,
    explain: Explain = False,
    json_path: JsonPath = None,
) -> None:
    """Plan recorded token counts and show what it would gain."""
    try:
        _check_choice("algorithm", algorithm, tuple(sorted(ALGORITHMS)))
        # The command line gives any text; PlanningOptions refuses what it does not know.
        options = PlanningOptions(
            objective=cast("Objective", objective),
            tolerance_ppm=parts_per_million("tolerance", tolerance),
            mu_ppm=parts_per_million("mu", mu),
            min_imbalance_ppm=parts_per_million("min-imbalance", min_imbalance),
            min_tokens_per_guest=min_tokens,
            effort=cast("Effort", effort),
            exact_seconds=time_limit,
        )
        topology_of = _topology_source(topology, ranks_per_node=ranks_per_node, slots=slots, inter_cost=inter_cost)
        rates = _rates(token_ns, expert_bytes)
        layers = read_counts(counts)
        home_E = None if homes is None else read_homes(homes)
        problems = [_problem(layer, home_E, topology_of(layer), rates) for layer in layers]
        _check_times(problems, options)
        warm_up([algorithm], has_recent=False)
        rows = [
            plan_row(_plan(layer, problem, algorithm=algorithm, options=options))
            for layer, problem in zip(layers, problems, strict=True)
        ]
        if json_path is not None:
            json_path.write_text(json.dumps({"plans": rows}, indent=1) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error
    if json_path is None:
        Console().print(plan_table(rows))
    for row in rows if explain else []:
        typer.echo("\n".join(explanation_lines(row)))


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"unknown {name} {value!r}: choose one of {', '.join(choices)}")


def parts_per_million(name: str, value: float) -> int:
    """A ratio as options hold it.

    Raises:
        ValueError: if it is out of range.
    """
    if not 0 <= value <= 100:
        raise ValueError(f"{name} must be between 0 and 100 (100 times the mean), got {value}")
    return round(value * PPM)


def check_magnitude(flag: str, value: int | None) -> None:
    """Refuses numbers that no array can hold.

    Raises:
        ValueError: naming the flag.
    """
    if value is not None and abs(value) >= 2**31:
        raise ValueError(f"{flag} must be below 2^31, got {value}")


def _topology_source(
    path: Path | None, *, ranks_per_node: int | None, slots: int | None, inter_cost: float | None
) -> TopologyOf:
    """The topology of a layer: from the file, or nodes of consecutive ranks, as many as the layer has."""
    if path is not None:
        flags = {"--ranks-per-node": ranks_per_node, "--slots": slots, "--inter-cost": inter_cost}
        for flag, value in flags.items():
            if value is not None:
                raise ValueError(f"--topology and {flag} exclude each other: the file says it")
        topology = read_topology(path)

        def from_file(layer: RecordedLayer) -> Topology:
            if topology.num_ranks != layer.counts_RE.shape[0]:
                raise ValueError(f"{path} has {topology.num_ranks} ranks, {layer.name} has {layer.counts_RE.shape[0]}")
            return topology

        return from_file
    check_magnitude("--ranks-per-node", ranks_per_node)
    check_magnitude("--slots", slots)

    def of_nodes(layer: RecordedLayer) -> Topology:
        return two_level_topology(
            num_ranks=layer.counts_RE.shape[0],
            ranks_per_node=DEFAULT_RANKS_PER_NODE if ranks_per_node is None else ranks_per_node,
            slots=min(DEFAULT_SLOTS, layer.counts_RE.shape[1]) if slots is None else slots,
            inter_cost=DEFAULT_INTER_COST if inter_cost is None else inter_cost,
        )

    return of_nodes


def _rates(token_ns: float | None, expert_bytes: int | None) -> LayerRates | None:
    if token_ns is None and expert_bytes is None:
        return None
    if token_ns is None or expert_bytes is None:
        raise ValueError("--token-ns and --expert-bytes go together: a time is predicted from both")
    if not 0.001 <= token_ns <= 10**9:
        raise ValueError(f"token-ns must be between 0.001 and 10^9, got {token_ns}")
    return LayerRates(token_picoseconds=round(token_ns * 1000), expert_size_bytes=expert_bytes)


def _problem(
    layer: RecordedLayer, home_E: IntArray | None, topology: Topology, rates: LayerRates | None
) -> LayerProblem:
    num_ranks, num_experts = layer.counts_RE.shape
    if home_E is not None and home_E.size != num_experts:
        raise ValueError(f"{layer.name} has {num_experts} experts, the homes file has {home_E.size} entries")
    if topology.max_slots > num_experts:
        raise ValueError(f"{topology.max_slots} slots per rank are more than the {num_experts} experts of {layer.name}")
    if home_E is None:
        home_E = contiguous_homes(num_experts=num_experts, num_ranks=num_ranks)
    try:
        return LayerProblem(counts_RE=layer.counts_RE, home_E=home_E, topology=topology, rates=rates)
    except ValueError as error:
        raise ValueError(f"{layer.name}, layer {layer.layer}: {error}") from error


def _check_times(problems: Sequence[LayerProblem], options: PlanningOptions) -> None:
    """Refuses to look for the least time, and says so for the others, where none can be predicted."""
    levels = [level for problem in problems for level in problem.topology.levels]
    has_bandwidths = all(level.bandwidth_bytes_per_second is not None for level in levels)
    has_rates = all(problem.rates is not None for problem in problems)
    if options.objective == "step_time" and not (has_rates and has_bandwidths):
        raise ValueError(
            "--objective step_time needs --token-ns, --expert-bytes and a --topology file with the bandwidth of"
            " every level"
        )
    if has_rates and not has_bandwidths:
        typer.echo("note: no time is predicted without the bandwidth of every level in a --topology file", err=True)


def _plan(layer: RecordedLayer, problem: LayerProblem, *, algorithm: str, options: PlanningOptions) -> PlannedLayer:
    start = time.perf_counter()
    layer_plan = plan_layer(problem, algorithm=algorithm, options=options)
    return PlannedLayer(
        layer=layer,
        problem=problem,
        algorithm=algorithm,
        options=options,
        plan=layer_plan,
        planning_seconds=time.perf_counter() - start,
    )

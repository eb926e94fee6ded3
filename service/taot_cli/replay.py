"""`taot replay`: would it help my job? Replays recorded routing with several algorithms; reads and prints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from taot_api.session_spec import DEFAULT_RECENT_REPORTS
from taot_api.trace import TraceHeader
from taot_api.trace_folder import TraceReader
from taot_cli.plan import USAGE_ERROR, check_magnitude, parts_per_million
from taot_planning import PlanningOptions, warm_up
from taot_planning.options import SEARCH_EFFORTS
from taot_replay import Recording, ReplayCase, ReplayFigures, make_cases, read_array_file, with_nodes
from taot_replay import replay as replay_recording

Source = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="A folder that agent.record() or a TraceRecorder wrote, or an .npz file."),
]
Algorithms = Annotated[str, typer.Option(help="Algorithms to compare, separated by commas.")]
Sources = Annotated[
    str,
    typer.Option(
        "--source",
        help="ahead: placed from the step before, tokens split as they come; ahead+inline: the same, but stale layers"
        " are placed again; inline: placed from the tokens at hand. Separated by commas.",
    ),
]
SlotCounts = Annotated[str, typer.Option(help="Guest experts a rank can hold per layer, separated by commas.")]
RanksPerNode = Annotated[
    int | None, typer.Option(help="Consecutive ranks that share a node. Without it as recorded; 8 for an .npz file.")
]
InterCost = Annotated[
    float | None, typer.Option(help="Cost of moving an expert between nodes, 1 within. Without it as recorded, or 3.")
]
Tolerance = Annotated[float, typer.Option(help="Imbalance to accept, (max - mean) / mean.")]
EffortName = Annotated[str, typer.Option(help="fast or balanced: how hard taot searches for a cheaper plan.")]
NumRecent = Annotated[
    int,
    typer.Option("--recent", help="Micro-batches before the last one that show ahead how counts stray; 0: not heeded."),
]
Stretch = Annotated[
    int,
    typer.Option(help="How far ahead lets the next micro-batch stray, in percent of how far recent ones did."),
]
Key = Annotated[str | None, typer.Option(help="Which array of an .npz file: [steps, layers, ranks, experts].")]
JsonPath = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file.")]


def replay(  # noqa: PLR0913 - the command line's options are this function's parameters
    trace: Source,
    *,
    algorithms: Algorithms = "static,taot-paper,taot",
    source: Sources = "ahead,inline",
    slots: SlotCounts = "1,2,4",
    ranks_per_node: RanksPerNode = None,
    inter_cost: InterCost = None,
    tolerance: Tolerance = 0.015,
    effort: EffortName = "balanced",
    recent: NumRecent = DEFAULT_RECENT_REPORTS,
    stretch: Stretch = PlanningOptions.stretch_percent,
    key: Key = None,
    json_path: JsonPath = None,
) -> None:
    """Replay recorded routing and show what guests would have gained and cost."""
    try:
        cases = make_cases(algorithms=_names(algorithms), sources=_names(source), slots=_numbers(slots))
        if effort not in SEARCH_EFFORTS:
            raise ValueError(f"unknown effort {effort!r}: choose one of {', '.join(SEARCH_EFFORTS)}")
        options = PlanningOptions(
            tolerance_ppm=parts_per_million("tolerance", tolerance),
            effort=effort,
            stretch_percent=stretch,
        )
        check_magnitude("--ranks-per-node", ranks_per_node)
        recording = _open(trace, key=key, ranks_per_node=ranks_per_node)
        header = with_nodes(recording.header, ranks_per_node=ranks_per_node, inter_cost=inter_cost)
        figures = _run(recording, header, cases, options, num_recent=recent)
        if json_path is not None:
            asked = {"tolerance": tolerance, "effort": effort, "recent": recent}
            document = _document(header, figures, asked, num_records=recording.num_records)
            json_path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE_ERROR) from error
    console = Console()
    console.print(_summary(header, num_steps=len(figures[0].imbalance_by_step)), soft_wrap=True)
    console.print(_table(figures))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str) -> list[int]:
    try:
        return [int(name) for name in _names(text)]
    except ValueError as error:
        raise ValueError(f"slots must be whole numbers separated by commas, got {text!r}") from error


def _open(path: Path, *, key: str | None, ranks_per_node: int | None) -> Recording:
    if path.is_dir():
        if key is not None:
            raise ValueError("--key names an array of an .npz file, this is a folder")
        return TraceReader(path)
    return read_array_file(path, key=key, ranks_per_node=ranks_per_node)


def _run(
    recording: Recording,
    header: TraceHeader,
    cases: Sequence[ReplayCase],
    options: PlanningOptions,
    *,
    num_recent: int,
) -> list[ReplayFigures]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("micro-batches", total=recording.num_records)
        warm_up([case.algorithm for case in cases], has_recent=num_recent > 0)
        return replay_recording(
            recording,
            cases,
            header=header,
            options=options,
            num_recent=num_recent,
            on_record=lambda: progress.advance(task),
        )


def _document(
    header: TraceHeader, figures: Sequence[ReplayFigures], asked: dict[str, Any], *, num_records: int
) -> dict[str, Any]:
    return {
        "trace": {
            "training_job": header.training_job,
            "ranks": header.topology.num_ranks,
            "nodes": len(set(header.topology.nodes_R.tolist())),
            "layers": len(header.layers),
            "micro_batches": num_records,
        },
        **asked,
        "cases": [_row(each) for each in figures],
    }


def _row(figures: ReplayFigures) -> dict[str, Any]:
    values = asdict(figures)
    case = values.pop("case")
    return {"algorithm": case["algorithm"], "source": case["source"], "slots": case["num_slots"]} | values


def _summary(header: TraceHeader, *, num_steps: int) -> str:
    nodes = len(set(header.topology.nodes_R.tolist()))
    return (
        f"{num_steps} steps after the first, {len(header.layers)} layers, {header.topology.num_ranks} ranks on"
        f" {nodes} node{'s' if nodes > 1 else ''}; guests and cost per layer and step,"
        " crossings (tokens that leave their node) per step:"
    )


def _table(figures: Sequence[ReplayFigures]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for heading in ("algorithm", "source"):
        table.add_column(heading, no_wrap=True)
    for heading in ("slots", "imbalance", "in node", "across", "cost", "crossings"):
        table.add_column(heading, justify="right")
    for each in figures:
        table.add_row(
            each.case.algorithm,
            each.case.source,
            str(each.case.num_slots),
            f"{each.imbalance:.1%}",
            f"{each.intra_guests:.2f}",
            f"{each.inter_guests:.2f}",
            f"{each.weighted_cost:.2f}",
            f"{each.node_crossings:.0f}",
        )
    return table

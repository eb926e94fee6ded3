"""What placements are worth that were planned from older counts: a recorded job, by source. Part of `make bench`.

An .npz file with an array `domain`, one number per step that says what kind of data it trained on, is shown in two more
parts: steps of the same domain as the step before, and the others. Only this benchmark reads it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from taot_api.session_spec import DEFAULT_RECENT_REPORTS
from taot_api.trace_folder import TraceReader
from taot_planning import PlanningOptions, warm_up
from taot_planning.options import PPM
from taot_replay import SOURCES, Recording, ReplayFigures, make_cases, read_array_file, replay, with_nodes

COMMITTED_TRACE = Path(__file__).parents[1] / "examples" / "traces" / "train_moe"
ALGORITHMS = ("static", "taot", "taot-paper", "llep")


def open_recording(path: Path, ranks_per_node: int | None) -> Recording:
    """A trace folder or an .npz file."""
    return TraceReader(path) if path.is_dir() else read_array_file(path, ranks_per_node=ranks_per_node)


def read_domains(path: Path) -> NDArray[np.int64] | None:
    """The domain of each step, None where it is not known. Shape: [steps]."""
    if path.is_dir():
        return None
    with np.load(path) as archive:
        return np.asarray(archive["domain"]) if "domain" in archive.files else None


def part_steps(domains: NDArray[np.int64] | None, num_steps: int) -> dict[str, NDArray[np.bool_]]:
    """Which steps belong to which part; the first step of a recording is not counted. Shape of each: [steps - 1]."""
    parts = {"all": np.ones(num_steps, dtype=np.bool_)}
    if domains is not None:
        is_same = domains[1:] == domains[:-1]
        parts |= {"same domain": is_same, "other domain": ~is_same}
    return parts


def make_row(figures: ReplayFigures, part: str, steps: NDArray[np.bool_]) -> dict[str, Any]:
    """The means of a case over the steps of a part."""
    columns = {
        "imbalance": figures.imbalance_by_step,
        "weighted_cost": figures.weighted_cost_by_step,
        "node_crossings": figures.node_crossings_by_step,
    }
    return {
        **{"part": part, "steps": int(steps.sum())},
        **{"algorithm": figures.case.algorithm, "source": figures.case.source},
        **{name: float(np.mean(np.array(values)[steps])) for name, values in columns.items()},
    }


def measure(path: Path, *, ranks_per_node: int | None, slots: int, recent: int, tolerance: float) -> dict[str, Any]:
    """One row per part, algorithm and source."""
    recording = open_recording(path, ranks_per_node)
    header = with_nodes(recording.header, ranks_per_node=ranks_per_node, inter_cost=None)
    cases = make_cases(algorithms=ALGORITHMS, sources=SOURCES, slots=[slots])
    options = PlanningOptions(tolerance_ppm=round(tolerance * PPM))
    figures = replay(recording, cases, header=header, options=options, num_recent=recent)
    parts = part_steps(read_domains(path), len(figures[0].imbalance_by_step))
    return {
        "trace": path.name,
        "ranks": header.topology.num_ranks,
        "nodes": len(set(header.topology.nodes_R.tolist())),
        **{"slots": slots, "recent": recent, "tolerance": tolerance},
        "rows": [make_row(each, part, steps) for part, steps in parts.items() if steps.any() for each in figures],
    }


def print_table(console: Console, results: dict[str, Any]) -> None:
    """Cost is per layer and step, crossings are per step."""
    title = (
        f"Sources on {results['trace']}: {results['ranks']} ranks on {results['nodes']} nodes\n"
        f"{results['slots']} slots, {results['recent']} recent micro-batches, tolerance {results['tolerance']:.1%}"
    )
    table = Table(title=title, title_justify="left")
    for heading in ("steps", "algorithm", "source", "imbalance", "cost", "crossings"):
        table.add_column(heading, justify="left" if heading in ("steps", "algorithm", "source") else "right")
    for row in results["rows"]:
        table.add_row(
            *(f"{row['part']} ({row['steps']})", row["algorithm"], row["source"]),
            *(f"{row['imbalance']:.2%}", f"{row['weighted_cost']:.2f}", f"{row['node_crossings']:.0f}"),
        )
    console.print(table)


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, nargs="?", default=COMMITTED_TRACE, help="a trace folder or an .npz file")
    parser.add_argument("--ranks-per-node", type=int, help="consecutive ranks that share a node (default as recorded)")
    parser.add_argument("--slots", type=int, default=2, help="guest slots per rank (default 2)")
    parser.add_argument(
        "--recent",
        type=int,
        default=DEFAULT_RECENT_REPORTS,
        help="recent micro-batches that show ahead how counts stray",
    )
    parser.add_argument("--tolerance", type=float, default=0.015, help="imbalance to accept (default 0.015)")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    warm_up()
    results = measure(
        arguments.trace,
        ranks_per_node=arguments.ranks_per_node,
        slots=arguments.slots,
        recent=arguments.recent,
        tolerance=arguments.tolerance,
    )
    # Wide enough for every column also where the output goes to a file.
    print_table(Console(width=max(Console().width, 110)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Speed of training under forced imbalance, compared with balanced routing and with plain expert parallelism.

Two ranks on two cores, one thread each, over loopback. Tokens for an expert are so many that computing a guest takes
several times as long as moving it both ways, as it does with thousands of tokens on GPUs that share fast links. Steps
of all runs of a row alternate, so that a busy moment of the machine falls on all of them; figures are medians of ratios
within a round. The experts are nearly all of the model, which shows what guests cost; a real model dilutes both gain
and cost. The ranks share the two cores with the planner.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from forced_training import Detached, Run, Shape, alternate, expert_seconds, guest_options, join_ranks
from rank_processes import end_on_terminate, free_port, run_ranks, serving_planner
from rich.console import Console
from rich.table import Table

from taot_client import expert_parallel_group

SHAPE = Shape(layers=2, experts=8, dim=256, hidden_dim=512, tokens=4096)
"""2,048 tokens for an expert of 1.6 MB."""

IMBALANCES = (0.3, 0.5, 0.7, 0.9)

WARM_ROUNDS = 4
"""The planner answers to what the first ones report."""


def ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios within a round."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def work(rank: int, task: dict[str, Any]) -> None:
    """What every rank does; rank 0 writes the result."""
    join_ranks(task["store"], rank=rank, size=task["size"])
    group = expert_parallel_group()
    plain, balanced = Run(SHAPE, group, None), Run(SHAPE, group, None)
    rows: list[dict[str, Any]] = []
    best_balanced = math.inf
    for planner in (None, task["planner"]):
        options = guest_options(planner, measured_gates=task["measured_gates"])
        guests = Run(SHAPE, group, options)
        for imbalance in task["imbalances"]:
            for run in (plain, guests):
                run.force(imbalance)
            runs = [guests, balanced, plain if imbalance else Detached(guests)]
            first = len(rows) * 1000
            alternate(runs, rounds=WARM_ROUNDS, first_step=first, limit_seconds=60)
            guest_seconds, balanced_seconds, plain_seconds = alternate(
                runs, rounds=task["rounds"], first_step=first + 100, limit_seconds=task["row_seconds"]
            )
            best_balanced = min(best_balanced, *balanced_seconds)
            rows.append(
                {
                    "plan_source": "ahead" if planner else "inline",
                    "imbalance": imbalance,
                    "rounds": len(guest_seconds),
                    "balanced_seconds": statistics.median(balanced_seconds),
                    "static_seconds": statistics.median(plain_seconds),
                    "guest_seconds": statistics.median(guest_seconds),
                    "speed_of_balanced": ratio(balanced_seconds, guest_seconds),
                    "speed_up_over_static": ratio(plain_seconds, guest_seconds),
                    "guests": guests.summary.guests_intra + guests.summary.guests_inter,
                    "imbalance_left": statistics.mean(guests.summary.imbalance.values()),
                    "fallbacks": dict(guests.summary.fallbacks),
                }
            )
            if rank == 0:
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        guests.close()
    share = expert_seconds(balanced) / best_balanced  # the best of both: the ranks share the machine with others
    if rank == 0:
        Path(task["result"]).write_text(json.dumps({"rows": rows, "expert_share": share}))


def print_results(console: Console, results: dict[str, Any]) -> None:
    """One row per imbalance and plan source."""
    table = Table(title="Two ranks, medians of alternating steps", title_justify="left")
    headings = ("plans", "imbalance", "left", "guests", "static", "with guests", "balanced")
    for heading in (*headings, "speed / balanced", "speed / static"):
        table.add_column(heading, justify="left" if heading == "plans" else "right", no_wrap=True)
    for row in results["rows"]:
        table.add_row(
            *(row["plan_source"], f"{row['imbalance']:.0%}", f"{row['imbalance_left']:.1%}", str(row["guests"])),
            *(f"{row[key] * 1e3:.0f} ms" for key in ("static_seconds", "guest_seconds", "balanced_seconds")),
            *(f"{row['speed_of_balanced']:.1%}", f"{row['speed_up_over_static']:.2f}"),
        )
    console.print(table)
    console.print(
        f"experts are {results['expert_share']:.0%} of a balanced step; an expert has {SHAPE.expert_bytes / 1e6:.1f} MB"
        f" and {SHAPE.tokens * SHAPE.top_k * 2 // SHAPE.experts} tokens; without imbalance, step time with the agent is"
        f" {', '.join(describe_overhead(results))} of that without",
        highlight=False,
    )


def describe_overhead(results: dict[str, Any]) -> list[str]:
    """Step time with the agent where nothing is to be done."""
    return [
        f"{1 / row['speed_up_over_static']:.3f} ({row['plan_source']})"
        for row in results["rows"]
        if row["imbalance"] == 0
    ]


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--imbalance", type=float, nargs="+", default=IMBALANCES, help="start imbalances")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of a row")
    parser.add_argument("--row-seconds", type=float, default=25, help="time after which a row ends early")
    parser.add_argument(
        "--measured-gates", action="store_true", help="leave out guests that measurements speak against"
    )
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments.rank, json.loads(arguments.task.read_text()))
        return
    end_on_terminate()
    with ExitStack() as stack:
        task = {
            "planner": stack.enter_context(serving_planner()),
            "store": f"127.0.0.1:{free_port()}",
            "imbalances": [0.0, *arguments.imbalance],
            "rounds": arguments.rounds,
            "row_seconds": arguments.row_seconds,
            "measured_gates": arguments.measured_gates,
        }
        environment = {"OMP_NUM_THREADS": "1"}
        limit_seconds = 10 * (arguments.row_seconds + 60) + 300
        results = run_ranks(__file__, task, prefixes=[[], []], environment=environment, limit_seconds=limit_seconds)
    print_results(Console(width=max(Console().width, 130)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

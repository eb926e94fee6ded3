"""Training over rate-limited links between nodes: step time, hidden share of the transfers, and bytes on the links.

Nodes are network namespaces on this machine (`link_namespaces.py`), which needs root. Every round trains a step of
plain expert parallelism, one with guests, and one with the same guests whose weights and gradients are in place already
(`guest_transfers.py`), and then ships what the step shipped with nothing beside it:

    hidden share = 1 - (step - step in place) / transfers alone

The error beside it is the standard error of the median. Bytes are those that the nodes' uplinks have sent, from the
interface counters. Weights and gradients are what the agent has sent, without headers; the rest are tokens, control and
headers.

The cores of this machine, which the ranks share where there are more of these, also carry every byte through the
kernel: where they compute all the time, that much of a transfer cannot be hidden. So the transfers are repeated on
the idle machine: what they take from its cores a byte, and the largest share that could be hidden were no core ever
idle (as they are while tokens travel: the share may exceed it), stand beside the others.

With `--stand-in device` a rank waits for an accelerator in place of computing, and the cores are free for the network,
as they are beside a GPU. With `--stand-in core` it holds its core as long as it would compute: the same contention
without the noise (`stand_in_computing.py`). Everything else, experts' weights and gradients included, is real.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from core_time import core_prefix, core_share, idle_seconds, num_cores
from forced_training import Run, Shape, guest_options, join_ranks
from guest_transfers import WatchingMover, put_in_place, ship_alone, watch
from link_namespaces import UPLINK, joined_nodes, reason_against, sent_bytes
from rank_processes import end_on_terminate, run_ranks, serving_planner
from rich.console import Console
from rich.table import Table

from taot_client import ExpertParallelGroup, expert_parallel_group

ALGORITHMS = ("static", "echo", "llep", "taot-paper", "taot")

STORE_PORT = 29400
"""In a namespace of its own every port is free."""

WARM_ROUNDS = 3

ALONE_TIMES = 20
"""How often the transfers of a step are repeated to see what they take from the cores: the kernel counts in 10 ms."""

PAUSE_SECONDS = 1.0

KINDS = ("weights", "gradient")


def summed(group: ExpertParallelGroup, values: Sequence[float]) -> list[float]:
    """Sums over the ranks. Collective."""
    total = torch.tensor(values, dtype=torch.float64)
    group.counts.allreduce([total]).wait()
    summed_values: list[float] = total.tolist()
    return summed_values


def spread(values: Sequence[float]) -> float:
    """Standard error of the median of values, by that of the mean of a normal distribution and the quartiles."""
    if len(values) < 4:
        return float("nan")
    first, _, third = statistics.quantiles(values, n=4)
    return 1.25 * (third - first) / 1.35 / math.sqrt(len(values))


class Case:
    """One algorithm, plan source and use of relays, on one rank."""

    def __init__(self, task: dict[str, Any], case: dict[str, Any], group: ExpertParallelGroup, static: Run) -> None:
        self._task, self._group, self._static = task, group, static
        self._is_first = group.rank % task["ranks_per_node"] == 0
        self._runs: list[Run] = []
        self._movers: list[WatchingMover] = []
        if case["algorithm"] == "static":
            return
        for name in ("real", "placed"):
            options = guest_options(
                task["planner"] if case["plan_source"] == "ahead" else None,
                algorithm=case["algorithm"],
                relay=case["relay"],
                ranks_per_node=task["ranks_per_node"],
                measured_gates=task["measured_gates"],
                training_job=f"{name}-{case['number']}",
            )
            self._runs.append(Run(static.shape, group, options))
            self._runs[-1].force(task["imbalance"])
        self._movers = watch(self._runs[0].agent._agent.state)
        put_in_place(self._runs[1].agent._agent.state)

    def measure_round(self, step: int) -> dict[str, float]:
        """Seconds and bytes of one round."""
        static_seconds, static_bytes = self._counted(self._static, step)
        row = {"static_seconds": static_seconds, "static_bytes": static_bytes}
        if not self._runs:
            return row
        real, placed = self._runs
        for mover in self._movers:
            mover.posted.clear()
            mover.crossed_bytes.clear()
        # Which comes first changes from round to round: the machine's speed drifts.
        if step % 2:
            row["placed_seconds"] = placed.train_step(step)
        row["step_seconds"], row["step_bytes"] = self._counted(real, step)
        if not step % 2:
            row["placed_seconds"] = placed.train_step(step)
        crossed = {kind: sum(mover.crossed_bytes[kind] for mover in self._movers) for kind in KINDS}
        row |= dict(zip(("weights_bytes", "gradients_bytes"), summed(self._group, [*crossed.values()]), strict=True))
        row["alone_seconds"] = ship_alone(self._movers, self._group)
        saved = row["step_seconds"] - row["placed_seconds"]
        row["hidden_share"] = 1 - saved / row["alone_seconds"] if row["weights_bytes"] else float("nan")
        row["guests"] = real.summary.guests_intra + real.summary.guests_inter
        row["imbalance_left"] = statistics.mean(real.summary.imbalance.values())
        return row

    def measure_cores(self) -> dict[str, float]:
        """What the transfers of the last step take from the cores: see `core_share`. Collective."""
        # Asked together: what follows is collective as well, and some ranks may have sent and received nothing.
        if not sum(summed(self._group, [len(mover.posted) for mover in self._movers])):
            return {}
        before = idle_seconds()
        time.sleep(PAUSE_SECONDS)  # what others take meanwhile does not count
        idle_cores = (idle_seconds() - before) / PAUSE_SECONDS
        before, started = idle_seconds(), time.perf_counter()
        wire_seconds = ship_alone(self._movers, self._group, times=ALONE_TIMES)
        taken = idle_cores * (time.perf_counter() - started) - (idle_seconds() - before)
        return {"alone_core_seconds": taken / ALONE_TIMES, "most_hidden": 1 - core_share(taken, wire_seconds)}

    def close(self) -> None:
        """Ends the agents."""
        for run in self._runs:
            run.close()

    def _counted(self, run: Run, step: int) -> tuple[float, float]:
        """Seconds of a step, and bytes that all uplinks have sent in it."""
        before = sent_bytes() if self._is_first else 0
        seconds = run.train_step(step)
        after = sent_bytes() if self._is_first else 0
        return seconds, summed(self._group, [after - before])[0]


def work(rank: int, task: dict[str, Any]) -> None:
    """What every rank does; rank 0 writes the result."""
    join_ranks(task["store"], rank=rank, size=task["size"])
    group = expert_parallel_group()
    static = Run(Shape(**task["shape"]), group, None)
    static.force(task["imbalance"])
    rows = []
    for case in task["cases"]:
        measured = Case(task, case, group, static)
        rounds = [measured.measure_round(step) for step in range(WARM_ROUNDS + task["rounds"])][WARM_ROUNDS:]
        cores = measured.measure_cores()
        measured.close()
        medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        if "hidden_share" in medians:
            medians["hidden_error"] = spread([each["hidden_share"] for each in rounds])
        rows.append({**case, **medians, **cores})
        if rank == 0:
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if rank == 0:
        Path(task["result"]).write_text(json.dumps({"rows": rows, **{k: task[k] for k in ("shape", "imbalance")}}))


def cases_of(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Every combination that differs."""
    cases: list[dict[str, Any]] = []
    for algorithm in arguments.algorithms:
        if algorithm == "static":
            cases.append({"algorithm": algorithm, "plan_source": "", "relay": ""})
            continue
        for plan_source in arguments.plan_sources:
            cases += [{"algorithm": algorithm, "plan_source": plan_source, "relay": each} for each in arguments.relay]
    return [{**case, "number": number} for number, case in enumerate(cases)]


def print_results(console: Console, results: dict[str, Any]) -> None:
    """One row per case."""
    table = Table(title="Medians of alternating steps; MB sent by all uplinks in a step", title_justify="left")
    headings = ("algorithm", "plans", "relay", "guests", "left", "step", "static", "in place", "alone", "hidden")
    for heading in (*headings, "at most", "core ns/B", "MB", "weights", "gradients", "rest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in results["rows"]:
        cells = [row["algorithm"], row["plan_source"], row["relay"]]
        if "step_seconds" in row:
            cells += [f"{row['guests']:.0f}", f"{row['imbalance_left']:.1%}"]
            cells += [f"{row[f'{key}_seconds'] * 1e3:.0f} ms" for key in ("step", "static", "placed", "alone")]
            rest = row["step_bytes"] - row["weights_bytes"] - row["gradients_bytes"]
            numbers = (row["step_bytes"], row["weights_bytes"], row["gradients_bytes"], rest)
            cells += [f"{row['hidden_share']:.0%} +-{row['hidden_error'] * 100:.0f}", *describe_cores(row)]
            cells += [f"{each / 1e6:.1f}" for each in numbers]
        else:
            seconds, megabytes = f"{row['static_seconds'] * 1e3:.0f} ms", f"{row['static_bytes'] / 1e6:.1f}"
            cells += ["", "", "", seconds, "", "", "", "", "", megabytes]
        table.add_row(*cells)
    console.print(table)


def describe_cores(row: dict[str, Any]) -> list[str]:
    """The largest share that the cores allow, and what a byte takes from them."""
    if "most_hidden" not in row:
        return ["", ""]
    size_bytes = row["weights_bytes"] + row["gradients_bytes"]
    return [f"{row['most_hidden']:.0%}", f"{row['alone_core_seconds'] / size_bytes * 1e9:.2f}"]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, choices=(2, 4), default=2)
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--megabits", type=int, default=1000, help="rate of an uplink, each way")
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=list(ALGORITHMS))
    parser.add_argument("--plan-sources", type=lambda text: text.split(","), default=["inline", "ahead"])
    parser.add_argument("--relay", type=lambda text: text.split(","), default=["auto"], help="off,on,auto")
    parser.add_argument("--imbalance", type=float, default=0.7, help="of the start; up to the number of ranks less one")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--dim", type=int, default=512, help="width of a token")
    parser.add_argument("--hidden-dim", type=int, default=1024, help="width inside an expert")
    parser.add_argument(
        "--dense-dim",
        type=int,
        default=2048,
        help="width inside the dense block before each expert layer (attention, in a real model): as given, it computes"
        " as much as the experts of a balanced rank; 0 for none",
    )
    parser.add_argument(
        "--stand-in",
        choices=("device", "core"),
        help="in place of computing, wait for an accelerator, as GPUs leave the cores to the network, or hold the core",
    )
    parser.add_argument("--gigaflops", type=float, default=50, help="speed of what stands in for computing")
    parser.add_argument("--tokens", type=int, default=512, help="of a rank")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--limit-seconds", type=float, default=600, help="after which it gives up")
    parser.add_argument("--measured-gates", action="store_true", help="leave out guests that do not pay as measured")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    arguments = parse()
    if arguments.rank is not None:
        work(arguments.rank, json.loads(arguments.task.read_text()))
        return
    reason = reason_against()
    if reason:
        print(f"shaped links cannot be measured here: {reason}")
        return
    end_on_terminate()
    size = arguments.nodes * arguments.ranks_per_node
    shape = Shape(
        experts=max(8, 2 * size),
        **{
            name: getattr(arguments, name)
            for name in ("layers", "dim", "hidden_dim", "tokens", "dense_dim", "stand_in", "gigaflops")
        },
    )
    with ExitStack() as stack:
        nodes = stack.enter_context(joined_nodes(arguments.nodes, megabits=arguments.megabits))
        task = {
            **{name: getattr(arguments, name) for name in ("ranks_per_node", "imbalance", "rounds", "measured_gates")},
            "planner": None,
            "store": f"[{nodes[0].address}]:{STORE_PORT}",
            "cases": cases_of(arguments),
            "shape": asdict(shape),
        }
        if "ahead" in arguments.plan_sources:
            task["planner"] = stack.enter_context(serving_planner(nodes[0].prefix))
        prefixes = [nodes[rank // arguments.ranks_per_node].prefix for rank in range(size)]
        if size <= num_cores():
            prefixes = [[*prefix, *core_prefix(rank)] for rank, prefix in enumerate(prefixes)]
        environment = {"GLOO_SOCKET_IFNAME": UPLINK, "OMP_NUM_THREADS": "1"}
        results = run_ranks(
            __file__, task, prefixes=prefixes, environment=environment, limit_seconds=arguments.limit_seconds
        )
    print_results(Console(width=max(Console().width, 170)), results)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

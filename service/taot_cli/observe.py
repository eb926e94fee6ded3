"""`taot observe`: planner, Prometheus and a short training run, with the overview read back through Prometheus."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from taot_cli.child_process import ChildFailedError, ChildProcess, end_children_when_told
from taot_cli.local_planner import LocalPlanner, local_planner
from taot_cli.local_prometheus import LocalPrometheus, find_prometheus, local_prometheus
from taot_cli.overview import OverviewNumber, overview_numbers
from taot_cli.training_example import find_shared, training_command

RUN_BOUND_SECONDS = 900
POLL_SECONDS = 1.0
NUMBERS = overview_numbers('training_job="observe"')


def observe(
    once: Annotated[bool, typer.Option("--once", help="End with the training run instead of on Ctrl-C.")] = False,
    steps: Annotated[int, typer.Option(help="Training steps.", min=3)] = 60,
    ranks: Annotated[int, typer.Option(help="Training processes.", min=2)] = 2,
    ranks_per_node: Annotated[int, typer.Option(help="Ranks per emulated node.", min=1)] = 1,
) -> None:
    """Watch a planner and a short training run through Prometheus.

    Everything runs on this machine, on loopback, and ends with the command.
    """
    console = Console()
    end_children_when_told()
    try:
        rules = find_shared("deploy/prometheus/rules", installed="rules")
        find_prometheus()  # before anything is started
        with (
            tempfile.TemporaryDirectory(prefix="taot-observe-") as name,
            local_planner(Path(name)) as planner,
            local_prometheus(Path(name), http_port=planner.http_port, rules=rules) as prometheus,
        ):
            _print_addresses(console, planner, prometheus)
            arguments = ["--steps", str(steps), "--ranks-per-node", str(ranks_per_node), "--planner", planner.address]
            command = training_command("--job", "observe", *arguments, ranks=ranks)
            with ChildProcess("training", command, folder=Path(name)) as training:
                seen = _watch(console, training, prometheus)
            console.print(f"\n{_verdict(seen)}")
            if not once:
                console.print("Planner and Prometheus stay; Ctrl-C ends them.")
                _wait_for_ctrl_c()
    except ChildFailedError as error:
        console.print(f"taot observe: {error}", style="red", markup=False)
        raise typer.Exit(1) from error


def _print_addresses(console: Console, planner: LocalPlanner, prometheus: LocalPrometheus) -> None:
    for line in (
        f"Planner:    {planner.address}, metrics at http://127.0.0.1:{planner.http_port}/metrics",
        f"Prometheus: {prometheus.url}",
        f"Grafana:    not part of this; point one at {prometheus.url} and import deploy/grafana/dashboards/*.json,"
        " or use `docker compose -f deploy/compose.yaml up`",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _watch(console: Console, training: ChildProcess, prometheus: LocalPrometheus) -> dict[str, float]:
    """Shows the overview until training has ended; returns the last value of each number.

    The planner forgets a job when it ends, and so do its series.
    """
    bound = time.monotonic() + RUN_BOUND_SECONDS
    seen: dict[str, float] = {}
    with Live(_render(seen), console=console, auto_refresh=False) as live:
        while True:
            is_running = training.is_running()
            for number in NUMBERS:
                value = _read(prometheus, number)
                if value is not None:
                    seen[number.title] = value
            live.update(_render(seen), refresh=True)
            if not is_running:
                break
            if time.monotonic() > bound:
                raise training.failure(f"did not end within {RUN_BOUND_SECONDS} s")
            time.sleep(POLL_SECONDS)
    missing = {"Imbalance without guests", "Imbalance measured"} - seen.keys()
    if missing:
        raise training.failure(f"ended before Prometheus had seen {', '.join(sorted(missing))}: train for more --steps")
    return seen


def _read(prometheus: LocalPrometheus, number: OverviewNumber) -> float | None:
    samples = prometheus.query(number.query)
    value = float(samples[0]["value"][1]) if samples else math.nan
    return None if math.isnan(value) else value


def _render(seen: Mapping[str, float]) -> Table:
    table = Table(title="Overview, through Prometheus", title_justify="left")
    for heading in ("", "now", "what it means"):
        table.add_column(heading, justify="right" if heading == "now" else "left")
    for number in NUMBERS:
        value = seen.get(number.title)
        table.add_row(number.title, "-" if value is None else _format(value, number.unit), number.meaning)
    return table


def _format(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{value:.1%}"
    return f"{value:.3g} s" if unit == "s" else f"{value:.3g}"


def _verdict(seen: Mapping[str, float]) -> str:
    static, measured = seen["Imbalance without guests"], seen["Imbalance measured"]
    return f"Imbalance without guests {static:.1%}, measured {measured:.1%}, read back through Prometheus."


def _wait_for_ctrl_c() -> None:
    try:
        while True:
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        return

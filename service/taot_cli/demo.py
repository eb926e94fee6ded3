"""`taot demo`: trains a small mixture of experts twice, without and with a live planner, and compares."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from taot_cli.child_process import ChildFailedError, ChildProcess, end_children_when_told
from taot_cli.demo_result import RunLog, compare, mean_imbalance, render, verdict
from taot_cli.local_planner import local_planner
from taot_cli.training_example import training_command

RUN_BOUND_SECONDS = 900
POLL_SECONDS = 0.1


def demo(
    json_path: Annotated[Path | None, typer.Option("--json", help="Also write the result to this file.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps of each run.", min=3)] = 40,
    ranks: Annotated[int, typer.Option(help="Training processes.", min=2)] = 4,
    ranks_per_node: Annotated[int, typer.Option(help="Ranks per emulated node.", min=1)] = 2,
) -> None:
    """Train a small mixture of experts twice, without and with a live planner, and compare.

    Everything runs on this machine, on loopback, and ends with the command.
    """
    console = Console()
    started = time.monotonic()
    end_children_when_told()
    console.print(
        f"A byte-level mixture of experts learns the Python standard library: {ranks} ranks as"
        f" {-(-ranks // ranks_per_node)} emulated nodes, {steps} steps, twice from the same seed and data."
    )
    try:
        with tempfile.TemporaryDirectory(prefix="taot-demo-") as name, _progress(console) as progress:
            trainer = _Trainer(
                Path(name),
                progress,
                steps=steps,
                ranks=ranks,
                arguments=["--ranks-per-node", str(ranks_per_node)],
            )
            with local_planner(Path(name)) as planner:
                console.print(f"A planner listens on {planner.address}.")
                static = trainer.run("static", [], environment={"TAOT_DISABLE": "1"})
                taot = trainer.run("with TAOT", ["--planner", planner.address], environment={"TAOT_DISABLE": "0"})
    except ChildFailedError as error:
        console.print(f"taot demo: {error}", style="red", markup=False)
        raise typer.Exit(1) from error
    result = compare(static, taot, seconds=time.monotonic() - started)
    console.print(render(static, taot, result))
    console.print(verdict(result))
    if json_path is not None:
        json_path.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")
        console.print(f"The same as JSON: {json_path}")


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), console=console)


class _Trainer:
    """Runs the example under torchrun and follows its step log."""

    def __init__(self, folder: Path, progress: Progress, *, steps: int, ranks: int, arguments: list[str]) -> None:
        self._folder = folder
        self._progress = progress
        self._steps = steps
        self._command = training_command("--job", "demo", "--steps", str(steps), *arguments, ranks=ranks)

    def run(self, name: str, arguments: list[str], *, environment: dict[str, str]) -> RunLog:
        """Trains once."""
        log = self._folder / f"{name.replace(' ', '-')}.jsonl"
        command = [*self._command, "--step-log", str(log), *arguments]
        task = self._progress.add_task(name, total=self._steps, note="starting the ranks")
        rows: list[dict[str, Any]] = []
        with ChildProcess(name, command, folder=self._folder, environment=environment) as process:
            for row in _follow(process, log):
                rows.append(row)
                if "loss" in row:
                    note = f"loss {row['loss']:.3f}  imbalance {mean_imbalance(row):6.1%}"
                    self._progress.update(task, completed=len(rows), note=note)
        return RunLog(steps=rows[:-1], end=rows[-1])


def _follow(process: ChildProcess, log: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a growing step log until its process ends."""
    bound = time.monotonic() + RUN_BOUND_SECONDS
    position = 0
    while True:
        is_running = process.is_running()
        text = log.read_text(encoding="utf-8")[position:] if log.exists() else ""
        complete = text[: text.rfind("\n") + 1]
        position += len(complete)
        yield from map(json.loads, complete.splitlines())
        if not is_running:
            return
        if time.monotonic() > bound:
            raise process.failure(f"did not end within {RUN_BOUND_SECONDS} s")
        time.sleep(POLL_SECONDS)

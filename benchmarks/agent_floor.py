"""What an agent costs that does nothing: the least of which `agent_time.py` is to be judged.

Three models take steps in turn, on the peers of `agent_time.py`: plain expert parallelism; one whose layers only have a
gate before the home weights and an entry before the guests, as guest gradients need them; and one with the agent. What
counts is processor time of whole steps beyond those of the plain model, so that the autograd engine, caches that others
have emptied, and the agent's threads are part of it. Medians of differences between steps that followed each other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from agent_time import DIM, HEADLINE, NUM_LAYERS, TOKENS, WARM_STEPS, Case, build
from rich.console import Console
from rich.table import Table
from torch import nn

from taot_client.coordinator import PlainCoordinator
from taot_client.home_experts import Weights
from taot_client.layer_pass import LayerPass
from taot_client.transfers.guest_gradients import enter_guests, gate_weights


class EmptyAgent(PlainCoordinator):
    """Stands where an agent stands in the graph."""

    def gate(self, weights: Weights) -> Weights:
        """A gate that no gradient comes to."""
        return gate_weights(weights, collect=list)

    def guests(self, layer_pass: LayerPass, x_guest: torch.Tensor) -> tuple[torch.Tensor, list[Weights]]:
        """An entry that no guest is behind."""
        del layer_pass
        x_guest, _ = enter_guests(x_guest, [], deliver=lambda gradients: None)
        return x_guest, []


def without_agent(case: Case) -> nn.Module:
    """The model with plain expert parallelism."""
    model, agent = build(case, plan_source="inline")
    agent.close()
    return model


def measure(case: Case, *, plan_source: str, steps: int) -> dict[str, float]:
    """Microseconds of processor time per layer: of the plain model, and beyond it."""
    x = torch.randn(case.tokens, DIM, requires_grad=True)
    plain, empty = without_agent(case), without_agent(case)
    for layer in empty:
        parallel = layer.parallel_experts
        parallel.coordinator = EmptyAgent(parallel.group, parallel.home_E)
    model, agent = build(case, plan_source=plan_source)

    def step_with_agent() -> None:
        agent.begin_step()
        model(x).sum().backward()
        agent.end_step()

    rows = [
        [
            _seconds(lambda: plain(x).sum().backward()),
            _seconds(lambda: empty(x).sum().backward()),
            _seconds(step_with_agent),
        ]
        for _ in range(WARM_STEPS + steps)
    ][WARM_STEPS:]
    agent.close()

    def microseconds(values: list[float]) -> float:
        return statistics.median(values) / NUM_LAYERS * 1e6

    return {
        "plain_us": microseconds([row[0] for row in rows]),
        "empty_us": microseconds([row[1] - row[0] for row in rows]),
        "agent_us": microseconds([row[2] - row[0] for row in rows]),
    }


def _seconds(step: Callable[[], None]) -> float:
    started = time.process_time()
    step()
    return time.process_time() - started


def main() -> None:
    """Measures, prints, and writes JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="measured steps of every row")
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(title="Processor time of a step per layer, in us", title_justify="left")
    for heading in ("plans", "plain EP", "+ empty agent", "+ agent"):
        table.add_column(heading, justify="left" if heading == "plans" else "right", no_wrap=True)
    figures = {}
    for plan_source in ("inline", "ahead"):
        row = measure(Case(*HEADLINE, tokens=TOKENS[0]), plan_source=plan_source, steps=arguments.steps)
        figures[plan_source] = row
        table.add_row(plan_source, *(f"{value:.0f}" for value in row.values()))
    Console().print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

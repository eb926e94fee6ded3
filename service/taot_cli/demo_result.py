"""What the demo shows: a pure function of the step logs of its two runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

FIRST_COUNTED_STEP = 2
"""Imbalances are means from the third step on: the first plan exists in the second at the earliest."""

STEP_TIME_NOTE = (
    "(*) The ranks of the demo share the cores of one machine, so that balance cannot shorten its steps;"
    " it does where every rank has a device of its own."
)

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunLog:
    """The step log of one training run, as `examples/train_moe.py` writes it."""

    steps: Sequence[Row]
    """One row per step."""

    end: Row
    """The totals over all ranks."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The comparison of both runs. Field names are the keys of `taot demo --json`."""

    loss_max_relative_difference: float
    """Largest |loss with TAOT - loss without| / loss without, over all steps."""

    imbalance_static: float
    """(max - mean) / mean of the ranks' load without TAOT, mean over layers and steps from the third on."""

    imbalance_taot: float
    """The same with TAOT."""

    guests_intra: int
    """Guests moved within a node, over all layers and steps."""

    guests_inter: int
    """Guests moved across nodes."""

    weighted_cost: float
    """Sum over moved guests of the cost of home -> guest rank."""

    planning_seconds_p50: float
    """Median time the planner took for one plan of all layers."""

    planning_seconds_p99: float
    """99th percentile of the same."""

    transfer_hidden_share: float
    """1 - time ranks stood still for transfers / time transfers were in flight, over all ranks."""

    fallbacks: int
    """Passes through a layer that ran without guests that were wanted."""

    seconds: float
    """Duration of the whole demo."""


def compare(static: RunLog, taot: RunLog, *, seconds: float) -> DemoResult:
    """Compares a run without TAOT with one with it, from the same seed and data."""
    losses = [np.array([row["loss"] for row in run.steps]) for run in (static, taot)]
    plans = {row["plan_version"]: row["planning_seconds"] for row in taot.steps if row["plan_version"]}
    planning = np.array(list(plans.values()) or [0.0])
    in_flight, exposed = taot.end["transfer_seconds"], taot.end["exposed_seconds"]
    return DemoResult(
        loss_max_relative_difference=float(np.max(np.abs(losses[1] - losses[0]) / losses[0])),
        imbalance_static=_mean_imbalance(static),
        imbalance_taot=_mean_imbalance(taot),
        guests_intra=sum(row["guests_intra"] for row in taot.steps),
        guests_inter=sum(row["guests_inter"] for row in taot.steps),
        weighted_cost=sum(row["weighted_cost"] for row in taot.steps),
        planning_seconds_p50=float(np.percentile(planning, 50)),
        planning_seconds_p99=float(np.percentile(planning, 99)),
        transfer_hidden_share=max(0.0, 1 - exposed / in_flight) if in_flight else 0.0,
        fallbacks=sum(_fallbacks(taot).values()),
        seconds=seconds,
    )


def mean_imbalance(row: Row) -> float:
    """Mean over the layers of one step."""
    return float(np.mean(list(row["imbalance"].values())))


def _mean_imbalance(run: RunLog) -> float:
    return float(np.mean([mean_imbalance(row) for row in run.steps[FIRST_COUNTED_STEP:]]))


def _fallbacks(run: RunLog) -> Counter[str]:
    total: Counter[str] = Counter()
    for row in run.steps:
        total.update(row["fallbacks"])
    return total


def render(static: RunLog, taot: RunLog, result: DemoResult) -> Group:
    """The closing tables for people."""
    return Group(
        "\nRank imbalance (max - mean) / mean, mean of the steps from the third on:",
        _layer_table(static, taot),
        "\nStatic expert parallelism against TAOT, same seed and data:",
        _result_table(static, taot, result),
        STEP_TIME_NOTE,
    )


def _layer_table(static: RunLog, taot: RunLog) -> Table:
    table = Table()
    for heading in ("layer", "static", "with TAOT"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for layer in static.steps[0]["imbalance"]:
        means = [np.mean([row["imbalance"][layer] for row in run.steps[FIRST_COUNTED_STEP:]]) for run in (static, taot)]
        table.add_row(layer, *(f"{mean:.1%}" for mean in means))
    return table


def _result_table(static: RunLog, taot: RunLog, result: DemoResult) -> Table:
    table = Table()
    for heading in ("", "static", "with TAOT"):
        table.add_column(heading, justify="left" if not heading else "right")
    num_plans = max(1, len(taot.steps) * len(taot.steps[0]["imbalance"]))
    step_seconds = [np.median([row["seconds"] for row in run.steps[FIRST_COUNTED_STEP:]]) for run in (static, taot)]
    table.add_row("loss, first step", *(f"{run.steps[0]['loss']:.6f}" for run in (static, taot)))
    table.add_row("loss, last step", *(f"{run.steps[-1]['loss']:.6f}" for run in (static, taot)))
    table.add_row("largest relative loss difference", "", f"{result.loss_max_relative_difference:.1e}")
    table.add_row("mean imbalance", f"{result.imbalance_static:.1%}", f"{result.imbalance_taot:.1%}")
    table.add_row("guests moved, intra / inter node", "", f"{result.guests_intra} / {result.guests_inter}")
    table.add_row("weighted cost per layer, step", "", f"{result.weighted_cost / num_plans:.2f}")
    planning_ms = [seconds * 1e3 for seconds in (result.planning_seconds_p50, result.planning_seconds_p99)]
    table.add_row("planning all layers, p50 / p99", "", f"{planning_ms[0]:.2f} / {planning_ms[1]:.2f} ms")
    table.add_row("transfers in flight, all ranks", "", f"{taot.end['transfer_seconds']:.2f} s")
    table.add_row("  hidden behind other work", "", f"{result.transfer_hidden_share:.1%}")
    table.add_row("passes without wanted guests", "", f"{result.fallbacks}")
    for reason, count in sorted(_fallbacks(taot).items()):
        table.add_row(f"  {reason}", "", f"{count}")
    table.add_row("median step time (*)", *(f"{seconds:.2f} s" for seconds in step_seconds))
    return table


def verdict(result: DemoResult) -> str:
    """One line that says what it means."""
    return (
        f"TAOT took the mean imbalance from {result.imbalance_static:.1%} to {result.imbalance_taot:.1%}"
        f" with the loss equal to {result.loss_max_relative_difference:.0e} relative, in {result.seconds:.0f} s."
    )

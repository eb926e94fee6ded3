"""What an agent has done since its start, for people: sums of its steps, and the table that shows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from rich.console import Group
from rich.table import Table

from taot_client.step_summary import StepSummary


@dataclass(frozen=True, kw_only=True)
class RankTotals:
    """What one rank has measured since its start."""

    flight_seconds: float = 0.0
    """Time during which a guest transfer was in flight."""

    exposed_seconds: float = 0.0
    """Time that training stood still for guests."""

    intra_node_sent_bytes: int = 0
    """Guest weights and gradients sent within the node."""

    inter_node_sent_bytes: int = 0
    """Guest weights and gradients sent across nodes."""

    @property
    def hidden_share(self) -> float:
        """1 - exposed / in flight; 1 where nothing was in flight."""
        return 1 - self.exposed_seconds / self.flight_seconds if self.flight_seconds else 1.0


@dataclass(eq=False)
class RunReport:
    """Adds up the summaries of steps; the same on all ranks."""

    title: str
    """What the agent was asked to do."""

    num_steps: int = 0
    """Steps added."""

    modes: Counter[str] = field(default_factory=Counter)
    """Steps of each mode."""

    guests: Counter[str] = field(default_factory=Counter)
    """Guests moved, `intra` and `inter` node."""

    weighted_cost: float = 0.0
    """Sum over moved guests of the cost of source -> guest rank."""

    fallbacks: Counter[str] = field(default_factory=Counter)
    """Passes through a layer that ran without guests that were wanted, by reason."""

    steps_off: Counter[str] = field(default_factory=Counter)
    """Steps for which a layer was switched off, since guests cost more than they gained."""

    _sums: dict[str, list[float]] = field(default_factory=dict)
    """Sums over steps of the static, planned and realised imbalance, and the number of steps, by layer."""

    def add(self, summary: StepSummary) -> None:
        """Adds a step."""
        self.num_steps += 1
        self.modes[summary.mode.name.lower()] += 1
        self.guests += Counter(intra=summary.guests_intra, inter=summary.guests_inter)
        self.weighted_cost += summary.weighted_cost
        self.fallbacks.update(summary.fallbacks)
        self.steps_off.update(summary.layers_off)
        for layer, static in summary.imbalance_static.items():
            sums = self._sums.setdefault(layer, [0.0] * 4)
            for place, value in enumerate((static, summary.imbalance_planned[layer], summary.imbalance[layer], 1.0)):
                sums[place] += value

    def imbalances(self) -> dict[str, tuple[float, ...]]:
        """Mean imbalance of each layer over its steps: static, planned, realised."""
        return {layer: tuple(total / sums[3] for total in sums[:3]) for layer, sums in self._sums.items()}

    def render(self, totals: RankTotals, planner: Mapping[str, object]) -> Group:
        """Tables for a terminal: `rich.print` shows them.

        Args:
            totals: of the rank that shows it.
            planner: what the leader knows of the planner; empty where there is none.
        """
        return Group(self._layer_table(), self._total_table(totals, planner))

    def _layer_table(self) -> Table:
        table = Table(title=f"{self.title}, {self.num_steps} steps", title_justify="left")
        table.add_column("imbalance of layer")
        for name in ("static", "planned", "realised", "steps off"):
            table.add_column(name, justify="right")
        rows = self.imbalances()
        for layer, row in rows.items():
            table.add_row(layer, *(f"{value:.1%}" for value in row), str(self.steps_off[layer]))
        if len(rows) > 1:
            means = np.mean(list(rows.values()), axis=0)
            table.add_section()
            table.add_row("mean", *(f"{value:.1%}" for value in means), "")
        return table

    def _total_table(self, totals: RankTotals, planner: Mapping[str, object]) -> Table:
        table = Table(show_header=False)
        table.add_column()
        table.add_column(justify="right")
        modes = ", ".join(f"{count} {mode}" for mode, count in self.modes.most_common())
        table.add_row("steps", modes or "none")
        table.add_row("guests moved, intra / inter node", f"{self.guests['intra']} / {self.guests['inter']}")
        per_layer = self.weighted_cost / max(1, self.num_steps * len(self._sums))
        table.add_row("weighted cost per layer and step", f"{per_layer:.2f}")
        table.add_row("transfers in flight, this rank", f"{totals.flight_seconds:.2f} s")
        table.add_row("  hidden behind other work", f"{totals.hidden_share:.1%}")
        sent = (totals.intra_node_sent_bytes, totals.inter_node_sent_bytes)
        table.add_row("guest bytes sent, intra / inter node", " / ".join(f"{each / 1e6:.1f} MB" for each in sent))
        table.add_row("passes without wanted guests", str(self.fallbacks.total()))
        for reason, count in self.fallbacks.most_common():
            table.add_row(f"  {reason}", str(count))
        for name in ("connected", "reconnects", "rejected_plans", "dropped_reports"):
            if name in planner:
                table.add_row(f"planner: {name.replace('_', ' ')}", str(planner[name]))
        return table

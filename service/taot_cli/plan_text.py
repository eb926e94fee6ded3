"""Plans as people read them: a table, and the way to each plan."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from taot_cli.plan_row import Row


def plan_table(rows: Sequence[Row]) -> Table:
    """One line per plan; guests themselves are in the JSON form only."""
    has_times = any(row["predicted_seconds"] is not None for row in rows)
    table = Table(title="Imbalance and guests", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.add_column("name", no_wrap=True)
    has_gaps = any(row["gap"] is not None for row in rows)
    headings = ("layer", "before", "after", "within", "in node", "across", "cost")
    for heading in (*headings, *(("gap",) if has_gaps else ()), *(("gain",) if has_times else ()), "time"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["layer"]),
            f"{row['imbalance_before']:.1%}",
            f"{row['imbalance_after']:.1%}",
            "yes" if row["tolerance_reached"] else "no",
            str(row["intra_guests"]),
            str(row["inter_guests"]),
            f"{row['weighted_cost']:g}",
            *(("" if row["gap"] is None else f"{row['gap']:.1%}",) if has_gaps else ()),
            *((_microseconds(_gain(row)),) if has_times else ()),
            _microseconds(row["planning_seconds"]),
        )
    return table


def explanation_lines(row: Row) -> list[str]:
    """How one plan came about, in a few lines."""
    lines = [
        f"{row['name']}, layer {row['layer']}: imbalance {row['imbalance_before']:.1%} -> {row['imbalance_after']:.1%},"
        f" cost {row['weighted_cost']:g} ({row['intra_guests']} in node, {row['inter_guests']} across)"
    ]
    if row["predicted_seconds"] is not None:
        before, after = (_microseconds(row[key]) for key in ("predicted_seconds_before", "predicted_seconds"))
        lines.append(f"  predicted   {before} -> {after}, gain {_microseconds(_gain(row))}")
    explanation = row["explanation"]
    lines.append(f"  gates       {', '.join(explanation['gates']) or 'none'}")
    for index, each in enumerate(explanation["considered"]):
        lines.append(
            f"  {'considered' if index == 0 else '':<10}{'*' if each['chosen'] else ' ':>2}{each['name']:<28}"
            f"imbalance {each['imbalance']:>6.1%}  cost {each['weighted_cost']:>4g}"
            f"{_objective_cell(row['objective']['name'], each['objective'])}"
        )
    return lines


def _objective_cell(name: str, value: float) -> str:
    """Empty for the tolerance, whose objective is the cost that stands before it."""
    if name == "tolerance":
        return ""
    return f"  {_microseconds(value)}" if name == "step_time" else f"  {name} {value:.4f}"


def _gain(row: Row) -> float:
    """Predicted time saved, in seconds; only where it is known."""
    return float(row["predicted_seconds_before"] - row["predicted_seconds"])


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us"

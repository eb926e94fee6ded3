"""A topology as a JSON file, for `taot plan --topology`.

One object; keys that are not listed here are refused, so that a typing error never passes unseen:

    levels       innermost first; the outermost joins all ranks. Each {"name": "node", "cost": 1,
                 "bandwidth_gb_per_second": 200}. Costs are relative to the innermost level, which costs 1; the
                 bandwidth, of one rank in 10^9 bytes per second, may be left out.
    ranks        one object per rank: {"domains": [0, 0], "slots": 2, "speed": 0.5, "token_cap": 40000}. `domains`
                 has one whole number per level, `speed` is relative to a normal rank and 1 when left out,
                 `token_cap` is the most tokens of one layer and micro-batch, without limit when left out.
    slots        guest experts of every rank that does not say its own; 2 when left out.
    cost_matrix  cost from rank (row) to rank (column), zero diagonal; replaces the costs of the levels. With it
                 `levels` may be left out, then all ranks are in one node; and `ranks` too, then all are alike.
    relay        true where ranks pass guests on; false when left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from taot_planning import Level, Topology
from taot_planning.arrays import IntArray
from taot_planning.topology import (
    INNERMOST_COST_MILLI,
    MAX_BANDWIDTH,
    MAX_COST_MILLI,
    MAX_TOKEN_CAP,
    NORMAL_SPEED_MILLI,
    SPEED_LIMITS_MILLI,
)

DEFAULT_SLOTS = 2
MAX_SLOTS = 2**31 - 1

GIGA = 10**9
"""Bytes in a gigabyte."""

_KEYS = ("levels", "ranks", "slots", "cost_matrix", "relay")
_LEVEL_KEYS = ("name", "cost", "bandwidth_gb_per_second")
_RANK_KEYS = ("domains", "slots", "speed", "token_cap")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different."""
    keys = [key for key, _ in pairs]
    repeated = next((key for key in keys if keys.count(key) > 1), None)
    if repeated is not None:
        raise ValueError(f"the key {repeated!r} is there twice")
    return dict(pairs)


def read_topology(path: Path) -> Topology:
    """Reads a topology.

    Raises:
        ValueError: naming the file, and the key, rank or cell that is wrong.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    try:
        return _topology(document)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _topology(document: Any) -> Topology:
    _check_keys(document, _KEYS, where="a topology")
    if "cost_matrix" not in document and not {"levels", "ranks"} <= document.keys():
        raise ValueError("a topology needs levels and ranks, or a cost_matrix")
    matrix_RR = _cost_matrix(document["cost_matrix"]) if "cost_matrix" in document else None
    ranks = _ranks(document, num_rows=0 if matrix_RR is None else len(matrix_RR))
    levels = _levels(document)
    relay = document.get("relay", False)
    if not isinstance(relay, bool):
        raise ValueError(f"relay must be true or false, got {_shown(relay)}")
    return Topology(
        levels=levels,
        domains_RV=_domains(ranks, num_levels=len(levels), are_given="levels" in document),
        slots_R=_slots(ranks, document),
        cost_matrix_milli=matrix_RR,
        speed_milli_R=_speeds(ranks),
        token_cap_R=_token_caps(ranks),
        has_relay=relay,
    )


def _ranks(document: dict[str, Any], *, num_rows: int) -> list[dict[str, Any]]:
    """One object per rank, empty ones where the ranks are told by the rows of a cost matrix alone."""
    ranks = _list(document.get("ranks", [{}] * num_rows), "ranks")
    if not ranks:
        raise ValueError("a topology needs at least one rank")
    if num_rows and num_rows != len(ranks):
        raise ValueError(f"cost_matrix has {num_rows} rows for {len(ranks)} ranks")
    for rank, entry in enumerate(ranks):
        _check_keys(entry, _RANK_KEYS, where=f"ranks[{rank}]")
    return ranks


def _levels(document: dict[str, Any]) -> tuple[Level, ...]:
    if "levels" not in document:
        return (Level(name="node", transfer_cost_milli=INNERMOST_COST_MILLI),)
    return tuple(_level(entry, f"levels[{index}]") for index, entry in enumerate(_list(document["levels"], "levels")))


def _level(entry: Any, where: str) -> Level:
    _check_keys(entry, _LEVEL_KEYS, where=where)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError(f"{where}.name must be a text, got {_shown(name)}")
    cost = _number(entry.get("cost"), f"{where}.cost", least=1, most=MAX_COST_MILLI // 1000)
    bandwidth = None
    if entry.get("bandwidth_gb_per_second") is not None:
        key = f"{where}.bandwidth_gb_per_second"
        gigabytes = _number(entry["bandwidth_gb_per_second"], key, least=1e-9, most=MAX_BANDWIDTH // GIGA)
        bandwidth = round(gigabytes * GIGA)
    return Level(name=name, transfer_cost_milli=round(cost * 1000), bandwidth_bytes_per_second=bandwidth)


def _domains(ranks: list[dict[str, Any]], *, num_levels: int, are_given: bool) -> IntArray:
    """Domains of each rank; all in one where there are no levels. Shape: [ranks, levels]."""
    rows = []
    for rank, entry in enumerate(ranks):
        key = f"ranks[{rank}].domains"
        if not are_given:
            if "domains" in entry:
                raise ValueError(f"{key} needs levels")
            rows.append([0])
            continue
        domains = _list(entry.get("domains"), key)
        if len(domains) != num_levels:
            raise ValueError(f"{key} must have one domain per level ({num_levels}), got {len(domains)}")
        rows.append([_whole(domain, f"{key}[{level}]", most=2**31 - 1) for level, domain in enumerate(domains)])
    return np.array(rows, dtype=np.int64)


def _slots(ranks: list[dict[str, Any]], document: dict[str, Any]) -> IntArray:
    usual = _whole(document.get("slots", DEFAULT_SLOTS), "slots", most=MAX_SLOTS)
    slots = [
        _whole(entry.get("slots", usual), f"ranks[{rank}].slots", most=MAX_SLOTS) for rank, entry in enumerate(ranks)
    ]
    return np.array(slots, dtype=np.int64)


def _speeds(ranks: list[dict[str, Any]]) -> IntArray | None:
    """In thousandths, None where no rank says its own. Shape: [ranks]."""
    if not any("speed" in entry for entry in ranks):
        return None
    least, most = (limit / NORMAL_SPEED_MILLI for limit in SPEED_LIMITS_MILLI)
    speeds = [
        _number(entry.get("speed", 1), f"ranks[{rank}].speed", least=least, most=most)
        for rank, entry in enumerate(ranks)
    ]
    return np.array([round(speed * NORMAL_SPEED_MILLI) for speed in speeds], dtype=np.int64)


def _token_caps(ranks: list[dict[str, Any]]) -> IntArray | None:
    """None where no rank says its own. Shape: [ranks]."""
    if all(entry.get("token_cap") is None for entry in ranks):
        return None
    caps = [
        MAX_TOKEN_CAP
        if entry.get("token_cap") is None
        else _whole(entry["token_cap"], f"ranks[{rank}].token_cap", most=MAX_TOKEN_CAP)
        for rank, entry in enumerate(ranks)
    ]
    return np.array(caps, dtype=np.int64)


def _cost_matrix(value: Any) -> IntArray:
    """In thousandths. Shape: [ranks, ranks]."""
    rows = _list(value, "cost_matrix")
    matrix_RR = np.zeros((len(rows), len(rows)), dtype=np.int64)
    for row, cells in enumerate(rows):
        if not isinstance(cells, list) or len(cells) != len(rows):
            got = f"{len(cells)} cells" if isinstance(cells, list) else _shown(cells)
            raise ValueError(f"cost_matrix[{row}] must have {len(rows)} cells, as there are rows, got {got}")
        for column, cell in enumerate(cells):
            key = f"cost_matrix[{row}][{column}]"
            if row == column:
                _number(cell, f"{key}, on the diagonal,", least=0, most=0)
            else:
                matrix_RR[row, column] = round(_number(cell, key, least=0.001, most=MAX_COST_MILLI // 1000) * 1000)
    return matrix_RR


def _check_keys(entry: Any, known: tuple[str, ...], *, where: str) -> None:
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be an object with {', '.join(known)}, got {_shown(entry)}")
    for key in entry:
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {where}: the keys are {', '.join(known)}")


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{key} must be a list, got {_shown(value)}")
    return value


def _whole(value: Any, key: str, *, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{key} must be a whole number from 0 to {most}, got {_shown(value)}")
    return value


def _number(value: Any, key: str, *, least: float, most: float) -> float:
    # NaN is neither above nor below anything, so that this refuses it.
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        wanted = f"{least:g}" if least == most else f"a number from {least:g} to {most:g}"
        raise ValueError(f"{key} must be {wanted}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    """A value as JSON writes it, not longer than a line."""
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

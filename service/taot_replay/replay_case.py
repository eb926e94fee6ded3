"""What a replay compares: an algorithm, where its counts come from, and how many guest slots it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taot_planning import ALGORITHMS

AHEAD = "ahead"
AHEAD_INLINE = "ahead+inline"
INLINE = "inline"

SOURCES = (AHEAD, AHEAD_INLINE, INLINE)
"""Where counts come from.

ahead: placed from the last micro-batch of the step before, tokens split as they come.
ahead+inline: the same, but a layer that turns out stale is placed again from the micro-batch at hand.
inline: placed and split from the micro-batch at hand.
"""

STATIC = "static"

NO_SOURCE = "-"


@dataclass(frozen=True, kw_only=True)
class ReplayCase:
    """One line of a comparison."""

    algorithm: str
    """A name of `ALGORITHMS`."""

    source: str
    """One of `SOURCES`, `-` for `static`, which needs no counts."""

    num_slots: int
    """Guest slots of every rank and layer."""


def make_cases(*, algorithms: Sequence[str], sources: Sequence[str], slots: Sequence[int]) -> list[ReplayCase]:
    """Every combination, by algorithm, source and slots; `static` once.

    Raises:
        ValueError: if a list is empty or repeats itself, or an entry is unknown or out of range.
    """
    for name, entries, known in (
        ("algorithm", algorithms, tuple(sorted(ALGORITHMS))),
        ("source", sources, SOURCES),
        ("slots", [str(each) for each in slots], None),
    ):
        if not entries or len(set(entries)) != len(entries):
            raise ValueError(f"{name}: give one or more different entries, got {', '.join(entries) or 'none'}")
        unknown = [entry for entry in entries if known is not None and entry not in known]
        if unknown and known is not None:
            raise ValueError(f"unknown {name} {unknown[0]!r}: choose from {', '.join(known)}")
    if min(slots) < 0:
        raise ValueError(f"slots must be >= 0, got {min(slots)}")
    cases = []
    for algorithm in algorithms:
        if algorithm == STATIC:
            cases.append(ReplayCase(algorithm=STATIC, source=NO_SOURCE, num_slots=0))
            continue
        cases += [
            ReplayCase(algorithm=algorithm, source=source, num_slots=each) for source in sources for each in slots
        ]
    return cases

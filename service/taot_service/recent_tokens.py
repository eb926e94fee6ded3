"""Tokens per expert in the newest reports of a session, which a placement should hold for as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from taot_api.layer_counts import blocks_of
from taot_api.routing_report import RoutingReport
from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class _Entry:
    source: tuple[int, int]
    """Step and micro-batch."""

    tokens: list[IntArray]
    """Tokens of each expert, one [layers, experts] array for each of the blocks of the counts."""


class EarlierTokens(Sequence[IntArray]):
    """Tokens of each expert in some reports: one [reports, experts] array per layer, made when somebody asks."""

    def __init__(self, entries: Sequence[_Entry], report: RoutingReport) -> None:
        """Of reports of the same layers as `report`."""
        self._entries, self._counts_L = entries, report.counts_L

    def __len__(self) -> int:
        return len(self._counts_L)

    @overload
    def __getitem__(self, index: int) -> IntArray: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[IntArray, ...]: ...
    def __getitem__(self, index: int | slice) -> IntArray | tuple[IntArray, ...]:
        return self._tokens_L[index]

    @cached_property
    def _tokens_L(self) -> tuple[IntArray, ...]:
        tokens_L: dict[int, IntArray] = {}
        for index, block in enumerate(blocks_of(self._counts_L)):
            num_layers, _, num_experts = block.counts_LRE.shape
            tokens_LNE = np.empty((num_layers, len(self._entries), num_experts), dtype=np.int64)
            for place, entry in enumerate(self._entries):
                tokens_LNE[:, place] = entry.tokens[index]
            tokens_LNE.setflags(write=False)  # so that problems take over each layer's part instead of copying it
            tokens_L.update(zip(block.layers, tokens_LNE, strict=True))
        return tuple(tokens_L[layer] for layer in range(len(tokens_L)))


class RecentTokens:
    """Remembers the newest reports by step and micro-batch, whatever the order in which they come."""

    def __init__(self, *, capacity: int) -> None:
        self._capacity = capacity
        self._entries: list[_Entry] = []
        """Newest first."""

    def add(self, report: RoutingReport) -> None:
        """Remembers a report of training tokens; past the capacity the oldest is forgotten."""
        if not self._capacity:
            return
        tokens = [block.tokens_LE for block in blocks_of(report.counts_L)]
        self._entries.append(_Entry(source=(report.step, report.micro_batch), tokens=tokens))
        self._entries.sort(key=lambda entry: entry.source, reverse=True)
        del self._entries[self._capacity :]

    def before(self, report: RoutingReport) -> Sequence[IntArray]:
        """Tokens of each expert in the reports before this one, newest first.

        Returns:
            One [micro-batches, experts] array per layer, without rows before the second report; no array at all
            when nothing is to be remembered.
        """
        if not self._capacity:
            return ()
        source = (report.step, report.micro_batch)
        return EarlierTokens([entry for entry in self._entries if entry.source < source], report)

"""How fast guest weights arrive at one rank, by level of the topology."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from taot_client.transfers.shipment import Shipment

_MAX_PENDING = 512
"""Batches kept until the device has passed them; what is older is left out of the rates."""


@dataclass(frozen=True, kw_only=True)
class LinkTotals:
    """What has arrived since the start."""

    microseconds_V: tuple[int, ...]
    """Time during which at least one transfer of the level was under way. Shape: [levels]."""

    bytes_V: tuple[int, ...]
    """Bytes of these transfers. Shape: [levels]."""


@dataclass(frozen=True)
class _Batch:
    began: torch.cuda.Event
    ended: torch.cuda.Event
    bytes_V: list[int]


class LinkMeter:
    """Adds up what a rank receives as if one transfer followed the other, as `step_time` predicts it.

    A receive counts from its posting, or from the end of the one before it at the same level. Time that the receiver
    waits for a peer that has not come so far is part of it: where guests are sent for, ranks have just met. Gradients
    are left out, since their receives are posted long before they exist.
    """

    def __init__(self, level_R: Sequence[int], *, num_levels: int, now: Callable[[], float] = time.monotonic) -> None:
        """Knows the level between this rank and every other. Shape of `level_R`: [ranks]."""
        self._level_R = level_R
        self._now = now
        self._lock = threading.Lock()
        self._until_V = [0.0] * num_levels
        self._seconds_V = [0.0] * num_levels
        self._bytes_V = [0] * num_levels
        self._pending: deque[_Batch] = deque(maxlen=_MAX_PENDING)

    def expect(self, shipment: Shipment) -> Callable[[], None]:
        """Notes that a receive has been posted; what it returns is called when it has ended, from any thread."""
        level, num_bytes, posted = self._level_R[shipment.peer], shipment.buffer.numel(), self._now()

        def arrive() -> None:
            with self._lock:
                now = self._now()
                self._seconds_V[level] += now - max(posted, self._until_V[level])
                self._until_V[level] = now
                self._bytes_V[level] += num_bytes

        return arrive

    def add_batch(self, shipments: Sequence[Shipment], *, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """Notes what a stream receives between two events; a batch counts in full at each of its levels."""
        bytes_V = [0] * len(self._bytes_V)
        for shipment in shipments:
            if shipment.is_receive:
                bytes_V[self._level_R[shipment.peer]] += shipment.buffer.numel()
        if any(bytes_V):
            self._pending.append(_Batch(began, ended, bytes_V))

    def totals(self) -> LinkTotals:
        """What has arrived so far. Never waits."""
        with self._lock:
            while self._pending and self._pending[0].ended.query():
                batch = self._pending.popleft()
                seconds = batch.began.elapsed_time(batch.ended) / 1e3
                for level, num_bytes in enumerate(batch.bytes_V):
                    self._bytes_V[level] += num_bytes
                    self._seconds_V[level] += seconds if num_bytes else 0.0
            return LinkTotals(
                microseconds_V=tuple(round(seconds * 1e6) for seconds in self._seconds_V), bytes_V=tuple(self._bytes_V)
            )

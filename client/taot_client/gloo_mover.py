"""Moves buffers with gloo: posted from the training thread, progressed and completed in the background."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from taot_client.shipment import Shipment, TransferClock

PIECE_BYTES = 4 * 1024 * 1024
"""Largest message: bigger ones keep a pair of ranks busy for so long that others starve."""


@dataclass(eq=False)
class _Flight:
    """The works of one shipment; completed by a watcher thread, since gloo's own works do not tell."""

    clock: TransferClock
    works: list[dist.Work] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    error: RuntimeError | None = None

    def is_done(self) -> bool:
        return self.ended.is_set() and self.error is None

    def wait(self, timeout_seconds: float) -> bool:
        ended = self.ended.wait(timeout_seconds)
        if self.error is not None:
            raise self.error
        return ended

    def complete(self) -> None:
        try:
            for work in self.works:
                work.wait()
        except RuntimeError as error:
            self.error = self.error or error
        finally:
            self.works.clear()  # they hold the buffers
            self.clock.arrive()
            self.ended.set()


class GlooMover:
    """Carries shipments over a gloo group. One watcher thread per direction waits for them in order."""

    def __init__(self, group: dist.ProcessGroup, *, clock: TransferClock, name: str) -> None:
        self._group = group
        self._clock = clock
        self._posted: list[Shipment] = []
        self._queues: dict[bool, queue.SimpleQueue[_Flight | None]] = {}
        for is_receive in (True, False):
            self._queues[is_receive] = queue.SimpleQueue()
            watcher = threading.Thread(
                target=self._watch,
                args=(self._queues[is_receive],),
                name=f"taot-{name}-{'receives' if is_receive else 'sends'}",
                daemon=True,
            )
            watcher.start()

    def post(self, shipments: list[Shipment]) -> None:
        """Posts all receives before the first send: sends to a rank that is receiving already start at once.

        What cannot be posted, since the peer has gone, fails when it is waited for.
        """
        self._posted = [each for each in self._posted if not each.is_done()]
        for shipment in sorted(shipments, key=lambda each: not each.is_receive):
            self._clock.depart()
            flight = _Flight(clock=self._clock)
            shipment.completion = flight
            transfer = self._group.recv if shipment.is_receive else self._group.send
            try:
                for piece in torch.split(shipment.buffer, PIECE_BYTES):
                    flight.works.append(transfer([piece], shipment.peer, shipment.tag))
            except RuntimeError as error:
                flight.error = error
            self._posted.append(shipment)
            self._queues[shipment.is_receive].put(flight)

    def drain(self, timeout_seconds: float) -> None:
        """Waits until every posted transfer has completed."""
        while self._posted:
            self._posted[0].wait(timeout_seconds)
            self._posted.pop(0)

    def close(self) -> None:
        """Lets the watcher threads end once they have seen what was posted."""
        for each in self._queues.values():
            each.put(None)

    def _watch(self, flights: queue.SimpleQueue[_Flight | None]) -> None:
        while (flight := flights.get()) is not None:
            flight.complete()

"""Moves buffers of a GPU with gloo, through pinned memory of the host: where ranks have no NCCL between them.

That is so where several ranks share one GPU, and in jobs whose own groups are gloo groups. The host's copies are made
by a thread of their own, so that the training thread waits neither for the device nor for the network.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from taot_client.measuring.link_meter import LinkMeter
from taot_client.transfers.gloo_mover import GlooMover
from taot_client.transfers.shipment import Shipment, TransferClock


@dataclass(eq=False)
class _Stop:
    """One shipment's stop on the host."""

    device_buffer: torch.Tensor
    on_host: Shipment
    is_posted: threading.Event = field(default_factory=threading.Event)
    has_landed: bool = False
    error: RuntimeError | None = None

    def is_done(self) -> bool:
        if not (self.is_posted.is_set() and self.on_host.is_done()):
            return False
        self._land()
        return True

    def wait(self, timeout_seconds: float) -> bool:
        if not self.is_posted.wait(timeout_seconds):
            return False
        if self.error is not None:
            raise self.error
        completion = self.on_host.completion
        assert completion is not None, "a posted shipment has a completion"
        if not completion.wait(timeout_seconds):
            return False
        self._land()
        return True

    def _land(self) -> None:
        """Copies what has been received to the device, in the order of the stream that asks for it."""
        if self.on_host.is_receive and not self.has_landed:
            self.device_buffer.copy_(self.on_host.buffer, non_blocking=True)
        self.has_landed = True


class StagedMover:
    """Carries shipments over a gloo group, from device to device by way of the host."""

    def __init__(
        self, group: dist.ProcessGroup, *, clock: TransferClock, name: str, links: LinkMeter | None = None
    ) -> None:
        self._mover = GlooMover(group, clock=clock, name=name, links=links)
        self._posted: list[Shipment] = []
        self._batches: queue.SimpleQueue[tuple[list[_Stop], Callable[[], None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._stage, name=f"taot-{name}-staging", daemon=True).start()

    def post(self, shipments: list[Shipment]) -> None:
        """Copies what is sent to the host, behind what the current stream has been given so far, then posts it."""
        self._posted = [each for each in self._posted if not each.is_done()]
        stops = []
        # What is passed on follows what it consists of.
        for shipment in sorted(shipments, key=lambda each: bool(each.after)):
            shipment.completion = _Stop(shipment.buffer, _on_host(shipment))
            stops.append(shipment.completion)
        self._posted += shipments
        self._batches.put((stops, _end_of_stream(shipments)))

    def drain(self, timeout_seconds: float) -> None:
        """Waits until every posted transfer has completed."""
        while self._posted:
            self._posted[0].wait(timeout_seconds)
            self._posted.pop(0)

    def close(self) -> None:
        """Lets the threads end once they have seen what was posted."""
        self._batches.put(None)

    def _stage(self) -> None:
        while (batch := self._batches.get()) is not None:
            stops, end_of_copies = batch
            try:
                end_of_copies()
                self._mover.post([stop.on_host for stop in stops])
            except RuntimeError as error:  # of the device, or of the group: told to whoever waits
                for stop in stops:
                    stop.error = error
            for stop in stops:
                stop.is_posted.set()
        self._mover.close()


def _on_host(shipment: Shipment) -> Shipment:
    """The same shipment with a buffer of the host; what is passed on does not touch the device in between."""
    after = tuple(_stop_of(each).on_host for each in shipment.after)
    if after and shipment.prepare is None:
        return replace(shipment, buffer=after[0].buffer, after=after, completion=None)
    is_on_device = shipment.buffer.device.type == "cuda"
    buffer = torch.empty(shipment.buffer.shape, dtype=torch.uint8, pin_memory=is_on_device)
    if not shipment.is_receive:
        buffer.copy_(shipment.buffer, non_blocking=True)
    return replace(shipment, buffer=buffer, after=after, completion=None)


def _stop_of(shipment: Shipment) -> _Stop:
    assert isinstance(shipment.completion, _Stop), "this mover has posted it"
    return shipment.completion


def _end_of_stream(shipments: list[Shipment]) -> Callable[[], None]:
    """Waits, in another thread, for what the current stream has been given so far."""
    if not any(shipment.buffer.device.type == "cuda" for shipment in shipments):
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize

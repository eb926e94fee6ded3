"""Moves buffers with NCCL: enqueued from the training thread on a side stream, completed by CUDA events.

Every rank posts at the same points of the program, so that the operations of a communicator match.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from taot_client.measuring.link_meter import LinkMeter
from taot_client.transfers.shipment import Shipment

MAX_BATCH_OPERATIONS = 256
"""Larger batches of point-to-point operations have been seen to hang (pytorch issue 174288)."""


@dataclass(frozen=True)
class _Arrival:
    """The point on the side stream behind which a shipment has completed."""

    event: torch.cuda.Event

    def is_done(self) -> bool:
        return bool(self.event.query())

    def wait(self, timeout_seconds: float) -> bool:
        # The stream waits, not the host: the process group's own watchdog bounds a transfer that never ends.
        del timeout_seconds
        torch.cuda.current_stream().wait_event(self.event)
        return True


class NcclMover:
    """Carries shipments over an NCCL group, in batches that match on all ranks.

    The host neither waits nor times: `Shipment.wait` and `drain` make the current stream wait, and a transfer that
    never ends is ended by the process group's own timeout.
    """

    def __init__(self, group: dist.ProcessGroup, *, device: torch.device, links: LinkMeter | None = None) -> None:
        self._group = group
        self._links = links
        self._stream = torch.cuda.Stream(device)
        # NCCL builds a communicator at its first use, which every rank must join.
        dist.all_reduce(torch.zeros(1, device=device), group=group)

    def post(self, shipments: list[Shipment]) -> None:
        """Enqueues the transfers in batches, behind what the current stream has been given so far.

        What is passed on goes into batches of its own, behind what it consists of.
        """
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for stage in sorted({each.stage for each in shipments}):
                of_stage = [each for each in shipments if each.stage == stage]
                for shipment in of_stage:
                    shipment.buffer.record_stream(self._stream)
                    if shipment.prepare is not None:
                        shipment.prepare(shipment)
                for start in range(0, len(of_stage), MAX_BATCH_OPERATIONS):
                    self._post_batch(of_stage[start : start + MAX_BATCH_OPERATIONS])

    def _post_batch(self, batch: list[Shipment]) -> None:
        operations = [
            dist.P2POp(
                dist.irecv if shipment.is_receive else dist.isend,
                shipment.buffer,
                group=self._group,
                group_peer=shipment.peer,
            )
            for shipment in batch
        ]
        began, event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record(self._stream)
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        event.record(self._stream)
        if self._links is not None:
            self._links.add_batch(batch, began=began, ended=event)
        for shipment in batch:
            shipment.completion = _Arrival(event)

    def drain(self, timeout_seconds: float) -> None:
        """Makes what the current stream is given next wait for everything that was posted."""
        del timeout_seconds
        torch.cuda.current_stream().wait_stream(self._stream)

    def close(self) -> None:
        """Nothing to stop: the stream ends with its owner."""

"""How the guests of one layer are addressed on the wire."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from taot_client.expert_layout import ExpertLayout
from taot_client.options import MAX_SLOTS
from taot_client.shipment import Cargo, Shipment
from taot_client.transfer_schedule import Move


@dataclass(frozen=True, kw_only=True)
class LayerRoute:
    """What both directions of a layer's transfers have in common."""

    rank: int
    """This rank."""

    layer: int
    """Index of the layer in forward order."""

    name: str
    """Its name, for errors."""

    layout: ExpertLayout
    """How an expert lies in a buffer."""

    device: torch.device
    """Where the experts live."""

    def new_buffer(self) -> torch.Tensor:
        """Memory for one expert with its label."""
        return torch.empty(self.layout.buffer_bytes, dtype=torch.uint8, device=self.device)

    def weights(self, move: Move, buffer: torch.Tensor, *, step: int) -> Shipment:
        """This rank's end of a guest's way out, from home to guest rank."""
        return self._shipment("weights", move, buffer, step=step, sender=move.home, receiver=move.rank)

    def gradient(self, move: Move, buffer: torch.Tensor, *, step: int) -> Shipment:
        """This rank's end of a gradient's way home."""
        return self._shipment("gradient", move, buffer, step=step, sender=move.rank, receiver=move.home)

    def _shipment(
        self, kind: str, move: Move, buffer: torch.Tensor, *, step: int, sender: int, receiver: int
    ) -> Shipment:
        is_receive = receiver == self.rank
        return Shipment(
            cargo=Cargo(kind=kind, expert=move.expert, layer=self.name, step=step),
            peer=sender if is_receive else receiver,
            tag=self.layer * MAX_SLOTS + move.slot,
            buffer=buffer,
            is_receive=is_receive,
        )

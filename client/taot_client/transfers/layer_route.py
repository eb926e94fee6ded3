"""How the guests of one layer are addressed on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from taot_client.options import MAX_SLOTS
from taot_client.transfers.expert_layout import ExpertLayout
from taot_client.transfers.shipment import Cargo, Shipment
from taot_client.transfers.transfer_schedule import Move


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

    is_labelled: bool
    """Whether buffers say whose content they hold. Reading or writing a label on a GPU would stop it."""

    def new_buffer(self) -> torch.Tensor:
        """Memory for one expert with its label."""
        return torch.empty(self.layout.buffer_bytes, dtype=torch.uint8, device=self.device)

    def pack(self, tensors: Sequence[torch.Tensor], *, expert: int, epoch: int, with_checksum: bool) -> torch.Tensor:
        """Copies an expert's tensors into a new buffer."""
        buffer = self.new_buffer()
        self.layout.fill(buffer, tensors)
        if self.is_labelled:
            checksum = self.layout.checksum(buffer) if with_checksum else 0
            self.layout.write_label(buffer, self.layer, expert, epoch, checksum)
        return buffer

    def check_label(
        self, buffer: torch.Tensor, *, expert: int, epoch: int, read: Callable[[], tuple[int, ...]] | None = None
    ) -> None:
        """Checks that a buffer holds what it should; `read` is its `ExpertLayout.label_reader` where there is one.

        Raises:
            RuntimeError: saying what it holds instead, or that its content changed on the way.
        """
        if not self.is_labelled:
            return
        layer, at_hand, its_epoch, checksum = self.layout.read_label(buffer) if read is None else read()
        if layer != self.layer or at_hand != expert or its_epoch != epoch:
            raise RuntimeError(
                f"a buffer for (layer, expert, weight epoch) {[self.layer, expert, epoch]} of layer {self.name!r}"
                f" holds {[layer, at_hand, its_epoch]}"
            )
        if checksum and checksum != self.layout.checksum(buffer):
            raise RuntimeError(f"expert {expert} of layer {self.name!r} changed between send and use")

    def weights(self, move: Move, buffer: torch.Tensor, *, step: int) -> Shipment:
        """This rank's end of a guest's way out, from its source to its rank."""
        return self._shipment("weights", move, buffer, step=step, stage=move.stage)

    def gradient(self, move: Move, buffer: torch.Tensor, *, step: int) -> Shipment:
        """This rank's end of a gradient's way home, from the guest's rank to its source."""
        return self._shipment("gradient", move, buffer, step=step, stage=int(move.is_relay))

    def _shipment(self, kind: str, move: Move, buffer: torch.Tensor, *, step: int, stage: int) -> Shipment:
        sender, receiver = (move.source, move.rank) if kind == "weights" else (move.rank, move.source)
        is_receive = receiver == self.rank
        return Shipment(
            cargo=Cargo(kind=kind, expert=move.expert, layer=self.name, step=step),
            peer=sender if is_receive else receiver,
            # Stages have tags of their own: what is passed on may leave later than what was posted after it.
            tag=(2 * self.layer + stage) * MAX_SLOTS + move.slot,
            buffer=buffer,
            is_receive=is_receive,
            stage=stage,
        )

"""The memory of one rank's guest slots: allocated once, with slots for every layer or two sets for all of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from taot_client.options import SlotResidency
from taot_client.transfers.layer_route import LayerRoute

NUM_SHARED_SETS = 2
"""Guests of one layer compute while those of the next are on their way."""


class GuestMemory:
    """Sets of slot buffers, which the layers use in turn; as many sets as layers where every layer has its own."""

    def __init__(self, routes: Sequence[LayerRoute], *, num_slots: int, residency: SlotResidency) -> None:
        """Allocates all of it.

        Args:
            routes: those of all layers, in forward order.
            num_slots: guests of one layer that a rank can hold.
            residency: see `SlotResidency`.
        """
        num_layers = len(routes)
        self._routes = routes
        self.num_sets = num_layers if residency == "resident" else min(NUM_SHARED_SETS, num_layers)
        self._sets = []
        for index in range(self.num_sets):
            num_bytes = max(route.layout.buffer_bytes for route in routes[index :: self.num_sets])
            device = routes[index].device
            # Zeros, so that nothing is ever read that nobody has written.
            self._sets.append(
                [torch.zeros(num_bytes, dtype=torch.uint8, device=device) for _ in range(num_slots)],
            )

    def buffers_of(self, layer: int) -> list[torch.Tensor]:
        """The slot buffers of a layer, in its own length; layers of one set get the same memory."""
        num_bytes = self._routes[layer].layout.buffer_bytes
        return [buffer[:num_bytes] for buffer in self._sets[layer % self.num_sets]]

    @property
    def num_bytes(self) -> int:
        """Bytes allocated on this rank."""
        return sum(buffer.numel() for buffers in self._sets for buffer in buffers)

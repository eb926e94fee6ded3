"""What the leader tells all ranks about the machine: rates, and the layers that have no guests."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property

from taot_api import MeasuredRates
from taot_planning.layer_problem import MAX_TOKEN_PICOSECONDS
from taot_planning.topology import MAX_BANDWIDTH

NUM_LEVELS = 2
"""Levels of the topologies that ranks detect: the node, and all nodes."""


@dataclass(frozen=True, kw_only=True)
class StepGates:
    """Part of a step record, so that all ranks gate their guests alike. Empty: nothing is known, all layers are on."""

    token_picoseconds_L: tuple[int, ...] = ()
    """Time to compute one token in one expert, forward; 0 where unknown. Shape: [layers]."""

    bandwidth_V: tuple[int, ...] = (0,) * NUM_LEVELS
    """Bytes per second that a rank receives from within its node, and from other nodes; 0 where unknown."""

    is_off_L: tuple[bool, ...] = ()
    """Layers without guests. Shape: [layers]."""

    def is_off(self, layer: int) -> bool:
        """Whether a layer has no guests in this step."""
        return bool(self.is_off_L) and self.is_off_L[layer]

    @cached_property
    def measured(self) -> MeasuredRates:
        """The rates, within the limits of the contract."""
        return MeasuredRates(
            token_picoseconds_L=tuple(min(each, MAX_TOKEN_PICOSECONDS) for each in self.token_picoseconds_L),
            bandwidth_V=tuple(min(each, MAX_BANDWIDTH) for each in self.bandwidth_V),
        )

    def encode(self, *, num_layers: int) -> bytes:
        """Serializes; the same length for any content."""
        picoseconds_L = self.token_picoseconds_L or (0,) * num_layers
        is_off_L = self.is_off_L or (False,) * num_layers
        return _format(num_layers).pack(*self.bandwidth_V, *picoseconds_L, *is_off_L)

    @classmethod
    def decode(cls, data: bytes, *, offset: int, num_layers: int) -> StepGates:
        """Reads what `encode` wrote, from `offset` on."""
        values = _format(num_layers).unpack_from(data, offset)
        return cls(
            bandwidth_V=values[:NUM_LEVELS],
            token_picoseconds_L=values[NUM_LEVELS : NUM_LEVELS + num_layers],
            is_off_L=values[NUM_LEVELS + num_layers :],
        )

    @staticmethod
    def num_bytes(num_layers: int) -> int:
        """Length of what `encode` writes."""
        return _format(num_layers).size


def _format(num_layers: int) -> struct.Struct:
    return struct.Struct(f"<{NUM_LEVELS}q{num_layers}q{num_layers}?")

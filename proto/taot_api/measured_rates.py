"""What the ranks have measured of the machine they run on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taot_api.contract_error import ContractError, Reason
from taot_api.session_spec import SessionSpec
from taot_planning import LayerRates, Topology
from taot_planning.layer_problem import MAX_TOKEN_PICOSECONDS
from taot_planning.topology import MAX_BANDWIDTH


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """Rates for predictions only: plans do not depend on them. 0 stands for what is not known."""

    token_picoseconds_L: tuple[int, ...]
    """Time to compute one token in one expert, forward. Shape: [layers]."""

    bandwidth_V: tuple[int, ...]
    """Bytes per second that a rank receives over each level of the topology. Shape: [levels]."""

    def check(self, spec: SessionSpec) -> None:
        """Judges what a report holds.

        Raises:
            ContractError: naming the field.
        """
        limits = (
            ("token_picoseconds", self.token_picoseconds_L, len(spec.layers), MAX_TOKEN_PICOSECONDS),
            ("bandwidths_bytes_per_second", self.bandwidth_V, len(spec.topology.levels), MAX_BANDWIDTH),
        )
        for name, values, length, largest in limits:
            if len(values) != length:
                message = f"needs {length} entries, got {len(values)}"
                raise ContractError(Reason.INVALID_COUNTS, message, field=f"measured_rates.{name}")
            if values and not 0 <= min(values) <= max(values) <= largest:
                message = f"must be between 1 and {largest}, or 0 when unknown, got {min(values)} to {max(values)}"
                raise ContractError(Reason.INVALID_COUNTS, message, field=f"measured_rates.{name}")

    def rates(self, layer: int, *, expert_size_bytes: int) -> LayerRates | None:
        """The rates of a layer for planning; None where they are unknown."""
        picoseconds = self.token_picoseconds_L[layer] if self.token_picoseconds_L else 0
        if not picoseconds:
            return None
        return LayerRates(token_picoseconds=picoseconds, expert_size_bytes=expert_size_bytes)

    def topology(self, topology: Topology) -> Topology:
        """The topology with bandwidths, where at least one is known.

        A level that has not been measured counts as fast as the first that has: guests across it are tried, and then
        it is.
        """
        known = [bandwidth for bandwidth in self.bandwidth_V if bandwidth]
        if not known or len(topology.levels) != len(self.bandwidth_V):
            return topology
        levels = tuple(
            replace(level, bandwidth_bytes_per_second=bandwidth or known[0])
            for level, bandwidth in zip(topology.levels, self.bandwidth_V, strict=True)
        )
        return replace(topology, levels=levels)

"""One rank of a group whose peers are made up: its collectives and transfers return at once with what peers would say.

So nothing but the rank's own code takes time. What arrives is right in its form alone: activations are zeros, and the
weights and gradients of guests are whatever memory holds, behind the right label.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

from taot_client.agent_state import AgentState
from taot_client.groups import AgentGroups, ExpertParallelGroup
from taot_client.transfers.shipment import Mover, Shipment
from taot_planning.arrays import IntArray

LAYER = 2
"""Where a message of counts says which layer it is about."""

READY_BITS = 4
"""Where it says which guests have arrived."""

GRADIENT = -1
"""What the label of a gradient says in place of a weight epoch."""


class Done:
    """A work that has ended."""

    def wait(self) -> bool:
        """Returns at once."""
        return True


class ReadyGroup:
    """Stands for a process group of one rank."""

    def __init__(self, counts_LRE: IntArray, *, rank: int) -> None:
        """Peers have routed `counts_LRE`, [layers, ranks, experts], and all guests they wait for have arrived."""
        self._counts_LRE = torch.from_numpy(counts_LRE)
        self._rank = rank
        self.record: Callable[[], bytes] | None = None
        """What the leader broadcasts, where it is not what this rank offers."""

    def _allgather_base(self, gathered: torch.Tensor, message: torch.Tensor) -> Done:
        """Peers say what this rank says, except for their counts."""
        rows = gathered.view(-1, message.numel())
        rows.copy_(message.expand_as(rows))
        num_experts = self._counts_LRE.shape[2]
        if message.dtype == torch.int64 and message.numel() > num_experts:
            rows[:, -num_experts:] = self._counts_LRE[int(message[LAYER])]
            rows[:, READY_BITS] = 2**62 - 1
            rows[self._rank] = message
        return Done()

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Done:
        """The leader says what this rank has offered, or the made-up record."""
        del options
        if self.record is not None:
            tensors[0].copy_(torch.frombuffer(bytearray(self.record()), dtype=torch.uint8))
        return Done()

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, output_splits: list[int], given_splits: list[int]
    ) -> Done:
        """Peers send zeros."""
        del given, output_splits, given_splits
        output.zero_()
        return Done()

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Done:
        """Sent at once."""
        del tensors, peer, tag
        return Done()

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Done:
        """Arrived at once; see `LabellingMover` for the label."""
        del tensors, peer, tag
        return Done()

    def expert_parallel(self) -> ExpertParallelGroup:
        """The group of a layer."""
        group = cast(dist.ProcessGroup, self)
        return ExpertParallelGroup(rank=self._rank, size=self._counts_LRE.shape[1], tokens=group, counts=group)

    def agent_groups(self) -> AgentGroups:
        """The groups of the agent."""
        group = cast(dist.ProcessGroup, self)
        return AgentGroups(control=group, weights=group, gradients=group)


class LabellingMover:
    """Lets a real mover post, and writes the label of what a peer would have sent."""

    def __init__(self, mover: Mover, state: AgentState) -> None:
        self._mover = mover
        self._state = state

    def post(self, shipments: list[Shipment]) -> None:
        """See `Mover`."""
        self.label(shipments)
        self._mover.post(shipments)

    def label(self, shipments: list[Shipment]) -> None:
        """Writes the labels of receives."""
        layers = {layer.route.name: layer.route for layer in self._state.layers}
        for shipment in shipments:
            if shipment.is_receive:
                route = layers[shipment.cargo.layer]
                epoch = self._state.weight_epoch if shipment.cargo.kind == "weights" else GRADIENT
                label = torch.tensor([route.layer, shipment.cargo.expert, epoch, 0])
                route.layout.label(shipment.buffer.data).copy_(label)

    def drain(self, timeout_seconds: float) -> None:
        """See `Mover`."""
        self._mover.drain(timeout_seconds)

    def close(self) -> None:
        """See `Mover`."""
        self._mover.close()

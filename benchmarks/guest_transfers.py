"""Movers that watch or replace the agent's own: what was shipped, how long it takes alone, and training without it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import torch

from taot_client.agent_state import AgentState
from taot_client.groups import ExpertParallelGroup
from taot_client.transfers.shipment import Mover, Shipment

GRADIENT = -1
"""What the label of a gradient says in place of a weight epoch."""

DRAIN_SECONDS = 60.0


class WatchingMover:
    """Lets a real mover carry shipments, and remembers those of the step at hand."""

    def __init__(self, mover: Mover, state: AgentState) -> None:
        self.mover = mover
        self.posted: list[Shipment] = []
        """What has been posted, without content."""

        self.crossed_bytes: Counter[str] = Counter()
        """Bytes sent to other nodes so far, by kind of cargo."""

        self._nodes_R = state.topology.nodes_R
        self._rank = state.group.rank

    def post(self, shipments: list[Shipment]) -> None:
        """See `Mover`."""
        self.mover.post(shipments)
        self.posted += [replace(each, buffer=each.buffer.to("meta"), completion=None) for each in shipments]
        for each in shipments:
            if not each.is_receive and self._nodes_R[each.peer] != self._nodes_R[self._rank]:
                self.crossed_bytes[each.cargo.kind] += each.buffer.numel()

    def drain(self, timeout_seconds: float) -> None:
        """See `Mover`."""
        self.mover.drain(timeout_seconds)

    def close(self) -> None:
        """See `Mover`."""
        self.mover.close()


class _Ended:
    """A transfer that takes no time."""

    @staticmethod
    def is_done() -> bool:
        return True

    @staticmethod
    def wait(timeout_seconds: float) -> bool:
        del timeout_seconds
        return True


class InPlaceMover:
    """Carries nothing: what would arrive is taken to be there already.

    Weights are filled once with small numbers, gradients with zeros: the experts compute as much as with real ones.
    """

    def __init__(self, state: AgentState) -> None:
        self._state = state
        self._filled: set[int] = set()

    def post(self, shipments: list[Shipment]) -> None:
        """See `Mover`."""
        routes = {layer.route.name: layer.route for layer in self._state.layers}
        for shipment in shipments:
            shipment.completion = _Ended()
            if not shipment.is_receive:
                continue
            route, buffer = routes[shipment.cargo.layer], shipment.buffer.data
            is_weights = shipment.cargo.kind == "weights"
            if not is_weights:
                buffer.zero_()
            elif buffer.data_ptr() not in self._filled:
                self._filled.add(buffer.data_ptr())
                for view in route.layout.views(buffer):
                    view.fill_(1e-3)
            epoch = self._state.weight_epoch if is_weights else GRADIENT
            route.layout.label(buffer).copy_(torch.tensor([route.layer, shipment.cargo.expert, epoch, 0]))

    def drain(self, timeout_seconds: float) -> None:
        """See `Mover`."""

    def close(self) -> None:
        """See `Mover`."""


def ship_alone(movers: list[WatchingMover], group: ExpertParallelGroup, *, times: int = 1) -> float:
    """Ships what the last step shipped once more, without anything beside it: weights, then gradients; or repeatedly.

    Returns:
        Seconds until the last rank has everything, over all times. Collective.
    """
    total = 0.0
    for mover in movers:
        buffers = [torch.zeros_like(each.buffer, device="cpu") for each in mover.posted]
        group.counts.allreduce([torch.zeros(1)]).wait()
        started = time.perf_counter()
        for _ in range(times):
            mover.mover.post([replace(each, buffer=buffer) for each, buffer in zip(mover.posted, buffers, strict=True)])
            mover.mover.drain(DRAIN_SECONDS)
            group.counts.allreduce([torch.zeros(1)]).wait()
        total += time.perf_counter() - started
    return total


def watch(state: AgentState) -> list[WatchingMover]:
    """Puts watchers around the movers of an agent: weights, gradients."""
    movers = [WatchingMover(state.weight_mover, state), WatchingMover(state.gradient_mover, state)]
    state.weight_mover, state.gradient_mover = movers
    return movers


def put_in_place(state: AgentState) -> None:
    """Takes the transfers of an agent away."""
    state.weight_mover.close()
    state.gradient_mover.close()
    state.weight_mover = state.gradient_mover = InPlaceMover(state)

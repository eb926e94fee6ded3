"""Guest gradients on their way home, as part of the autograd graph.

The *entry* stands before the guest experts: its backward runs when their gradients exist and posts them home. The
*exit* stands behind them: its backward runs first, where weights must come back before they are used. The *gate*
stands before the home experts' weights: its backward waits for what the guests sent, adds it up in a fixed order and
only then lets the sum reach `.grad`, before any hook, clipping or reduction can see it. The gate is created early in
forward (a layer ahead where possible), so that its backward runs late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from taot_client.home_experts import Weights, split_fused
from taot_client.transfers.graph_nodes import applied, differentiable_once
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import Mover, Shipment, WaitClock
from taot_client.transfers.transfer_schedule import Move, gradient_order

Collect = Callable[[], list[tuple[int, Weights]]]
"""Waits for the gradients of a pass's guests: local expert and gradients of each, in the order of addition."""

Split = Callable[[Weights], list[Weights]]
"""The views of each home expert, see `HomeExperts.split`."""

_GRADIENT = -1
"""What the label of a gradient says in place of a weight epoch."""


_ANCHOR = torch.zeros((), requires_grad=True)
"""Makes outputs part of the graph even where the tokens themselves need no gradient. It never gets one."""


class WayBack(NamedTuple):
    """What one rank does about the gradients of a layer's guests: the same for every pass with the same guests."""

    moves: list[Move]
    """Those from this rank's experts and to its slots, as every rank posts their gradients."""

    arrivals: list[Move]
    """Those whose gradients end here, in the order in which they are added."""

    @classmethod
    def of(cls, moves: Sequence[Move], *, rank: int) -> WayBack:
        """The part of a rank in what all ranks do."""
        own = [move for move in gradient_order(moves) if rank in (move.source, move.rank)]
        homeward = [move for move in own if move.source == rank == move.home]
        return cls(own, sorted(homeward, key=_addition_key))


class GradientExchange:
    """The guest gradients of one pass through one layer. Every rank of the group has one, with the same moves."""

    __slots__ = ("_inbound", "_mover", "_route", "_state", "_step", "_way_back")

    def __init__(self, route: LayerRoute, way_back: WayBack, *, mover: Mover, step: int) -> None:
        self._route = route
        self._way_back = way_back
        self._mover = mover
        self._step = step
        self._inbound: dict[Move, Shipment] = {}
        self._state = "waiting"

    def launch(self, gradients_of_slot: dict[int, Weights]) -> list[Shipment]:
        """Posts receives for this rank's experts and sends what its guests produced. Once, on every rank.

        Returns:
            What was posted.

        Raises:
            RuntimeError: at the second backward through one forward.
        """
        self._advance(to="launched", after="waiting")
        shipments: list[Shipment] = []
        if not self._way_back.moves:
            return shipments
        passed_on: dict[int, list[tuple[Move, Shipment]]] = {}
        for move in self._way_back.moves:
            if move.source == self._route.rank:
                shipment = self._route.gradient(move, self._route.new_buffer(), step=self._step)
                if move.home == move.source:
                    self._inbound[move] = shipment
                else:
                    passed_on.setdefault(move.expert, []).append((move, shipment))
                shipments.append(shipment)
            else:
                buffer = self._route.pack(
                    gradients_of_slot[move.slot], expert=move.expert, epoch=_GRADIENT, with_checksum=False
                )
                shipment = self._route.gradient(move, buffer, step=self._step)
                if move.is_relay:
                    parts = _in_order_of_addition(passed_on[move.expert])
                    shipment.after = tuple(part for _, part in parts)
                    shipment.prepare = self._add_parts
                shipments.append(shipment)
        self._mover.post(shipments)
        return shipments

    def _add_parts(self, total: Shipment) -> None:
        """Adds to this rank's own gradient what the guests of its node have sent, so that one sum crosses."""
        views = self._route.layout.views(total.buffer)
        parts = []
        for each in total.after:
            self._route.check_label(each.buffer, expert=total.cargo.expert, epoch=_GRADIENT)
            parts.append(self._route.layout.views(each.buffer))
        for index, view in enumerate(views):
            _add(view, [part[index] for part in parts])

    def collect(self, *, clock: WaitClock, timeout_seconds: float) -> list[tuple[int, Weights]]:
        """Waits for the gradients of this rank's experts. Once.

        Returns:
            (expert, its gradients) per guest that came from here, by its rank and slot: the order in which they are
            added. With relays such a gradient may be the sum over the guests of a node.

        Raises:
            TransferError: if one does not arrive.
            RuntimeError: if the guests' backward did not run, or this is the second one through one forward.
        """
        self._advance(to="collected", after="launched")
        arrived = []
        for move in self._way_back.arrivals:
            shipment = self._inbound[move]
            with clock.exposed():
                shipment.wait(timeout_seconds)
            self._route.check_label(shipment.buffer, expert=move.expert, epoch=_GRADIENT)
            arrived.append((move.expert, self._route.layout.views(shipment.buffer)))
        self._inbound = {}
        return arrived

    def _advance(self, *, to: str, after: str) -> None:
        if self._state != after:
            raise RuntimeError(
                f"layer {self._route.name!r}: gradients of guest experts are {self._state} and cannot be {to}. Every"
                " forward needs exactly one backward, through the layer's output; retain_graph and"
                " torch.autograd.grad for expert weights alone are not supported"
            )
        self._state = to


class _GuestEntry(torch.autograd.Function):
    """Identity on the guests' tokens and weights; its backward hands their gradients to `deliver`."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        deliver: Callable[[Weights], None],
        x_guest: torch.Tensor,
        *weights: torch.Tensor,
    ) -> Weights:
        del anchor
        ctx.deliver = deliver
        entered = x_guest.view_as(x_guest)
        if weights and not x_guest.requires_grad:
            # The anchor would let it need one, at a third of the experts' computing. Weights alone bring backward here.
            ctx.mark_non_differentiable(entered)
        return (entered, *[weight.view_as(weight) for weight in weights])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, grad_x: torch.Tensor, *grad_weights: torch.Tensor) -> tuple[Any, ...]:
        ctx.deliver(grad_weights)
        return (None, None, grad_x, *[None] * len(grad_weights))


_enter = applied(_GuestEntry)


def enter_guests(
    x_guest: torch.Tensor, weights: Sequence[torch.Tensor], *, deliver: Callable[[Weights], None]
) -> tuple[torch.Tensor, Weights]:
    """Puts the guests' tokens and weights behind a node that calls `deliver` with the weights' gradients.

    `deliver` runs once in backward on every rank, also on those without guests: it is a point of the program at
    which ranks may act together. Tokens get a gradient where they need one, or where there are no weights to get one.
    """
    x_guest, *weights = _enter(_ANCHOR, deliver, x_guest, *weights)
    return x_guest, tuple(weights)


class _GuestExit(torch.autograd.Function):
    """Identity on the guests' outputs; its backward calls `before` ahead of theirs."""

    @staticmethod
    def forward(ctx: Any, before: Callable[[], None], *outputs: torch.Tensor) -> Weights:
        ctx.before = before
        return tuple([output.view_as(output) for output in outputs])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        ctx.before()
        return (None, *grads)


_leave = applied(_GuestExit)


def exit_guests(outputs: Sequence[torch.Tensor], *, before: Callable[[], None]) -> list[torch.Tensor]:
    """Puts a node behind the guests' outputs that calls `before` once in backward, ahead of the guests' own.

    Like the entry it runs on every rank; where there are no guests, the output is what the entry returned.
    """
    return list(_leave(before, *outputs))


class _HomeGate(torch.autograd.Function):
    """Identity on the home experts' weights; its backward adds what `collect` returns."""

    @staticmethod
    def forward(ctx: Any, collect: Collect, split: Split, *weights: torch.Tensor) -> Weights:
        ctx.collect, ctx.split = collect, split
        return tuple([weight.view_as(weight) for weight in weights])

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return (None, None, *add_guest_gradients(grads, ctx.collect(), split=ctx.split))


_pass_gate = applied(_HomeGate)


def gate_weights(weights: Weights, *, collect: Collect, split: Split = split_fused) -> Weights:
    """Puts home weights behind a gate.

    Args:
        weights: all tensors of the home experts.
        collect: called in backward; returns (local expert, gradients) per guest in the order of addition.
        split: the views of each expert, see `HomeExperts.split`.
    """
    gated: Weights = _pass_gate(collect, split, *weights)
    return gated


def add_guest_gradients(
    grads: Weights, returned: Sequence[tuple[int, Weights]], *, split: Split = split_fused
) -> Weights:
    """Adds guests' gradients to those of their homes: in fp32 or wider, in the given order, rounded once.

    A sum, never a mean: every copy has seen other tokens.

    Args:
        grads: gradients of all tensors of the home experts.
        returned: (local expert, gradients of its tensors) per guest.
        split: the views of each expert, see `HomeExperts.split`.
    """
    if not returned:
        return grads
    summed = tuple(grad.clone() for grad in grads)
    by_expert = split(summed)
    for expert in sorted({expert for expert, _ in returned}):
        for index, home in enumerate(by_expert[expert]):
            _add(home, [guest_grads[index] for guest_of, guest_grads in returned if guest_of == expert])
    return summed


def _add(total: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Adds the parts to a tensor in place: in fp32 or wider, in order, rounded once."""
    wide = torch.promote_types(total.dtype, torch.float32)
    exact = total.to(wide, copy=True)
    for part in parts:
        exact += part.to(wide)
    total.copy_(exact)


def _in_order_of_addition(inbound: Sequence[tuple[Move, Shipment]]) -> list[tuple[Move, Shipment]]:
    """By guest rank and slot, however they travelled."""
    return sorted(inbound, key=lambda pair: _addition_key(pair[0]))


def _addition_key(move: Move) -> tuple[int, int]:
    return move.rank, move.slot

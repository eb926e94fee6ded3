"""The gates of one layer: each is made a layer ahead where possible, before the pass whose gradients it waits for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from taot_client.home_experts import HomeExperts, Weights
from taot_client.transfers.guest_gradients import GradientExchange, gate_weights


@dataclass(eq=False)
class _Ticket:
    """Joins a gate with its pass."""

    is_trained: bool
    """Whether the weights have gradients to wait for."""

    exchange: GradientExchange | None = None
    """Of the pass; None until it is known."""


class LayerGates:
    """Puts the home weights of a layer behind gates (see `guest_gradients`)."""

    def __init__(self, experts: HomeExperts, collect: Callable[[GradientExchange], list[tuple[int, Weights]]]) -> None:
        """Makes no gate yet.

        Args:
            experts: whose weights are put behind gates.
            collect: waits for the gradients of a pass: local expert and gradients of each guest.
        """
        self._experts = experts
        self._collect = collect
        self._prepared: tuple[_Ticket, Weights] | None = None
        self._current: _Ticket | None = None
        self.is_trained = False
        """Whether the weights of the forward at hand have gradients to wait for."""

    def prepare(self) -> None:
        """Makes the gate of the next forward now: the earlier it is made, the later its backward waits."""
        self._prepared = self._make()

    def forget_prepared(self) -> None:
        """Lets go of a gate that no forward has used."""
        self._prepared = None

    def enter(self, *, is_new: bool) -> Weights:
        """The weights behind the prepared gate, or behind a new one where there is none or `is_new` asks for it."""
        prepared, self._prepared = self._prepared, None
        self._current, gated = self._make() if prepared is None or is_new else prepared
        self.is_trained = self._current.is_trained
        return gated

    def pass_by(self) -> None:
        """Notes a forward that needs no gate."""
        self._prepared = self._current = None
        self.is_trained = _are_trained(self._experts.tensors())

    def join(self, exchange: GradientExchange | None) -> None:
        """Says whose gradients the gate entered last waits for."""
        if self._current is not None:
            self._current.exchange = exchange

    def _make(self) -> tuple[_Ticket, Weights]:
        weights = self._experts.tensors()
        ticket = _Ticket(is_trained=_are_trained(weights))
        if not ticket.is_trained:
            return ticket, weights

        def collect() -> list[tuple[int, Weights]]:
            assert ticket.exchange is not None, "a gate belongs to a pass"
            return self._collect(ticket.exchange)

        return ticket, gate_weights(weights, collect=collect, split=self._experts.split)


def _are_trained(weights: Weights) -> bool:
    return all([weight.requires_grad for weight in weights])  # noqa: C419 - a generator takes longer

"""The guest slots of one rank: memory, and a state machine that keeps every buffer with one owner at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import torch

from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import Shipment

_POLL_SECONDS = 1e-4


class SlotState(Enum):
    """Where a slot is in its life: EMPTY -> RECEIVING -> READY -> IN_USE -> READY or EMPTY."""

    EMPTY = "empty"
    RECEIVING = "receiving"
    READY = "ready"
    IN_USE = "in use"


@dataclass(eq=False)
class Slot:
    """Room for one guest. A plain buffer: never a parameter, never in a state dict."""

    buffer: torch.Tensor
    """Flat uint8 memory, laid out by `ExpertLayout`."""

    views: tuple[torch.Tensor, ...]
    """The tensors in it. They do not share the buffer's version counter: a slot may be filled again between a forward
    and its backward, with the same weights."""

    read_label: Callable[[], tuple[int, ...]]
    """Reads the label in the buffer, see `ExpertLayout`."""

    state: SlotState = SlotState.EMPTY
    expert: int = -1
    """Who lives here; -1 when empty."""

    weight_epoch: int = -1
    """Whose weights they are; meaningful unless empty."""

    shipment: Shipment | None = None
    """The transfer that fills the slot."""

    num_users: int = 0
    """Micro-batches whose backward has yet to use the weights."""

    outgoing: list[Shipment] = field(default_factory=list)
    """Transfers that pass the weights on to other ranks and read the buffer meanwhile."""


class SlotTable:
    """The slots of one layer on this rank, in memory that stays where it is."""

    def __init__(self, route: LayerRoute, buffers: Sequence[torch.Tensor], *, poison: bool) -> None:
        self._route = route
        self._poison = poison
        self.slots = [
            Slot(
                buffer=buffer,
                views=route.layout.views(buffer.data),
                read_label=route.layout.label_reader(buffer),
            )
            for buffer in buffers
        ]
        for slot in self.slots:
            self._fill_with_nan(slot)

    def begin_receive(self, index: int, *, expert: int, weight_epoch: int) -> Slot:
        """Gives a slot to an expert whose weights are about to arrive."""
        slot = self.slots[index]
        assert slot.num_users == 0, f"slot {index} is in use and cannot receive"
        assert slot.state is not SlotState.RECEIVING, f"slot {index} is receiving already"
        assert not slot.outgoing, f"slot {index} is passed on and cannot receive"
        slot.state, slot.expert, slot.weight_epoch = SlotState.RECEIVING, expert, weight_epoch
        return slot

    def ready_bits(self, *, weight_epoch: int) -> int:
        """One bit per slot that holds weights of this epoch. Never blocks."""
        bits = 0
        for index, slot in enumerate(self.slots):
            self._settle(slot)
            if slot.state in (SlotState.READY, SlotState.IN_USE) and slot.weight_epoch == weight_epoch:
                bits |= 1 << index
        return bits

    def be_patient(self, *, patience_seconds: float) -> None:
        """Waits for the weights on their way to any slot, but no longer than this. Never raises."""
        deadline = time.monotonic() + patience_seconds
        # Asked again and again, since waiting for an arrival means something else on every device.
        while self.is_awaited() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def is_awaited(self) -> bool:
        """Whether weights are on their way to any slot. Never blocks."""
        for slot in self.slots:
            self._settle(slot)
            if slot.state is SlotState.RECEIVING:
                return True
        return False

    def await_arrival(self, index: int, *, timeout_seconds: float) -> None:
        """Waits for the weights on their way to a slot, if they still are.

        Raises:
            TransferError: if they do not come.
        """
        slot = self.slots[index]
        if slot.state is SlotState.RECEIVING:
            assert slot.shipment is not None, "a receiving slot has a shipment"
            slot.shipment.wait(timeout_seconds)
            slot.state = SlotState.READY

    def await_quiet(self, index: int, *, timeout_seconds: float) -> None:
        """Waits until no transfer writes or reads a slot.

        Raises:
            TransferError: if one does not end; the memory cannot be used again.
        """
        self.await_arrival(index, timeout_seconds=timeout_seconds)
        slot = self.slots[index]
        for shipment in slot.outgoing:
            shipment.wait(timeout_seconds)
        slot.outgoing.clear()

    def weights(self, index: int, *, expert: int, weight_epoch: int) -> tuple[torch.Tensor, ...]:
        """The weights of the guest in a slot, as views.

        Raises:
            RuntimeError: if what arrived is not what the plan says.
        """
        slot = self.slots[index]
        assert slot.state in (SlotState.READY, SlotState.IN_USE), f"slot {index} is {slot.state.value}, not ready"
        self._route.check_label(slot.buffer, expert=expert, epoch=weight_epoch, read=slot.read_label)
        return slot.views

    def acquire(self, index: int) -> None:
        """Notes that one more micro-batch needs the slot's weights until its backward has ended."""
        slot = self.slots[index]
        slot.state = SlotState.IN_USE
        slot.num_users += 1

    def release(self, index: int) -> None:
        """Ends one micro-batch's use."""
        slot = self.slots[index]
        assert slot.num_users > 0, f"slot {index} is not in use"
        slot.num_users -= 1
        if slot.num_users == 0:
            slot.state = SlotState.READY

    def clear(self, *, timeout_seconds: float) -> None:
        """Empties every slot: the weights it holds belong to the past.

        Raises:
            TransferError: if a transfer under way does not end; its memory cannot be used again.
        """
        for index, slot in enumerate(self.slots):
            self.await_quiet(index, timeout_seconds=timeout_seconds)
            slot.state, slot.expert, slot.weight_epoch = SlotState.EMPTY, -1, -1
            slot.shipment, slot.num_users = None, 0
            self._fill_with_nan(slot)

    def _settle(self, slot: Slot) -> None:
        if slot.state is SlotState.RECEIVING and slot.shipment is not None and slot.shipment.is_done():
            slot.state = SlotState.READY

    def _fill_with_nan(self, slot: Slot) -> None:
        if self._poison:
            # Behind autograd's back, as transfers write: a late backward is told by the agent what went wrong.
            for view in slot.views:
                view.data.fill_(float("nan"))

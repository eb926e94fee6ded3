"""Guest slots that all layers share: sets that the layers use in turn, and weights that are sent again in backward.

Which layer holds a set, and which guests are in it, follows from program order alone. So it is the same on all ranks,
and none has to ask another before it sends weights again or waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from taot_client.counts_gather import GatheredCounts
from taot_client.home_experts import Weights
from taot_client.layer_pass import LayerPass
from taot_client.parallel_experts import ParallelExperts
from taot_client.planner.step_record import StepMode
from taot_client.transfers.guest_supply import GuestSupply
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import WaitClock
from taot_client.transfers.slot_table import SlotTable
from taot_client.transfers.transfer_schedule import align_guests
from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray

if TYPE_CHECKING:
    from taot_client.agent_state import AgentState


@dataclass(eq=False)
class SlotSet:
    """One set of slots on all ranks."""

    holder: SharedSupply | None = None
    """Whose guests are in the set or on their way there."""

    user: LayerPass | None = None
    """The pass whose guests compute now; while they do, nobody else may take the set."""


@dataclass(eq=False)
class SharedSlots:
    """The sets, and the layers that share them."""

    sets: list[SlotSet]
    """Layer l uses set l % sets."""

    supplies: list[SharedSupply] = field(default_factory=list)
    """Of all layers, in forward order."""

    @classmethod
    def of(cls, num_sets: int) -> SharedSlots:
        """Sets that nobody holds yet."""
        return cls(sets=[SlotSet() for _ in range(num_sets)])


class SharedSupply(GuestSupply):
    """Brings the guests of a layer whenever they are about to compute, forward or backward, and gives the set away.

    Every method runs at the same point of the program on all ranks, also on those without guests.
    """

    holds_for_backward = False

    def __init__(  # noqa: PLR0913 - what a layer's guests have to do with
        self,
        state: AgentState,
        parallel: ParallelExperts,
        route: LayerRoute,
        slots: SlotTable,
        *,
        clock: WaitClock,
        shared: SharedSlots,
    ) -> None:
        super().__init__(state, parallel, route, slots, clock=clock)
        self._shared = shared
        self._set = shared.sets[route.layer % len(shared.sets)]
        self._planned_RK = self.no_guests()
        shared.supplies.append(self)

    def renew(self, guests_RK: IntArray | None) -> None:
        """Forgets guests of weights that have changed; the first layers send for the given ones, if there is a plan."""
        self.send_held()  # see `GuestSupply.renew`
        self._planned_RK = self.no_guests() if guests_RK is None else guests_RK
        if self._route.layer < len(self._shared.sets):
            self._set.user = None
            self._vacate_set()
            self.bring(self._planned_RK)

    def begin_pass(self) -> None:
        """Notes that a forward begins: what an exception has interrupted computes no more."""
        for each in self._shared.sets:
            each.user = None

    def bring(self, wanted_RK: IntArray, *, after_tokens: bool = False) -> None:
        """Makes the wanted guests resident. A layer that wants none leaves the set to its holder."""
        if self._set.holder is self or (wanted_RK != EMPTY_SLOT).any():
            self._take_set()
            super().bring(wanted_RK, after_tokens=after_tokens)

    def arrived(self, gathered: GatheredCounts) -> IntArray:
        """The planned guests: those that have arrived if they were sent ahead, else all, sent now. [ranks, slots]."""
        if np.array_equal(align_guests(self._planned_RK, self.resident_RK), self.resident_RK):
            guests_RK = super().arrived(gathered)
        else:
            self.bring(self._planned_RK)
            guests_RK = self.resident_RK
        self._send_ahead(1)  # the first layer of a later micro-batch has nobody before it
        return guests_RK

    def recall(self, layer_pass: LayerPass) -> None:
        """Sends for the guests of a pass that has had them before, if the set has lost any; each to its old slot."""
        used_RK = layer_pass.plan.guests_RK
        is_used_RK = used_RK != EMPTY_SLOT
        if not is_used_RK.any() or np.array_equal(self.resident_RK[is_used_RK], used_RK[is_used_RK]):
            return
        self._take_set()
        self.fill(used_RK)

    def weights(self, layer_pass: LayerPass) -> list[Weights]:
        """Recalls and waits for this rank's guests of a pass, and keeps the set for them while they compute.

        Raises:
            TransferError: if they do not come.
        """
        self.recall(layer_pass)
        if layer_pass.has_guests:
            self._set.user = layer_pass
        return super().weights(layer_pass)

    def hold(self, layer_pass: LayerPass) -> None:
        """Nothing is kept from forward to backward."""

    def leave(self, *, is_new: bool) -> None:
        """The guests have computed: the set is free for the layer behind the next."""
        self._set.user = None
        if is_new and self._state.mode is StepMode.PLAN:
            self._send_ahead(len(self._shared.sets))

    def release(self, layer_pass: LayerPass) -> None:
        """The guests' backward has ended: the set is free for the layer before the last."""
        self._set.user = None
        before = self._route.layer - len(self._shared.sets)
        if before >= 0:
            pinned = self._state.layers[before].pins.find(layer_pass.site.micro_batch)
            if pinned is not None:
                self._shared.supplies[before].recall(pinned)

    def _send_ahead(self, distance: int) -> None:
        following = self._route.layer + distance
        if following < len(self._shared.supplies):
            supply = self._shared.supplies[following]
            if (supply._planned_RK != EMPTY_SLOT).any():
                supply.bring(supply._planned_RK)

    def _take_set(self) -> None:
        user = self._set.user
        assert user is None, f"layer {self._route.layer} takes slots in which guests of {user and user.site} compute"
        if self._set.holder is not self:
            self._vacate_set()
            self._set.holder = self
            self.slots.clear(timeout_seconds=0.0)  # nothing is on its way: this only poisons

    def _vacate_set(self) -> None:
        holder, self._set.holder = self._set.holder, None
        if holder is not None:
            # What is on its way arrives first: two writers of one buffer would leave a mixture.
            holder.send_held()  # see `GuestSupply.renew`
            with self._clock.exposed():
                holder.slots.clear(timeout_seconds=self._state.transfer_timeout_seconds)
            holder.resident_RK = holder.no_guests()

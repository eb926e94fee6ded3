"""The guests of one layer: which are where on all ranks, and their weights on the way to this rank and from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from taot_client.counts_gather import GatheredCounts
from taot_client.device import may_keep_views
from taot_client.home_experts import HomeViews, Weights
from taot_client.layer_pass import LayerPass
from taot_client.parallel_experts import ParallelExperts
from taot_client.step_summary import MoveTotals
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import Shipment, WaitClock
from taot_client.transfers.slot_table import SlotState, SlotTable
from taot_client.transfers.transfer_schedule import Move, align_guests, guests_there, part_guests, schedule_moves
from taot_planning import EMPTY_SLOT
from taot_planning.arrays import IntArray

if TYPE_CHECKING:
    from taot_client.agent_state import AgentState

LATE_LIMIT_STEPS = 16
"""Steps in a row in which guests of a rank never came in time, before it is told: training goes on unbalanced."""


class _Journey(NamedTuple):
    """How guests get to their slots."""

    placed_RK: IntArray
    """Where they are afterwards, with those that stay. Shape: [ranks, slots]."""

    moves: list[Move]
    """Those to this rank and from it, in the order in which they are posted."""

    totals: MoveTotals
    """What the moves of all ranks come to."""


class GuestSupply:
    """Keeps every guest in its slot to the end of the step: weights move once per optimizer step."""

    holds_for_backward = True
    """Whether guests stay in their slots until the backward of the pass that uses them has ended."""

    def __init__(  # noqa: PLR0913 - what a layer's guests have to do with
        self, state: AgentState, parallel: ParallelExperts, route: LayerRoute, slots: SlotTable, *, clock: WaitClock
    ) -> None:
        """Has no guests yet; waits for them count in `clock`."""
        self.slots = slots
        self._clock = clock
        self._state = state
        self._home_E = parallel.home_E
        self._route = route
        self._local_of = {expert: local for local, expert in enumerate(parallel.home_experts.tolist())}
        topology = state.topology
        self._no_guests_RK = np.full((topology.num_ranks, topology.max_slots), EMPTY_SLOT, dtype=np.int64)
        self._no_guests_RK.setflags(write=False)
        self.resident_RK = self._no_guests_RK
        self._plan: bytes | None = None
        self._planned_journey: _Journey
        self._home = HomeViews(parallel.experts, are_kept=may_keep_views(route.device))
        self._held: list[Shipment] = []
        self._is_late_R: list[bool] | None = None  # in the last pass of the step: later ones find more guests there
        self._late_steps_R: list[int] | None = None

    def no_guests(self) -> IntArray:
        """A placement in which every expert stays home. Shape: [ranks, slots]."""
        return self._no_guests_RK

    def begin_step(self) -> None:
        """Counts the steps in a row in which a rank's guests came too late, as all ranks saw; too many are told."""
        is_late_R, self._is_late_R = self._is_late_R, None
        if is_late_R is None:
            self._late_steps_R = None
            return
        before_R = self._late_steps_R or [0] * len(is_late_R)
        self._late_steps_R = [steps + 1 if late else 0 for steps, late in zip(before_R, is_late_R, strict=True)]
        ranks = [rank for rank, steps in enumerate(self._late_steps_R) if steps == LATE_LIMIT_STEPS]
        if ranks:
            self._state.note_never_arrived(ranks, layer=self._route.name, num_steps=LATE_LIMIT_STEPS)

    def renew(self, guests_RK: IntArray | None) -> None:
        """Forgets the guests of weights that have changed; the given ones leave in their turn, if there is a plan."""
        self.send_held()  # an exception may have kept the tokens from being exchanged; what is posted can be waited for
        self.slots.clear(timeout_seconds=self._state.transfer_timeout_seconds)
        self.resident_RK = self._no_guests_RK
        if guests_RK is None:
            return
        plan = guests_RK.tobytes()
        if plan != self._plan:
            self._plan, self._planned_journey = plan, self._journey(align_guests(guests_RK, self._no_guests_RK))
        totals = self._planned_journey.totals
        if totals.intra or totals.inter:  # of all ranks, so that all of them queue alike
            self._state.departures.add(self._route.layer, self._send_planned)

    def _send_planned(self) -> None:
        """Sends for all guests of the plan."""
        self._depart(self._planned_journey, after_tokens=False)

    def begin_pass(self) -> None:
        """Notes that a forward begins: guests of the plan leave at the latest now."""
        self._state.departures.reach(self._route.layer)

    def bring(self, wanted_RK: IntArray, *, after_tokens: bool = False) -> None:
        """Makes the wanted guests resident, sending only those that are not there yet. On every rank alike.

        Args:
            wanted_RK: the guests. Shape: [ranks, slots].
            after_tokens: send them with `send_held`: tokens that are about to travel are waited for at once, guests
                only after the home experts, and would take half of a link from them.
        """
        self.fill(align_guests(wanted_RK, self.resident_RK), after_tokens=after_tokens)

    def fill(self, placed_RK: IntArray, *, after_tokens: bool = False) -> None:
        """Makes guests resident in exactly these slots, see `bring`."""
        self.send_held()  # of a pass that broke off: its slots are waited for before they are filled anew
        self._depart(self._journey(placed_RK), after_tokens=after_tokens)

    def _journey(self, placed_RK: IntArray) -> _Journey:
        missing_RK, kept_RK = part_guests(placed_RK, self.resident_RK)
        moves = schedule_moves(missing_RK, self._home_E, relay_nodes_R=self._state.relay_nodes_R, resident_RK=kept_RK)
        rank = self._route.rank
        own = [move for move in moves if rank in (move.rank, move.source)]
        return _Journey(placed_RK, own, MoveTotals.of(moves, self._state.topology))

    def _depart(self, journey: _Journey, *, after_tokens: bool) -> None:
        self.resident_RK, moves, totals = journey
        self._state.note_moves(totals)
        packed: dict[int, torch.Tensor] = {}
        home: list[Weights] = []  # looked at once for all
        shipments = []
        for move in moves:
            if move.rank == self._route.rank:
                shipments.append(self._receive(move))
            elif move.stage:
                shipments.append(self._pass_on(move))
            else:
                if move.expert not in packed:
                    home = home or self._home.all()
                    packed[move.expert] = self._pack(move.expert, home)
                shipments.append(self._route.weights(move, packed[move.expert], step=self._state.step))
        self._held += shipments
        if not after_tokens:
            self.send_held()

    def send_held(self) -> None:
        """Sends what was held back for tokens, if anything. On every rank at the same point of the program."""
        if self._held:
            held, self._held = self._held, []
            self._state.weight_mover.post(held)
            self._state.note_sent(held)

    def _receive(self, move: Move) -> Shipment:
        # Transfers that are under way end before their slot gets another guest.
        self.slots.await_quiet(move.slot, timeout_seconds=self._state.transfer_timeout_seconds)
        slot = self.slots.begin_receive(move.slot, expert=move.expert, weight_epoch=self._state.weight_epoch)
        slot.shipment = self._route.weights(move, slot.buffer, step=self._state.step)
        return slot.shipment

    def _pass_on(self, move: Move) -> Shipment:
        """Sends a guest on from this rank's own slot, as soon as it is there."""
        (index,) = np.flatnonzero(self.resident_RK[self._route.rank] == move.expert)
        slot = self.slots.slots[index]
        assert slot.shipment is not None, "a guest came by a shipment"
        shipment = self._route.weights(move, slot.buffer, step=self._state.step)
        shipment.after = (slot.shipment,)
        slot.outgoing.append(shipment)
        return shipment

    def arrived(self, gathered: GatheredCounts) -> IntArray:
        """The resident guests that are there on their rank, as all ranks have told each other. [ranks, slots]."""
        there_RK = self.resident_RK
        if not gathered.are_guests_there:
            there_RK = guests_there(self.resident_RK, gathered.ready_bits_R)
        if there_RK is self.resident_RK:
            self._is_late_R = None
            return self.resident_RK
        self._is_late_R = (there_RK != self.resident_RK).any(axis=1).tolist()
        self._state.note_fallback("not_arrived")
        return there_RK

    def ready_bits(self, *, patience_seconds: Callable[[], float]) -> int:
        """One bit per slot of this rank that holds weights of this epoch, after waiting for those on their way."""
        if self.slots.is_awaited() and (patience := patience_seconds()):
            with self._clock.exposed():
                self.slots.be_patient(patience_seconds=patience)
        return self.slots.ready_bits(weight_epoch=self._state.weight_epoch)

    def recall(self, layer_pass: LayerPass) -> None:
        """Sends for guests that a pass has used and lost: none, where they are held for its backward."""

    def weights(self, layer_pass: LayerPass) -> list[Weights]:
        """Waits for this rank's guests of a pass, if they are still on their way; their weights in slot order.

        Raises:
            TransferError: if they do not come.
        """
        for slot in layer_pass.slots:
            if self.slots.slots[slot].state is SlotState.RECEIVING:
                with self._clock.exposed():
                    self.slots.await_arrival(slot, timeout_seconds=self._state.transfer_timeout_seconds)
        epoch, guests_K = self._state.weight_epoch, layer_pass.plan.guests_RK[self._route.rank]
        return [self.slots.weights(slot, expert=int(guests_K[slot]), weight_epoch=epoch) for slot in layer_pass.slots]

    def hold(self, layer_pass: LayerPass) -> None:
        """Keeps the slots of a pass until its backward has ended."""
        if not layer_pass.holds_slots:  # a recomputation finds them held by its forward
            layer_pass.holds_slots = True
            for slot in layer_pass.slots:
                self.slots.acquire(slot)

    def leave(self, *, is_new: bool) -> None:
        """Notes that guests have computed in forward, a recomputation unless it `is_new`. On every rank alike."""

    def release(self, layer_pass: LayerPass) -> None:
        """Ends the use of a pass's slots: its backward has ended."""
        for slot in layer_pass.slots:
            self.slots.release(slot)

    def _pack(self, expert: int, home: list[Weights]) -> torch.Tensor:
        return self._route.pack(
            home[self._local_of[expert]],
            expert=expert,
            epoch=self._state.weight_epoch,
            with_checksum=self._state.options.debug,
        )

"""The agent's part in one layer: which guests a pass uses, their weights on the way out, their gradients home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from taot_client.agent_state import AgentState
from taot_client.coordinator import PlainCoordinator
from taot_client.counts_gather import CallSite, GatheredCounts, count_choices, gather_counts
from taot_client.expert_layout import ExpertLayout
from taot_client.guest_gradients import GradientExchange, Weights, enter_guests
from taot_client.layer_gates import LayerGates
from taot_client.layer_pass import LayerPass
from taot_client.layer_route import LayerRoute
from taot_client.pinned_passes import PinnedPasses
from taot_client.slot_table import SlotTable
from taot_client.step_record import StepMode
from taot_client.token_layout import lay_out_tokens
from taot_client.transfer_schedule import align_guests, schedule_moves
from taot_planning import EMPTY_SLOT, LayerProblem, plan_from_guests, plan_layer
from taot_planning.arrays import IntArray

if TYPE_CHECKING:
    from taot_client.moe_layer import ExpertParallelMoE


class LayerAgent:
    """The coordinator of one layer, on behalf of the agent."""

    def __init__(self, state: AgentState, layer: ExpertParallelMoE, route: LayerRoute, slots: SlotTable) -> None:
        self.route = route
        self.slots = slots
        self.pins = PinnedPasses(layer=route.name)
        self._state = state
        self._layer = layer
        self._home_E = layer.home_E
        self._plain = PlainCoordinator(layer.group, layer.home_E)
        self._local_of = {int(e): i for i, e in enumerate(np.flatnonzero(layer.home_E == route.rank))}
        self.resident_RK = self._no_guests()
        self._gates = LayerGates(self._home_weights, self._collect)

    def _home_weights(self) -> Weights:
        return self._layer.experts.weights()

    def _no_guests(self) -> IntArray:
        topology = self._state.topology
        return np.full((topology.num_ranks, topology.max_slots), EMPTY_SLOT, dtype=np.int64)

    def check_unchanged(self) -> None:
        """Checks that the weights are still laid out as at start.

        Raises:
            RuntimeError: if the model has been moved or cast since.
        """
        weights = self._home_weights()
        if ExpertLayout.of(weights) != self.route.layout or weights[0].device != self.route.device:
            raise RuntimeError(
                f"the expert weights of layer {self.route.name!r} have another shape, dtype or device than when the"
                " agent was made: make the agent after the model has been moved and cast"
            )

    def begin_step(self, guests_RK: IntArray | None) -> None:
        """Forgets the guests of the past and sends for those of the new step, if it has a plan."""
        self.slots.clear(timeout_seconds=self._state.transfer_timeout_seconds)
        self.pins.clear()
        self._gates.forget_prepared()
        self.resident_RK = self._no_guests()
        if guests_RK is not None:
            self._bring(guests_RK)

    # The questions of the layer, in the order in which it asks them (see `Coordinator`).

    def gate(self, weights: Weights) -> Weights:
        """Puts the home weights behind a gate, made by the layer before where possible."""
        recomputing = self.pins.is_recomputation()
        if not (self._is_training and torch.is_grad_enabled()):
            self._gates.pass_by()
            return weights
        gated = self._gates.enter(is_new=recomputing)
        following = self._state.layer_after(self.route.layer)
        if following is not None and not recomputing:
            following.prepare_gate()
        return gated

    def prepare_gate(self) -> None:
        """Makes the gate of the next forward now: the earlier it is made, the later its backward waits."""
        if self._is_training:
            self._gates.prepare()

    def pinned_choice(self) -> torch.Tensor | None:
        """See `Coordinator`."""
        if not (self._is_training and self.pins.is_recomputation()):
            return None
        return self.pins.current(self._state.micro_batch_index).experts_TK

    def admit(self, experts_TK: torch.Tensor) -> LayerPass:
        """Agrees on a pass; a recomputation gets the one it repeats."""
        if not self._is_training:
            return self._plain.admit(experts_TK)
        if self.pins.is_recomputation():
            layer_pass = self.pins.current(self._state.micro_batch_index)
        else:
            layer_pass = self._admit_new(experts_TK)
            self.pins.add(layer_pass)
        self._gates.join(layer_pass.exchange)
        return layer_pass

    def guests(self, layer_pass: LayerPass, x_guest: torch.Tensor) -> tuple[torch.Tensor, list[Weights]]:
        """Waits for the guests of a pass and hands out their weights."""
        epoch = self._state.weight_epoch
        for slot in layer_pass.slots:
            with self._state.clock.exposed():
                self.slots.await_arrival(slot, timeout_seconds=self._state.transfer_timeout_seconds)
        experts = [int(layer_pass.plan.guests_RK[self.route.rank, slot]) for slot in layer_pass.slots]
        weights = [
            self.slots.weights(slot, expert=expert, weight_epoch=epoch)
            for slot, expert in zip(layer_pass.slots, experts, strict=True)
        ]
        if not torch.is_grad_enabled():
            return x_guest, weights
        if not layer_pass.holds_slots:  # a recomputation finds them held by its forward
            layer_pass.holds_slots = True
            for slot in layer_pass.slots:
                self.slots.acquire(slot)
        deliver = self._deliver_for(layer_pass)
        if layer_pass.exchange is None:  # frozen experts: only the end of the pass is of interest
            x_guest, _ = enter_guests(x_guest, [], deliver=deliver)
            return x_guest, weights
        flat = [tensor for tensors in weights for tensor in tensors]
        x_guest, behind = enter_guests(x_guest, flat, deliver=deliver)
        return x_guest, _chunks(behind, len(self.route.layout.shapes))

    # Forward.

    @property
    def _is_training(self) -> bool:
        """Whether a forward belongs to a training step.

        Between `end_step` and `begin_step` weights change: a forward there, such as a metric, stays home.
        """
        return self._layer.training and (self._state.is_in_step or self._state.step < 0)

    def _admit_new(self, experts_TK: torch.Tensor) -> LayerPass:
        state, rank = self._state, self.route.rank
        site = CallSite(
            step=state.step,
            micro_batch=self.pins.next_index(state.micro_batch_index),
            layer=self.route.layer,
        )
        local = count_choices(experts_TK, num_experts=self._home_E.size)
        state.note_invalid_ids(local.invalid_ids, layer=self.route.name)
        gathered = gather_counts(
            self._layer.group,
            local,
            site=site,
            ready_bits=self.slots.ready_bits(weight_epoch=state.weight_epoch),
            measured=state.measured(),
        )
        problem = LayerProblem(
            counts_RE=gathered.counts_RE,
            home_E=self._home_E,
            topology=state.topology,
            resident_RK=self.resident_RK,
        )
        plan = plan_from_guests(problem, self._place(site, gathered, problem))
        layout = lay_out_tokens(
            rank=rank,
            counts_SE=problem.counts_RE,
            home_E=problem.home_E,
            guests_RK=plan.guests_RK,
            quota_SRK=plan.quota_SRK,
        )
        layer_pass = LayerPass(
            site=site,
            experts_TK=experts_TK,
            gathered=gathered,
            plan=plan,
            layout=layout,
            exchange=self._make_exchange(site, plan.guests_RK),
            slots=np.flatnonzero(plan.guests_RK[rank] != EMPTY_SLOT).tolist(),
        )
        state.note_pass(self, layer_pass, problem)
        return layer_pass

    def _place(self, site: CallSite, gathered: GatheredCounts, problem: LayerProblem) -> IntArray:
        """The guests that this pass may use, decided from what all ranks have gathered."""
        mode = self._state.mode
        self._state.note_mode()
        if mode is StepMode.PLAN:
            return self._arrived(gathered)
        if mode in (StepMode.INLINE, StepMode.BLOCKING):
            # While another micro-batch still needs the slots for its backward, its guests are the guests.
            # Forwards and backwards alternate alike on all ranks, so all of them decide alike.
            if not self.pins.num_in_flight:
                wanted_RK = self._wanted(mode, site, gathered, problem)
                if wanted_RK is None:
                    self._state.note_fallback("no_answer")
                    return self._no_guests()
                self._bring(wanted_RK)
            return self.resident_RK
        return self._no_guests()

    def _arrived(self, gathered: GatheredCounts) -> IntArray:
        """The resident guests that are there on their rank, as every rank has told every other."""
        slots_K = np.arange(self.resident_RK.shape[1])
        ready_RK = (gathered.ready_bits_R[:, None] >> slots_K[None, :]) & 1 == 1
        late_RK = (self.resident_RK != EMPTY_SLOT) & ~ready_RK
        if late_RK.any():
            self._state.note_fallback("not_arrived")
        return np.where(ready_RK, self.resident_RK, EMPTY_SLOT)

    def _wanted(
        self, mode: StepMode, site: CallSite, gathered: GatheredCounts, problem: LayerProblem
    ) -> IntArray | None:
        if mode is StepMode.BLOCKING:
            return self._state.ask_planner(site, gathered)
        spec = self._state.spec
        options = replace(spec.options, effort="fast")
        return plan_layer(problem, algorithm=spec.algorithm, options=options).guests_RK

    def would_be_loads(self, problem: LayerProblem) -> IntArray:
        """Loads under the plan of the step's record, which observe mode does not carry out. Shape: [ranks]."""
        planned = plan_from_guests(problem, self._state.planned_guests(self.route.layer))
        return planned.loads_R(problem)

    # Weights on their way out.

    def _bring(self, wanted_RK: IntArray) -> None:
        """Makes the wanted guests resident, sending only those that are not there yet."""
        aligned_RK = align_guests(wanted_RK, self.resident_RK)
        missing_RK = np.where(aligned_RK != self.resident_RK, aligned_RK, EMPTY_SLOT)
        self.resident_RK = aligned_RK
        moves = schedule_moves(missing_RK, self._home_E)
        self._state.note_moves(moves)
        packed: dict[int, torch.Tensor] = {}
        shipments = []
        for move in moves:
            if move.rank == self.route.rank:
                # A receive that is under way ends before its slot gets another.
                self.slots.await_arrival(move.slot, timeout_seconds=self._state.transfer_timeout_seconds)
                slot = self.slots.begin_receive(move.slot, expert=move.expert, weight_epoch=self._state.weight_epoch)
                slot.shipment = self.route.weights(move, slot.buffer, step=self._state.step)
                shipments.append(slot.shipment)
            elif move.home == self.route.rank:
                if move.expert not in packed:
                    packed[move.expert] = self._pack(move.expert)
                shipments.append(self.route.weights(move, packed[move.expert], step=self._state.step))
        self._state.weight_mover.post(shipments)
        self._state.note_sent(shipments)

    def _pack(self, expert: int) -> torch.Tensor:
        return self.route.pack(
            [fused[self._local_of[expert]] for fused in self._home_weights()],
            expert=expert,
            epoch=self._state.weight_epoch,
            with_checksum=self._state.options.debug,
        )

    # Gradients on their way home.

    def _make_exchange(self, site: CallSite, guests_RK: IntArray) -> GradientExchange | None:
        if not self._gates.is_trained:
            return None
        return GradientExchange(
            route=self.route,
            moves=schedule_moves(guests_RK, self._home_E),
            mover=self._state.gradient_mover,
            step=site.step,
        )

    def _collect(self, exchange: GradientExchange) -> list[tuple[int, Weights]]:
        returned = exchange.collect(clock=self._state.clock, timeout_seconds=self._state.transfer_timeout_seconds)
        return [(self._local_of[expert], gradients) for expert, gradients in returned]

    def _deliver_for(self, layer_pass: LayerPass) -> Callable[[Weights], None]:
        def deliver(gradients: Weights) -> None:
            step, now = layer_pass.site.step, self._state.step
            if step != now or not self._state.is_in_step:
                raise RuntimeError(
                    f"a backward of step {step} ran {'after its end' if step == now else f'in step {now}'}, when its"
                    " guests were gone: end all backwards before agent.end_step()"
                )
            if layer_pass.exchange is not None:
                per_slot = _chunks(gradients, len(self.route.layout.shapes))
                sent = layer_pass.exchange.launch(dict(zip(layer_pass.slots, per_slot, strict=True)))
                self._state.note_sent(sent)
            for slot in layer_pass.slots:
                self.slots.release(slot)
            self.pins.end(layer_pass)

        return deliver


def _chunks(tensors: Weights, size: int) -> list[Weights]:
    return [tensors[start : start + size] for start in range(0, len(tensors), size)]

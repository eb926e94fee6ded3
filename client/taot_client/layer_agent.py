"""The agent's part in one layer: which guests a pass uses, their weights on the way out, their gradients home."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch

from taot_client.agent_state import AgentState
from taot_client.coordinator import PlainCoordinator
from taot_client.counts_gather import NO_STEP, CallSite, GatheredCounts, GatherRoom, count_choices, gather_counts
from taot_client.home_experts import Weights
from taot_client.layer_gates import LayerGates
from taot_client.layer_pass import LayerPass
from taot_client.layout_watch import LayoutWatch
from taot_client.measuring.gain import most_saved_us, without_vain_guests
from taot_client.measuring.layer_meter import LayerMeter
from taot_client.parallel_experts import ParallelExperts
from taot_client.pass_split import split_pass
from taot_client.pinned_passes import PinnedPasses
from taot_client.planner.step_record import StepMode
from taot_client.transfers.guest_gradients import GradientExchange, WayBack, enter_guests, exit_guests
from taot_client.transfers.guest_supply import GuestSupply
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.transfer_schedule import schedule_moves
from taot_planning import EMPTY_SLOT, LayerProblem, plan_layer
from taot_planning.arrays import IntArray


class LayerAgent:
    """The coordinator of one layer, on behalf of the agent."""

    def __init__(  # noqa: PLR0913 - the parts of a layer
        self,
        state: AgentState,
        parallel: ParallelExperts,
        route: LayerRoute,
        supply: GuestSupply,
        *,
        meter: LayerMeter,
    ) -> None:
        self.route = route
        self.supply = supply
        self.meter = meter
        self.pins = PinnedPasses(layer=route.name)
        self.layout_watch = LayoutWatch(parallel.experts, route)
        self._state = state
        self._parallel = parallel
        self.home_E = parallel.home_E
        self._fast_options = replace(state.spec.options, effort="fast")
        self._plain = PlainCoordinator(parallel.group, parallel.home_E)
        self._local_of = {expert: local for local, expert in enumerate(parallel.home_experts.tolist())}
        self._gates = LayerGates(parallel.experts, self._collect)
        self._loads_2R: IntArray | None = None
        self._way_back: tuple[bytes, WayBack] | None = None
        self._room = GatherRoom(num_ranks=parallel.group.size, num_experts=parallel.home_E.size)

    def begin_step(self, guests_RK: IntArray | None) -> None:
        """Forgets the guests of the past; those of the new step leave in their turn, if it has a plan."""
        self.pins.clear()
        self.supply.begin_step()
        self.renew_guests(guests_RK)
        self.meter.begin_step()

    def renew_guests(self, guests_RK: IntArray | None) -> None:
        """Forgets guests made of weights that have changed; those of the plan, if there is one, leave in their turn."""
        self._gates.forget_prepared()
        self.supply.renew(guests_RK)

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
            self.supply.recall(layer_pass)
        else:
            self.supply.begin_pass()
            layer_pass = self._admit_new(experts_TK)
            self.pins.add(layer_pass)
        self._gates.join(layer_pass.exchange)
        return layer_pass

    def dispatched(self) -> None:
        """Sends the guests that were decided on in this pass, and planned ones of later layers."""
        self.supply.send_held()
        self._state.departures.dispatched(self.route.layer)

    def guests(self, layer_pass: LayerPass, x_guest: torch.Tensor) -> tuple[torch.Tensor, list[Weights]]:
        """Waits for the guests of a pass and hands out their weights."""
        if layer_pass.site.step == NO_STEP:  # outside training, where gradients may be wanted all the same
            return x_guest, []
        weights = self.supply.weights(layer_pass)
        if not torch.is_grad_enabled():
            return x_guest, weights
        self.supply.hold(layer_pass)
        deliver = partial(self._deliver, layer_pass)
        if layer_pass.exchange is None:  # frozen experts: only the end of the pass is of interest
            x_guest, _ = enter_guests(x_guest, [], deliver=deliver)
            return x_guest, weights
        if not weights:
            return enter_guests(x_guest, [], deliver=deliver)[0], weights
        flat = [tensor for tensors in weights for tensor in tensors]
        x_guest, behind = enter_guests(x_guest, flat, deliver=deliver)
        return x_guest, _chunks(behind, len(self.route.layout.shapes))

    def leave_guests(self, layer_pass: LayerPass, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Lets go of the guests; where they are not held for backward, they come back before it."""
        if self._is_training:
            self.supply.leave(is_new=not self.pins.is_recomputation())
        if self.supply.holds_for_backward or not (torch.is_grad_enabled() and layer_pass.has_guests):
            return outputs

        def before() -> None:
            self._check_in_step(layer_pass)
            self.supply.weights(layer_pass)

        return exit_guests(outputs, before=before)

    def computing(self, tokens: int) -> AbstractContextManager[None]:
        """Times the experts of a training pass, and counts what they really compute."""
        if not self._is_training:
            return nullcontext()
        return self.meter.computing(tokens, is_repeat=self.pins.is_recomputation())

    # Forward.

    @property
    def _is_training(self) -> bool:
        """Whether a forward belongs to a training step.

        Between `end_step` and `begin_step` weights change: a forward there, such as a metric, stays home.
        """
        return self._parallel.module.training and (self._state.is_in_step or self._state.step < 0)

    def _admit_new(self, experts_TK: torch.Tensor) -> LayerPass:
        state, rank = self._state, self.route.rank
        self.meter.reach()
        site = CallSite(
            step=state.step,
            micro_batch=self.pins.next_index(state.micro_batch_index),
            layer=self.route.layer,
        )
        local = count_choices(experts_TK, num_experts=self.home_E.size, room=self._room)
        state.note_invalid_ids(local.invalid_ids, layer=self.route.name)
        gathered = gather_counts(
            self._parallel.group,
            local,
            site=site,
            ready_bits=self.supply.ready_bits(patience_seconds=self._patience_seconds),
            weight_changes=state.weight_changes.num_announced,
            measured=state.measured(self.route.layer, computed_tokens=self.meter.computed_tokens),
            guests_RK=self.supply.resident_RK,
            room=self._room,
        )
        if state.weight_changes.hear(gathered.num_weight_changes):
            state.renew_guests()
            gathered = gathered.without_guests()
        split = split_pass(
            rank=rank,
            counts_SE=gathered.counts_RE,
            home_E=self.home_E,
            topology=state.timed_topology,
            guests_RK=self._place(site, gathered),
        )
        self._loads_2R = split.loads_2R
        exchange = self._make_exchange(site, split.plan.guests_RK)
        layer_pass = LayerPass(
            site=site,
            experts_TK=experts_TK,
            gathered=gathered,
            plan=split.plan,
            layout=split.layout,
            exchange=exchange,
            slots=[slot for slot, guest in enumerate(split.plan.guests_RK[rank].tolist()) if guest != EMPTY_SLOT],
            has_guests=split.has_guests,
        )
        state.note_pass(self, layer_pass, split)
        return layer_pass

    def _patience_seconds(self) -> float:
        """How long this rank waits for planned guests that are late, by its own clock: all hear of what has arrived."""
        if self._state.mode is not StepMode.PLAN or self._loads_2R is None:
            return 0.0
        most_us = most_saved_us(self._loads_2R[0], token_us=self.meter.token_microseconds())
        return min(most_us * 1e-6, self._state.transfer_timeout_seconds)

    def _place(self, site: CallSite, gathered: GatheredCounts) -> IntArray:
        """The guests that this pass may use, decided from what all ranks have gathered."""
        mode = self._state.mode
        self._state.note_mode()
        if self._state.record.gates.is_off(self.route.layer) and mode not in (StepMode.HOME_ONLY, StepMode.OBSERVE):
            self._state.note_fallback("layer_off")
            return self.supply.no_guests()
        if mode is StepMode.PLAN:
            return self.supply.arrived(gathered)
        if mode in (StepMode.INLINE, StepMode.BLOCKING):
            # While another micro-batch still needs the slots for its backward, its guests are the guests.
            # Forwards and backwards alternate alike on all ranks, so all of them decide alike.
            if not (self.supply.holds_for_backward and self.pins.num_in_flight):
                problem = LayerProblem(
                    counts_RE=gathered.counts_RE,
                    home_E=self.home_E,
                    topology=self._state.timed_topology,
                    resident_RK=self.supply.resident_RK,
                )
                wanted_RK = self._wanted(mode, site, gathered, problem)
                if wanted_RK is None:
                    self._state.note_fallback("no_answer")
                    return self.supply.no_guests()
                # Rates are for the gate alone: it counts what backward gains, which the planner cannot know.
                measured = self._state.record.gates.measured
                rates = measured.rates(self.route.layer, expert_size_bytes=self.route.layout.size_bytes)
                timed = problem if rates is None else replace(problem, rates=rates)
                num_journeys = 1 if self.supply.holds_for_backward else 2
                worthwhile_RK = without_vain_guests(timed, wanted_RK, num_journeys=num_journeys)
                self.supply.bring(worthwhile_RK, after_tokens=True)
            return self.supply.resident_RK
        return self.supply.no_guests()

    def _wanted(
        self, mode: StepMode, site: CallSite, gathered: GatheredCounts, problem: LayerProblem
    ) -> IntArray | None:
        if mode is StepMode.BLOCKING:
            return self._state.ask_planner(site, gathered)
        return plan_layer(problem, algorithm=self._state.spec.algorithm, options=self._fast_options).guests_RK

    # Gradients on their way home.

    def _make_exchange(self, site: CallSite, guests_RK: IntArray) -> GradientExchange | None:
        if not self._gates.is_trained:
            return None
        guests = guests_RK.tobytes()
        if self._way_back is None or self._way_back[0] != guests:
            moves = schedule_moves(guests_RK, self.home_E, relay_nodes_R=self._state.relay_nodes_R)
            self._way_back = guests, WayBack.of(moves, rank=self.route.rank)
        way_back = self._way_back[1]
        return GradientExchange(self.route, way_back, mover=self._state.gradient_mover, step=site.step)

    def _collect(self, exchange: GradientExchange) -> list[tuple[int, Weights]]:
        returned = exchange.collect(clock=self.meter, timeout_seconds=self._state.transfer_timeout_seconds)
        return [(self._local_of[expert], gradients) for expert, gradients in returned]

    def _deliver(self, layer_pass: LayerPass, gradients: Weights) -> None:
        """Sends the guests' gradients of a pass home and lets go of it."""
        self._check_in_step(layer_pass)
        if layer_pass.exchange is not None:
            per_slot = _chunks(gradients, len(self.route.layout.shapes)) if gradients else []
            sent = layer_pass.exchange.launch(dict(zip(layer_pass.slots, per_slot, strict=True)))
            if sent:
                self._state.note_sent(sent)
        self.supply.release(layer_pass)
        self.pins.end(layer_pass)

    def _check_in_step(self, layer_pass: LayerPass) -> None:
        step, now = layer_pass.site.step, self._state.step
        if step != now or not self._state.is_in_step:
            raise RuntimeError(
                f"a backward of step {step} ran {'after its end' if step == now else f'in step {now}'}, when its"
                " guests were gone: end all backwards before agent.end_step()"
            )


def _chunks(tensors: Weights, size: int) -> list[Weights]:
    return [tensors[start : start + size] for start in range(0, len(tensors), size)]

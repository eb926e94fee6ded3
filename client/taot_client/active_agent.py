"""The agent at work: the parts of one rank, and what happens to them at the boundaries of a step."""

from __future__ import annotations

import atexit
import logging
from typing import Any

import torch
from rich.console import Group
from torch import nn
from torch.utils.hooks import RemovableHandle

from taot_api import SessionSpec
from taot_client.agent_state import AgentState
from taot_client.coordinator import PlainCoordinator
from taot_client.device import make_mover
from taot_client.groups import AgentGroups, ExpertParallelGroup, all_gather_text
from taot_client.layer_agent import LayerAgent
from taot_client.measuring.layer_meter import LayerMeter
from taot_client.model_layers import NamedLayer, model_device
from taot_client.options import AgentOptions
from taot_client.pinned_passes import in_backward
from taot_client.planner.leader import Leader
from taot_client.planner.step_control import LEADER, StepControl
from taot_client.planner.step_record import StepMode, StepRecord
from taot_client.run_report import RunReport
from taot_client.step_summary import StepSummary
from taot_client.trace_recorder import TraceFile
from taot_client.transfers.guest_memory import GuestMemory
from taot_client.transfers.guest_supply import GuestSupply
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shared_supply import SharedSlots, SharedSupply
from taot_client.transfers.slot_table import SlotTable

logger = logging.getLogger(__name__)


class ActiveAgent:
    """What `Agent` stands for unless it is switched off."""

    def __init__(
        self,
        model: nn.Module,
        layers: list[NamedLayer],
        options: AgentOptions,
        spec: SessionSpec,
        *,
        group: ExpertParallelGroup,
        groups: AgentGroups,
    ) -> None:
        """Takes over the coordination of a model's layers. Collective.

        Raises:
            ValueError: on every rank, if the planner refuses the job.
        """
        self._layers = layers
        self._hooks: list[RemovableHandle] = []
        source = options.effective_plan_source
        self._report = RunReport(f"{options.algorithm}, {source}, {group.size} ranks")
        shape = (len(layers), spec.topology.num_ranks, spec.topology.max_slots)
        self.state = AgentState(
            options=options,
            group=group,
            spec=spec,
            control=StepControl(groups.control, group, shape=shape),
            leader=Leader(options, spec) if group.rank == LEADER else None,
        )
        self._start_leader(groups, group)
        self._attach(groups)
        self._hooks.append(model.register_forward_pre_hook(self._begin_forward))
        self.state.control.offer(self._next_record())

    def _start_leader(self, groups: AgentGroups, group: ExpertParallelGroup) -> None:
        leader = self.state.leader
        refusal = leader.start() if leader is not None else ""
        refusals = all_gather_text(groups.control, refusal, size=group.size)
        if refusals[LEADER]:
            if leader is not None:
                leader.close()
            raise ValueError(f"the planner refuses this job: {refusals[LEADER]}")
        if leader is not None:
            atexit.register(leader.leave)

    def _attach(self, groups: AgentGroups) -> None:
        state, device = self.state, model_device(self._layers)
        state.weight_mover = make_mover(
            groups.weights, device=device, clock=state.clock, name="weights", links=state.links
        )
        state.gradient_mover = make_mover(groups.gradients, device=device, clock=state.clock, name="gradients")
        routes = [
            LayerRoute(
                rank=state.group.rank,
                layer=index,
                name=name,
                layout=layer.experts.layout(),
                device=device,
                is_labelled=device.type == "cpu" or state.options.debug,
            )
            for index, (name, layer) in enumerate(self._layers)
        ]
        memory = GuestMemory(routes, num_slots=state.options.num_slots, residency=state.options.slot_residency)
        shared = SharedSlots.of(memory.num_sets) if state.options.slot_residency == "shared" else None
        for route, (_, layer) in zip(routes, self._layers, strict=True):
            slots = SlotTable(route, memory.buffers_of(route.layer), poison=state.options.debug)
            meter = LayerMeter(device=device, clock=state.clock)
            supply = (
                GuestSupply(state, layer, route, slots, clock=meter)
                if shared is None
                else SharedSupply(state, layer, route, slots, clock=meter, shared=shared)
            )
            state.layers.append(LayerAgent(state, layer, route, supply, meter=meter))
            layer.coordinator = state.layers[-1]
            for module in layer.module.modules():  # any of them can be loaded by itself
                self._hooks.append(module.register_load_state_dict_post_hook(self._note_loaded))
        self._announce(memory)

    def _announce(self, memory: GuestMemory) -> None:
        state = self.state
        logger.log(
            logging.INFO if state.leader is not None else logging.DEBUG,
            "%d ranks, %d layers of %s experts, %d sets of %d %s guest slots, %.1f MB (%d bytes) of guest memory a"
            " rank, %s plans %s, planner %s",
            state.group.size,
            len(state.layers),
            "/".join(map(str, sorted({layer.num_experts for _, layer in self._layers}))),
            memory.num_sets,
            state.options.num_slots,
            state.options.slot_residency,
            memory.num_bytes / 1e6,
            memory.num_bytes,
            state.options.algorithm,
            state.options.effective_plan_source,
            state.options.planner_address or "none",
        )

    def begin_step(self) -> None:
        """See `Agent.begin_step`."""
        state = self.state
        for layer in state.layers:
            layer.layout_watch.check()
        if not state.control.is_pending:  # the last step was not ended, for instance after an exception
            self._drain()
            state.control.offer(self._next_record())
        state.begin_step(state.control.take(step=state.step + 1, weight_epoch=state.weight_epoch))
        self._send_for_guests()

    def end_step(self) -> StepSummary:
        """See `Agent.end_step`."""
        self._drain()
        summary = self.state.end_step()
        self._report.add(summary)
        self.state.control.offer(self._next_record())
        return summary

    def set_micro_batch(self, index: int | None) -> int | None:
        """Says which micro-batch forwards and backwards belong to; returns what was said before."""
        before, self.state.micro_batch_index = self.state.micro_batch_index, index
        return before

    def record(self, trace: TraceFile) -> None:
        """Adds every pass from now on to a trace."""
        self.state.trace = trace

    def weights_changed(self) -> None:
        """See `Agent.weights_changed`."""
        if not self.state.is_in_step:
            return  # the next step fetches its guests anyway
        self.state.check_none_in_flight()
        self.state.weight_changes.announce()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _begin_forward(self, model: nn.Module, inputs: object) -> None:
        """Makes the first layer's gate, which no layer before it does.

        Its guests' gradients then have the backward of all that the model does before that layer to travel.
        """
        del model, inputs
        if torch.is_grad_enabled() and not in_backward():  # a recomputation makes gates of its own
            self.state.layers[0].prepare_gate()

    def _note_loaded(self, module: nn.Module, keys: object) -> None:
        """Announces weights that `load_state_dict` has changed; passes in flight cannot be used any more."""
        del module, keys
        if self.state.is_in_step:
            self.state.weight_changes.announce()

    def transfer_seconds(self) -> tuple[float, float]:
        """See `Agent.transfer_seconds`."""
        return self.state.clock.flight_seconds, self.state.clock.exposed_seconds

    def report(self) -> Group:
        """See `Agent.report`."""
        return self._report.render(self.state.rank_totals(), self.planner_stats())

    def planner_stats(self) -> dict[str, Any]:
        """See `Agent.planner_stats`."""
        return self.state.leader.planner_stats() if self.state.leader is not None else {}

    def close(self) -> None:
        """See `Agent.close`."""
        for (_, layer), mine in zip(self._layers, self.state.layers, strict=True):
            if layer.coordinator is mine:
                layer.coordinator = PlainCoordinator(layer.group, layer.home_E)
        for hook in self._hooks:
            hook.remove()
        self.state.weight_mover.close()
        self.state.gradient_mover.close()
        if self.state.leader is not None:
            atexit.unregister(self.state.leader.leave)
            self.state.leader.close()

    def _send_for_guests(self) -> None:
        state = self.state
        for index, layer in enumerate(state.layers):
            layer.begin_step(state.planned_guests(index) if state.mode is StepMode.PLAN else None)
        state.departures.begin()

    def _drain(self) -> None:
        state = self.state
        with state.clock.exposed():
            state.weight_mover.drain(state.transfer_timeout_seconds)
            state.gradient_mover.drain(state.transfer_timeout_seconds)

    def _next_record(self) -> StepRecord | None:
        leader = self.state.leader
        return None if leader is None else leader.next_record(step=self.state.step + 1)

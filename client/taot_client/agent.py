"""The agent in each rank: finds the layers, keeps the ranks in step, and ties the parts together.

A training loop calls `begin_step` before the first forward of a step and `end_step` after its last backward,
before clipping and the optimizer. Everything else happens inside the layers.
"""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from torch import nn

from taot_api import LayerSpec, SessionSpec
from taot_client import token_layout
from taot_client.agent_state import AgentState
from taot_client.agreement import check_agreement
from taot_client.coordinator import PlainCoordinator
from taot_client.device import make_mover
from taot_client.environment import is_disabled
from taot_client.groups import AgentGroups, ExpertParallelGroup, agent_groups, all_gather_text
from taot_client.layer_agent import LayerAgent
from taot_client.layer_route import LayerRoute
from taot_client.leader import Leader
from taot_client.model_layers import (
    NamedLayer,
    describe_layer,
    expert_layout,
    find_layers,
    refuse_unsupported,
)
from taot_client.options import AgentOptions
from taot_client.plain_tally import PlainTally
from taot_client.slot_table import SlotTable
from taot_client.step_control import LEADER, StepControl
from taot_client.step_record import StepMode
from taot_client.step_summary import StepSummary
from taot_client.topology_detection import detect_topology
from taot_planning import PlanningOptions, __version__, warm_up
from taot_planning.options import PPM

logger = logging.getLogger(__name__)


class Agent:
    """Balances the experts of one model over its expert-parallel group."""

    def __init__(
        self, model: nn.Module, options: AgentOptions | None = None, *, groups: AgentGroups | None = None
    ) -> None:
        """Attaches to every `ExpertParallelMoE` of a model. Collective over its group.

        Args:
            model: the model, wrapped or not; its layers share one `ExpertParallelGroup`.
            options: the same on every rank; defaults when None.
            groups: process groups for the agent; created over the ranks of the layers' group when None.

        Raises:
            ValueError: on every rank, if the model has no such layer, is not supported, differs between ranks,
                or is refused by the planner.
        """
        self._options = options or AgentOptions()
        self._layers = find_layers(model)
        refuse_unsupported(self._layers)
        group = self._layers[0][1].group
        self._disabled = is_disabled()
        topology = detect_topology(group, self._options)
        check_agreement(group.counts, self._facts(group), size=group.size)
        self._plain = PlainTally(self._layers) if self._disabled else None
        if self._disabled:
            logger.info("rank %d: TAOT_DISABLE is set, plain expert parallelism", group.rank)
            return

        warm_up()
        token_layout.warm_up()
        options = self._options
        groups = groups or agent_groups(group, timeout=options.group_timeout)
        spec = _session_spec(self._layers, options, topology)
        shape = (len(self._layers), topology.num_ranks, topology.max_slots)
        self._state = AgentState(
            options=options,
            group=group,
            spec=spec,
            control=StepControl(groups.control, group, shape=shape),
            leader=Leader(options, spec) if group.rank == LEADER else None,
        )
        self._start_leader(groups, group)
        self._attach(groups)
        self._state.control.offer(self._next_record())

    def _start_leader(self, groups: AgentGroups, group: ExpertParallelGroup) -> None:
        leader = self._state.leader
        refusal = leader.start() if leader is not None else ""
        refusals = all_gather_text(groups.control, refusal, size=group.size)
        if refusals[LEADER]:
            self.close()
            raise ValueError(f"the planner refuses this job: {refusals[LEADER]}")
        if leader is not None:
            atexit.register(leader.close)

    def _attach(self, groups: AgentGroups) -> None:
        state = self._state
        device = self._layers[0][1].experts.weights()[0].device
        state.weight_mover = make_mover(groups.weights, device=device, clock=state.clock, name="weights")
        state.gradient_mover = make_mover(groups.gradients, device=device, clock=state.clock, name="gradients")
        for index, (name, layer) in enumerate(self._layers):
            layout = expert_layout(layer)
            route = LayerRoute(rank=state.group.rank, layer=index, name=name, layout=layout, device=device)
            slots = SlotTable(
                num_slots=state.options.num_slots, layout=layout, device=device, poison=state.options.debug
            )
            state.layers.append(LayerAgent(state, layer, route, slots))
            layer.coordinator = state.layers[-1]
        guest_bytes = sum(len(each.slots.slots) * each.route.layout.buffer_bytes for each in state.layers)
        logger.log(
            logging.INFO if state.leader is not None else logging.DEBUG,
            "%d ranks, %d layers, %d guest slots each, %.1f MB of guest memory a rank, plans %s, planner %s",
            state.group.size,
            len(state.layers),
            state.options.num_slots,
            guest_bytes / 1e6,
            state.options.effective_plan_source,
            state.options.planner_address or "none",
        )

    # The two touch points.

    def begin_step(self) -> None:
        """Begins a step, before its first forward and after everything that changed weights. Collective.

        Waits for the leader's record, then sends for the guests of the step.
        """
        if self._plain is not None:
            self._plain.begin_step()
            return
        state = self._state
        if not state.control.is_pending:  # the last step was not ended, for instance after an exception
            self._drain()
            state.control.offer(self._next_record())
        record = state.control.take(step=state.step + 1, weight_epoch=state.weight_epoch)
        state.begin_step(record)
        self._send_for_guests()

    def end_step(self) -> StepSummary:
        """Ends a step, after its last backward and before clipping and the optimizer. Collective.

        Returns when all gradients are home; the next step's record is on its way.
        """
        if self._plain is not None:
            return self._plain.end_step()
        self._drain()
        summary = self._state.summary()
        self._state.control.offer(self._next_record())
        return summary

    # For loops that are not plain.

    @contextmanager
    def micro_batch(self, index: int) -> Iterator[None]:
        """Says which micro-batch of the step a forward or backward belongs to.

        Needed only where several are in flight or backward recomputes out of order; a plain attribute, since
        backward runs in other threads.
        """
        if self._plain is not None:
            yield
            return
        before, self._state.micro_batch_index = self._state.micro_batch_index, index
        try:
            yield
        finally:
            self._state.micro_batch_index = before

    def weights_changed(self) -> None:
        """Tells that weights changed between `begin_step` and `end_step`: guests are fetched anew. Collective.

        Raises:
            RuntimeError: if a forward still waits for its backward.
        """
        if self._plain is not None:
            return
        in_flight = [each.route.name for each in self._state.layers if each.pins.num_in_flight]
        if in_flight:
            raise RuntimeError(f"weights changed while layer {in_flight[0]!r} waits for a backward")
        self._drain()
        self._state.weight_epoch += 1
        self._send_for_guests()

    def transfer_seconds(self) -> tuple[float, float]:
        """Seconds this rank's transfers were in flight, and seconds it stood still for them, since the start."""
        if self._plain is not None:
            return 0.0, 0.0
        return self._state.clock.flight_seconds, self._state.clock.exposed_seconds

    @property
    def planner_stats(self) -> dict[str, Any]:
        """What the leader knows of the planner, for logs; empty on other ranks and without a planner."""
        if self._plain is not None or self._state.leader is None or self._state.leader.link is None:
            return {}
        link = self._state.leader.link
        return {
            "connected": link.is_connected,
            "reconnects": link.num_reconnects,
            "rejected_plans": link.num_rejected_plans,
            "dropped_reports": link.num_dropped_reports,
            "plan": link.plan,
        }

    def close(self) -> None:
        """Says goodbye to the planner and gives the layers back to plain expert parallelism."""
        for _, layer in self._layers:
            layer.coordinator = PlainCoordinator(layer.group, layer.home_E)
        if self._plain is not None:
            return
        for mover in (
            getattr(self._state, "weight_mover", None),
            getattr(self._state, "gradient_mover", None),
        ):
            if mover is not None:
                mover.close()
        if self._state.leader is not None:
            atexit.unregister(self._state.leader.close)
            self._state.leader.close()

    # Inside.

    def _send_for_guests(self) -> None:
        state = self._state
        for index, layer in enumerate(state.layers):
            layer.begin_step(state.planned_guests(index) if state.mode is StepMode.PLAN else None)

    def _drain(self) -> None:
        state = self._state
        with state.clock.exposed():
            state.weight_mover.drain(state.transfer_timeout_seconds)
            state.gradient_mover.drain(state.transfer_timeout_seconds)

    def _next_record(self) -> Any:
        leader = self._state.leader
        return None if leader is None else leader.next_record(step=self._state.step + 1)

    def _facts(self, group: ExpertParallelGroup) -> dict[str, object]:
        local = {"planner_address", "connect_timeout"}
        facts: dict[str, object] = {
            f"options.{name}": str(value) for name, value in asdict(self._options).items() if name not in local
        }
        facts["options.plan_source"] = self._options.effective_plan_source
        facts["TAOT_DISABLE"] = self._disabled
        facts["release"] = __version__
        facts["group size"] = group.size
        facts["number of layers"] = len(self._layers)
        for name, layer in self._layers:
            facts |= {f"layer {name} {key}": value for key, value in describe_layer(name, layer).items()}
        return facts


def _session_spec(layers: list[NamedLayer], options: AgentOptions, topology: Any) -> SessionSpec:
    return SessionSpec(
        training_job=options.training_job,
        group=options.group,
        incarnation=time.time_ns() // 1000,
        topology=topology,
        layers=tuple(
            LayerSpec(
                name=name,
                top_k=layer.top_k,
                expert_size_bytes=expert_layout(layer).size_bytes,
                home_E=layer.home_E,
            )
            for name, layer in layers
        ),
        algorithm=options.algorithm,
        options=PlanningOptions(
            tolerance_ppm=round(options.tolerance * PPM), min_imbalance_ppm=round(options.min_imbalance * PPM)
        ),
        client_release=__version__,
    )

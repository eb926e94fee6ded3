"""The agent: what a training loop sees of TAOT.

A training loop calls `begin_step` before the first forward of a step and `end_step` after its last backward,
before clipping and the optimizer. Everything else happens inside the layers.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.console import Group
from torch import nn

from taot_api import LayerSpec, SessionSpec
from taot_api.trace import TraceHeader
from taot_client.active_agent import ActiveAgent
from taot_client.agreement import check_agreement, share_refusals
from taot_client.environment import is_disabled
from taot_client.groups import AgentGroups, ExpertParallelGroup, agent_groups
from taot_client.model_layers import (
    NamedLayer,
    describe_layer,
    find_layers,
    model_device,
    refuse_unsupported,
)
from taot_client.options import AgentOptions
from taot_client.plain_agent import PlainAgent
from taot_client.planner.step_control import LEADER
from taot_client.self_test import check_experts
from taot_client.step_summary import StepSummary
from taot_client.topology_detection import detect_topology
from taot_client.trace_recorder import LIMIT_BYTES, TraceFile
from taot_client.warm_up import warm_up
from taot_planning import PlanningOptions, Topology, __version__
from taot_planning.kernel_sources import package_digest
from taot_planning.options import PPM

logger = logging.getLogger(__name__)


class Agent:
    """Balances the experts of one model over its expert-parallel group."""

    def __init__(
        self, model: nn.Module, options: AgentOptions | None = None, *, groups: AgentGroups | None = None
    ) -> None:
        """Attaches to every mixture-of-experts layer of a model. Collective over its group.

        Args:
            model: the model, wrapped or not, where it will be trained; its layers share one `ExpertParallelGroup`.
            options: the same on every rank; defaults when None.
            groups: process groups for the agent; created over the ranks of the layers' group when None.

        Raises:
            ValueError: if the model has no such layer; on every rank, if the model of any rank is not supported,
                models or options differ between ranks, or the planner refuses the job.
        """
        options = options or AgentOptions()
        layers = find_layers(model)
        group = layers[0][1].group
        disabled = is_disabled()
        with share_refusals(group.counts, size=group.size):
            refuse_unsupported(layers)
            if not disabled:
                check_experts(layers)
        topology = detect_topology(group, options)
        self._layers, self._options, self._topology = layers, options, topology
        self._trace: TraceFile | None = None
        self._is_recording = False
        facts = _facts(layers, options, disabled=disabled)
        check_agreement(group.counts, facts, size=group.size)
        self._agent: ActiveAgent | PlainAgent
        if disabled:
            logger.info("TAOT_DISABLE is set: plain expert parallelism")
            self._agent = PlainAgent(layers)
            return
        warm_up([options.algorithm])
        self._agent = ActiveAgent(
            model,
            layers,
            options,
            _session_spec(layers, options, topology),
            group=group,
            groups=groups or agent_groups(group, device=model_device(layers), timeout=options.group_timeout),
        )

    def begin_step(self) -> None:
        """Begins a step, before its first forward and after everything that changed weights. Collective.

        Waits for the leader's record, then sends for the guests of the step.

        Raises:
            RuntimeError: if the expert weights have another shape, dtype or device than at start.
            TransferError: if a transfer of the last step does not end.
        """
        self._agent.begin_step()

    def end_step(self) -> StepSummary:
        """Ends a step, after its last backward and before clipping and the optimizer. Collective.

        Returns when all gradients are home; the next step's record is on its way.

        Raises:
            TransferError: if a transfer of the step does not end.
        """
        return self._agent.end_step()

    @contextmanager
    def micro_batch(self, index: int) -> Iterator[None]:
        """Says which micro-batch of the step a forward or backward belongs to.

        Needed only where several are in flight or backward recomputes out of order; a plain attribute, since
        backward runs in other threads.
        """
        before = self._agent.set_micro_batch(index)
        try:
            yield
        finally:
            self._agent.set_micro_batch(before)

    def record(self, folder: str | os.PathLike[str], *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Writes the gathered counts of every micro-batch from now on to a trace, for `taot replay`. Collective.

        Works in every mode, also with `TAOT_DISABLE`. The leader writes, from a thread of its own and with bounded
        memory; what the disk cannot take in time is left out. `close` ends the trace.

        Args:
            folder: a new or empty folder on the leader's machine; ignored on other ranks.
            limit_bytes: size on disk at which recording ends.

        Raises:
            ValueError: on every rank, if the folder cannot be used.
            RuntimeError: if this agent records already.
        """
        if self._is_recording:
            raise RuntimeError("this agent records already: close it to end the trace")
        group = self._layers[0][1].group
        with share_refusals(group.counts, size=group.size):
            if group.rank == LEADER:
                header = TraceHeader(
                    training_job=self._options.training_job,
                    topology=self._topology,
                    layers=_layer_specs(self._layers),
                )
                self._trace = TraceFile(folder, header, limit_bytes=limit_bytes)
        if self._trace is not None:
            self._agent.record(self._trace)
        self._is_recording = True

    def weights_changed(self) -> None:
        """Tells that weights changed inside a step: at their next forward all ranks fetch its guests anew.

        One rank is enough, and ranks need not call it at the same place: it returns at once. Between `end_step` and
        `begin_step` nothing needs to be told, and `load_state_dict` tells it by itself.

        Raises:
            RuntimeError: if a forward still waits for its backward.
        """
        self._agent.weights_changed()

    def transfer_seconds(self) -> tuple[float, float]:
        """Seconds this rank's transfers were in flight, and seconds it stood still for them, since the start."""
        return self._agent.transfer_seconds()

    def report(self) -> Group:
        """What the agent has done since its start, as tables for a terminal: `rich.print(agent.report())`.

        Imbalances without guests, planned and realised, guests moved, fallbacks: as all ranks see them alike. Transfers
        and bytes are those of this rank; the planner's state is known to the leader, rank 0.
        """
        return self._agent.report()

    @property
    def planner_stats(self) -> dict[str, Any]:
        """What the leader knows of the planner, for logs; empty on other ranks and without a planner."""
        return self._agent.planner_stats()

    def close(self) -> None:
        """Says goodbye to the planner, ends the trace and gives the layers back to plain expert parallelism."""
        self._agent.close()
        if self._trace is not None:
            self._trace.close()


def _facts(layers: Sequence[NamedLayer], options: AgentOptions, *, disabled: bool) -> dict[str, object]:
    """What the ranks of a group must agree on, by the name that an error gives it."""
    local = {"planner_address", "planner_access", "connect_timeout"}
    facts: dict[str, object] = {
        f"options.{name}": str(value) for name, value in asdict(options).items() if name not in local
    }
    facts["options.plan_source"] = options.effective_plan_source
    facts["TAOT_DISABLE"] = disabled
    facts["release"] = __version__
    for package in ("taot_planning", "taot_client"):  # a release that somebody has changed splits tokens otherwise
        facts[f"sources of {package}"] = package_digest(package)
    facts["number of layers"] = len(layers)
    for name, layer in layers:
        facts |= {f"layer {name} {key}": value for key, value in describe_layer(name, layer).items()}
    return facts


def _layer_specs(layers: Sequence[NamedLayer]) -> tuple[LayerSpec, ...]:
    return tuple(
        LayerSpec(
            name=name,
            top_k=layer.top_k,
            expert_size_bytes=layer.experts.layout().size_bytes,
            home_E=layer.home_E,
        )
        for name, layer in layers
    )


def _session_spec(layers: Sequence[NamedLayer], options: AgentOptions, topology: Topology) -> SessionSpec:
    group: ExpertParallelGroup = layers[0][1].group
    return SessionSpec(
        training_job=options.training_job,
        group=options.group or group.name,
        incarnation=time.time_ns() // 1000,
        topology=topology,
        layers=_layer_specs(layers),
        algorithm=options.algorithm,
        options=PlanningOptions(
            tolerance_ppm=round(options.tolerance * PPM),
            min_imbalance_ppm=round(options.min_imbalance * PPM),
            min_tokens_per_guest=options.min_tokens_per_guest,
        ),
        recent_reports=options.recent_reports,
        client_release=__version__,
    )

"""The request that opens a session as a message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from taot_api.codec.topology import decode_topology, encode_topology
from taot_api.contract_error import ContractError, Reason
from taot_api.session_spec import LayerSpec, SessionSpec
from taot_api.v1 import planner_pb2 as pb
from taot_planning import PlanningOptions
from taot_planning.options import Effort

_EFFORTS: Mapping[pb.Effort, Effort] = MappingProxyType({pb.EFFORT_FAST: "fast", pb.EFFORT_BALANCED: "balanced"})

_PLANNING_OPTIONS = (
    "tolerance_ppm",
    "mu_ppm",
    "min_imbalance_ppm",
    "min_tokens_per_guest",
    "objective",
    "stretch_percent",
)
"""Fields of PlannerOptions that `PlanningOptions` has under the same name."""


def encode_session_spec(spec: SessionSpec) -> pb.OpenSessionRequest:
    """Builds the request that opens a session."""
    return pb.OpenSessionRequest(
        training_job=spec.training_job,
        group=spec.group,
        incarnation=spec.incarnation,
        layers=[
            pb.MoeLayer(
                name=layer.name,
                expert_count=layer.num_experts,
                top_k=layer.top_k,
                expert_size_bytes=layer.expert_size_bytes,
                home_ranks=layer.home_E,
                drops_tokens=layer.drops_tokens,
                token_picoseconds=layer.token_picoseconds,
            )
            for layer in spec.layers
        ],
        topology=encode_topology(spec.topology),
        options=pb.PlannerOptions(
            **{name: getattr(spec.options, name) for name in _PLANNING_OPTIONS},
            algorithm=spec.algorithm,
            effort=next(number for number, effort in _EFFORTS.items() if effort == spec.options.effort),
            plan_interval=spec.plan_interval,
            recent_report_count=spec.recent_reports,
        ),
        client_release=spec.client_release,
    )


def decode_session_spec(message: pb.OpenSessionRequest) -> SessionSpec:
    """Reads and checks the request that opens a session.

    Raises:
        ContractError: naming the field, what was got and what to do.
    """
    options = message.options
    return SessionSpec(
        training_job=message.training_job,
        group=message.group,
        incarnation=message.incarnation,
        layers=tuple(_decode_layer(layer, index=index) for index, layer in enumerate(message.layers)),
        topology=decode_topology(message.topology),
        algorithm=options.algorithm if options.HasField("algorithm") else "taot",
        options=_decode_options(options),
        plan_interval=options.plan_interval if options.HasField("plan_interval") else 1,
        recent_reports=options.recent_report_count if options.HasField("recent_report_count") else None,
        client_release=message.client_release,
    )


def _decode_options(message: pb.PlannerOptions) -> PlanningOptions:
    options = PlanningOptions()
    for name in _PLANNING_OPTIONS:
        if message.HasField(name):
            try:
                options = replace(options, **{name: getattr(message, name)})
            except ValueError as error:
                raise ContractError(Reason.INVALID_OPTION, str(error), field=f"options.{name}") from error
    if message.effort == pb.EFFORT_UNSPECIFIED:
        return options
    if message.effort not in _EFFORTS:
        offered = ", ".join(f"{number} ({effort})" for number, effort in _EFFORTS.items())
        text = f"this planner offers the efforts {offered}, got {message.effort}: choose one of them"
        raise ContractError(Reason.INVALID_OPTION, text, field="options.effort")
    return replace(options, effort=_EFFORTS[message.effort])


def _decode_layer(message: pb.MoeLayer, *, index: int) -> LayerSpec:
    if message.expert_count != len(message.home_ranks):
        raise ContractError(
            Reason.INVALID_LAYER,
            f"needs one entry per expert ({message.expert_count}), got {len(message.home_ranks)}",
            field=f"layers[{index}].home_ranks",
        )
    try:
        return LayerSpec(
            name=message.name,
            top_k=message.top_k,
            expert_size_bytes=message.expert_size_bytes,
            home_E=np.array(message.home_ranks, dtype=np.int64),
            drops_tokens=message.drops_tokens,
            token_picoseconds=message.token_picoseconds,
        )
    except ContractError as error:
        raise error.within(f"layers[{index}]") from error

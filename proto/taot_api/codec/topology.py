"""The topology of a group as a message."""

from __future__ import annotations

import numpy as np

from taot_api.codec.tensor import decode_tensor, encode_tensor
from taot_api.contract_error import ContractError, Reason
from taot_api.v1 import planner_pb2 as pb
from taot_planning import Level, Topology
from taot_planning.arrays import IntArray
from taot_planning.topology import MAX_TOKEN_CAP, NORMAL_SPEED_MILLI


def encode_topology(topology: Topology) -> pb.Topology:
    """Builds the message."""
    unknown_R = [None] * topology.num_ranks
    message = pb.Topology(
        levels=[
            pb.Topology.Level(
                name=level.name,
                transfer_cost_milli=level.transfer_cost_milli,
                bandwidth_bytes_per_second=level.bandwidth_bytes_per_second,
            )
            for level in topology.levels
        ],
        ranks=[
            pb.Topology.Rank(domains=domains_V, slot_count=slots, speed_milli=speed, token_cap=cap)
            for domains_V, slots, speed, cap in zip(
                topology.domains_RV.tolist(),
                topology.slots_R.tolist(),
                unknown_R if topology.speed_milli_R is None else topology.speed_milli_R.tolist(),
                unknown_R if topology.token_cap_R is None else topology.token_cap_R.tolist(),
                strict=True,
            )
        ],
        has_relay=topology.has_relay,
    )
    if topology.cost_matrix_milli is not None:
        message.cost_matrix_milli.CopyFrom(encode_tensor(topology.cost_matrix_milli))
    return message


def decode_topology(message: pb.Topology) -> Topology:
    """Reads and checks the message.

    Raises:
        ContractError: naming the field, what was got and what to do.
    """
    num_ranks, num_levels = len(message.ranks), len(message.levels)
    for rank, entry in enumerate(message.ranks):
        if len(entry.domains) != num_levels:
            raise ContractError(
                Reason.INVALID_TOPOLOGY,
                f"needs one domain per level ({num_levels}), got {len(entry.domains)}",
                field=f"topology.ranks[{rank}].domains",
            )
    matrix_RR = None
    if message.HasField("cost_matrix_milli"):
        matrix_RR = decode_tensor(
            message.cost_matrix_milli, shape=[num_ranks, num_ranks], field="topology.cost_matrix_milli"
        )
    try:
        return Topology(
            levels=tuple(_decode_level(level) for level in message.levels),
            domains_RV=np.array([entry.domains for entry in message.ranks], dtype=np.int64).reshape(
                num_ranks, num_levels
            ),
            slots_R=np.array([entry.slot_count for entry in message.ranks], dtype=np.int64),
            cost_matrix_milli=matrix_RR,
            speed_milli_R=_decode_per_rank(message, "speed_milli", absent=NORMAL_SPEED_MILLI),
            token_cap_R=_decode_per_rank(message, "token_cap", absent=MAX_TOKEN_CAP),
            has_relay=message.has_relay,
        )
    except ValueError as error:
        raise ContractError(Reason.INVALID_TOPOLOGY, str(error), field="topology") from error


def _decode_level(message: pb.Topology.Level) -> Level:
    is_known = message.HasField("bandwidth_bytes_per_second")
    return Level(
        name=message.name,
        transfer_cost_milli=message.transfer_cost_milli,
        bandwidth_bytes_per_second=message.bandwidth_bytes_per_second if is_known else None,
    )


def _decode_per_rank(message: pb.Topology, name: str, *, absent: int) -> IntArray | None:
    """An optional field of all ranks, `absent` on those that lack it; None when all do. Shape: [ranks]."""
    if not any(entry.HasField(name) for entry in message.ranks):
        return None
    values = [getattr(entry, name) if entry.HasField(name) else absent for entry in message.ranks]
    return np.array(values, dtype=np.int64)

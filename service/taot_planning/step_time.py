"""How long a layer's experts will take under a plan.

The model: a rank computes its home tokens first, while its guests' weights travel, then waits for what has not arrived,
then computes its guests. A rank sends its experts one after the other and receives its guests one after the other,
both at the bandwidth of the level between the two ranks; a guest that is passed on starts when its source has it. The
layer ends with its last rank. This is the forward pass with weights that start when the counts are known (`inline`): in
backward the computation takes about twice as long for the same bytes, and `ahead` starts the weights earlier. The token
exchange, which guests change little, is left out.
"""

from __future__ import annotations

import numpy as np

from taot_planning.arrays import FloatArray, IntArray, read_only
from taot_planning.guest_moves import NO_MOVES, GuestMoves
from taot_planning.kernel import brief_kernel
from taot_planning.layer_problem import LayerProblem
from taot_planning.topology import NORMAL_SPEED_MILLI

_PICOSECONDS = 10**12
"""Picoseconds in a second."""


def predict_seconds(
    problem: LayerProblem, moves: GuestMoves, loads_R: IntArray, guest_tokens_R: IntArray
) -> float | None:
    """Predicts the time of a layer's experts in seconds, or None where rates or bandwidths are unknown.

    Args:
        problem: the layer.
        moves: guests that move.
        loads_R: tokens each rank computes, home and guests together. Shape: [ranks].
        guest_tokens_R: those of its guests. Shape: [ranks].
    """
    topology, rates = problem.topology, problem.rates
    bandwidths = [level.bandwidth_bytes_per_second or 0 for level in topology.levels]
    if rates is None or not all(bandwidths):
        return None
    latest = _end_of_last(
        read_only(moves.moves_G3),
        problem.home_E.size,
        topology.level_RR,
        np.array([rates.expert_size_bytes * _PICOSECONDS // bandwidth for bandwidth in bandwidths], dtype=np.float64),
        float(rates.token_picoseconds * NORMAL_SPEED_MILLI),
        topology.speeds_R,
        read_only(loads_R),
        read_only(guest_tokens_R),
    )
    return float(latest / _PICOSECONDS)


def predict_static_seconds(problem: LayerProblem) -> float | None:
    """The same without guests."""
    return predict_seconds(problem, NO_MOVES, problem.loads.load_R, np.zeros(problem.num_ranks, dtype=np.int64))


@brief_kernel
def _end_of_last(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    moves_G3: IntArray,
    num_experts: int,
    level_RR: IntArray,
    transfer_V: FloatArray,
    token_time: float,
    speeds_R: IntArray,
    loads_R: IntArray,
    guest_tokens_R: IntArray,
) -> float:
    """When the last rank ends, in picoseconds: whole numbers at normal speed, so that equal times are equal.

    Args:
        moves_G3: expert, source and rank of each move, what is passed on after what brings it. Shape: [moves, 3].
        num_experts: experts of the layer.
        level_RR: level between two ranks. Shape: [ranks, ranks].
        transfer_V: picoseconds of a transfer at each level. Shape: [levels].
        token_time: picoseconds of a token at speed 1.
        speeds_R: speed of each rank. Shape: [ranks].
        loads_R: tokens of each rank. Shape: [ranks].
        guest_tokens_R: those of its guests. Shape: [ranks].
    """
    sent_R, received_R = np.zeros(loads_R.size), np.zeros(loads_R.size)
    arrival_G, before_G = np.empty(moves_G3.shape[0]), np.empty(moves_G3.shape[0], dtype=np.int64)
    last_E = np.full(num_experts, -1, dtype=np.int64)
    for move in range(moves_G3.shape[0]):
        expert, source, rank = moves_G3[move]
        before = last_E[expert]
        before_G[move], last_E[expert] = before, move
        while before >= 0 and moves_G3[before, 2] != source:
            before = before_G[before]
        if before >= 0:  # it is passed on
            sent_R[source] = max(sent_R[source], arrival_G[before])
        transfer = transfer_V[level_RR[source, rank]]
        sent_R[source] += transfer
        received_R[rank] = max(received_R[rank] + transfer, sent_R[source])
        arrival_G[move] = received_R[rank]
    latest = 0.0
    for rank in range(loads_R.size):
        home = (loads_R[rank] - guest_tokens_R[rank]) * token_time / speeds_R[rank]
        guests = guest_tokens_R[rank] * token_time / speeds_R[rank]
        latest = max(latest, max(home, received_R[rank]) + guests)
    return latest

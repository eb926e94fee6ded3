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

from taot_planning.arrays import IntArray
from taot_planning.guest_moves import NO_MOVES, GuestMoves
from taot_planning.layer_problem import LayerProblem, LayerRates
from taot_planning.topology import NORMAL_SPEED_MILLI, Topology

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
    topology = problem.topology
    if problem.rates is None or any(level.bandwidth_bytes_per_second is None for level in topology.levels):
        return None
    arrival_R = _arrivals(topology, problem.rates, moves)
    latest = 0
    for rank, speed in enumerate(topology.speeds_R.tolist()):
        load, guests = int(loads_R[rank]), int(guest_tokens_R[rank])
        per_token = problem.rates.token_picoseconds * NORMAL_SPEED_MILLI
        home = (load - guests) * per_token // speed
        latest = max(latest, max(home, arrival_R[rank]) + guests * per_token // speed)
    return latest / _PICOSECONDS


def predict_static_seconds(problem: LayerProblem) -> float | None:
    """The same without guests."""
    return predict_seconds(problem, NO_MOVES, problem.loads.load_R, np.zeros(problem.num_ranks, dtype=np.int64))


def _arrivals(topology: Topology, rates: LayerRates, moves: GuestMoves) -> list[int]:
    """When each rank has all of its guests, in picoseconds; 0 where none move."""
    sent = [0] * topology.num_ranks
    received = [0] * topology.num_ranks
    arrival: dict[tuple[int, int], int] = {}
    for expert, source, rank in moves.moves_G3.tolist():
        bandwidth = topology.levels[int(topology.level_RR[source, rank])].bandwidth_bytes_per_second
        assert bandwidth is not None
        duration = rates.expert_size_bytes * _PICOSECONDS // bandwidth
        sent[source] = max(sent[source], arrival.get((expert, source), 0)) + duration
        received[rank] = max(received[rank] + duration, sent[source])
        arrival[expert, rank] = received[rank]
    return received

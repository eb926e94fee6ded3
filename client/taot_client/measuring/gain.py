"""What guests gain and what they cost, measured or predicted: pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taot_client.transfers.departures import LAYERS_UNDER_WAY
from taot_planning import EMPTY_SLOT, LayerProblem, plan_from_guests, rank_loads
from taot_planning.arrays import IntArray
from taot_planning.guest_moves import NO_MOVES, list_moves
from taot_planning.step_time import predict_seconds

TRAINING_PER_FORWARD = 3
"""Time of forward and backward in forwards: gradients of tokens and of weights take about one each."""

_PICOSECONDS = 10**12


def measured_gain_us(*, saved_tokens: int, token_picoseconds: int, exposed_us: int) -> int:
    """Microseconds that a layer's guests have saved in a step, less what training stood still for them.

    Only forwards are timed; a backward counts as two. What guests cost that nobody waits for is left out: packing,
    memory traffic, links that others want to use.

    Args:
        saved_tokens: tokens of the fullest rank without guests, less those with them, over all passes.
        token_picoseconds: time of one token in one expert, forward.
        exposed_us: the longest time that a rank stood still.
    """
    return saved_tokens * token_picoseconds * TRAINING_PER_FORWARD // 10**6 - exposed_us


def most_saved_us(static_R: IntArray, *, token_us: float) -> float:
    """Microseconds that guests can save at most: what the fullest rank has above the mean.

    Args:
        static_R: tokens of each rank without guests. Shape: [ranks].
        token_us: time of one token in one expert, forward.
    """
    loads: list[int] = static_R.tolist()
    return (max(loads) - sum(loads) / len(loads)) * token_us * TRAINING_PER_FORWARD


def without_vain_guests(problem: LayerProblem, guests_RK: IntArray, *, num_journeys: int) -> IntArray:
    """The guests, or none where training is not expected to gain more than it waits for them. Shape: [ranks, slots].

    Guests save time in forward and backward, and are waited for on each of their journeys in a pass. Where rates are
    unknown nothing is predicted, and the guests stay.
    """
    if problem.rates is None or not (guests_RK != EMPTY_SLOT).any():
        return guests_RK
    nothing_RK = np.full_like(guests_RK, EMPTY_SLOT)
    plan, moves, no_moves = plan_from_guests(problem, guests_RK), list_moves(problem, guests_RK), NO_MOVES
    loads_R, guest_tokens_R = plan.loads_R(problem), plan.tokens_RK.sum(axis=1)
    static_R = rank_loads(problem.counts_RE, problem.home_E)
    seconds = predict_seconds(problem, moves, loads_R, guest_tokens_R)
    there = predict_seconds(problem, no_moves, loads_R, guest_tokens_R)
    without = predict_seconds(problem, no_moves, static_R, np.zeros_like(static_R))
    if seconds is None or there is None or without is None:
        return guests_RK
    is_vain = TRAINING_PER_FORWARD * (without - there) <= num_journeys * (seconds - there)
    return nothing_RK if is_vain else guests_RK


def worthwhile_layers(
    problems_L: Sequence[LayerProblem | None],
    guests_LRK: IntArray,
    *,
    reach_seconds_L: Sequence[float],
    passes_L: Sequence[int],
) -> list[bool]:
    """Which layers' guests are expected to gain more than they cost, where they leave as `Departures` lets them.

    The weights of all layers leave one after the other, in forward order: the first when the step begins, the others
    once the layer has been reached before which there is room. What has not arrived when the layer is reached counts as
    exposed. Left out: the gradients' way home, that guests which are late are not waited for, and
    whatever else uses the links. Layers whose rates are unknown stay, and their transfers count as free.

    Args:
        problems_L: each layer with its last counts and rates; None where nothing has been counted.
        guests_LRK: the guests that leave. Shape: [layers, ranks, slots].
        reach_seconds_L: when each layer was reached in the last step, after its guests had left.
        passes_L: micro-batches that use a layer's guests.
    """
    sent_R = received_R = np.zeros(guests_LRK.shape[1], dtype=np.int64)
    worth_L = []
    reached: list[int] = []  # the layers so far whose guests are worth it, in picoseconds
    for problem, guests_RK, reach_seconds, passes in zip(
        problems_L, guests_LRK, reach_seconds_L, passes_L, strict=True
    ):
        if problem is None or problem.rates is None or problem.topology.levels[0].bandwidth_bytes_per_second is None:
            worth_L.append(True)
            continue
        leave = reached[-LAYERS_UNDER_WAY] if len(reached) >= LAYERS_UNDER_WAY else 0
        reach = round(reach_seconds * _PICOSECONDS)
        later_sent_R, later_received_R = _send(
            problem, guests_RK, np.maximum(sent_R, leave), np.maximum(received_R, leave)
        )
        exposed = max(0, int(later_received_R.max()) - reach)
        static_R = rank_loads(problem.counts_RE, problem.home_E)
        loads_R = plan_from_guests(problem, guests_RK).loads_R(problem)
        saved = int(static_R.max() - loads_R.max()) * problem.rates.token_picoseconds * TRAINING_PER_FORWARD * passes
        worth_L.append(saved > exposed)
        if worth_L[-1]:
            sent_R, received_R = later_sent_R, later_received_R
            if (guests_RK != EMPTY_SLOT).any():
                reached.append(reach)
    return worth_L


def _send(
    problem: LayerProblem, guests_RK: IntArray, sent_R: IntArray, received_R: IntArray
) -> tuple[IntArray, IntArray]:
    """When each rank has sent and received everything, in picoseconds, with one more layer's guests. Shape: [ranks]."""
    sent_R, received_R = sent_R.copy(), received_R.copy()
    assert problem.rates is not None
    topology, moves = problem.topology, list_moves(problem, guests_RK)
    for source, rank in zip(moves.source_G.tolist(), moves.rank_G.tolist(), strict=True):
        bandwidth = topology.levels[int(topology.level_RR[source, rank])].bandwidth_bytes_per_second
        assert bandwidth is not None, "bandwidths are known for all levels or for none"
        duration = problem.rates.expert_size_bytes * _PICOSECONDS // bandwidth
        sent_R[source] += duration
        received_R[rank] = max(received_R[rank] + duration, sent_R[source])
    return sent_R, received_R

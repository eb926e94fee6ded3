"""Layers of one report planned together: the guests of `plan_layer`, in one kernel without Python between the layers.

A planner makes placements for micro-batches to come, layer after layer. What Python does around the kernels of a layer
takes half as long as the search, and keeps other threads from running. Where ahead-of-time placements are all that
is asked for, none of it is needed: no split by sources, which ranks make for themselves, and no objects on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.algorithms.robust_guests import RESCUE_FACTOR, no_guests, rounds_for, scaled_capacities
from taot_planning.algorithms.scenario_search import search_robust_guests
from taot_planning.algorithms.scenarios import make_up
from taot_planning.algorithms.tolerance import gates_ahead
from taot_planning.arrays import IntArray
from taot_planning.assignment import load_guests
from taot_planning.capacity import pace_for, strain
from taot_planning.copy_loads import NO_CAPS
from taot_planning.explanation import Gate
from taot_planning.guest_moves import NOBODY, find_moves
from taot_planning.kernel import inner_kernel, kernel
from taot_planning.layer_plan import PlanStats, are_possible
from taot_planning.load import imbalance, measure_loads, moved_loads
from taot_planning.options import PlanningOptions
from taot_planning.topology import Topology

_IS_RIGHT, _TOTAL, _COST, _MOVES, _INTRA = 0, 1, 2, 3, 4
"""Columns of the kernel's figures: whether counts and placement are right; all tokens; cost of the moves, in
thousandths; moves; those within a node."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBatch:
    """Layers of one micro-batch with as many experts each. Arrays are read-only; ranks without token caps."""

    counts_LRE: IntArray
    """Tokens routed from each source rank to each expert. Shape: [layers, ranks, experts]."""

    home_LE: IntArray
    """Home rank of each expert. Shape: [layers, experts]."""

    recent_LNE: IntArray
    """Tokens of each expert in recent micro-batches, newest first. Shape: [layers, micro-batches, experts]."""

    begin_LRK: IntArray
    """Guests that the search begins with, -1 where none. Shape: [layers, ranks, slots]."""

    topology: Topology
    """The ranks, and what a move between two of them costs."""

    @classmethod
    def of(
        cls,
        counts_L: list[IntArray],
        home_L: list[IntArray],
        recent_L: list[IntArray],
        begin_L: list[IntArray],
        topology: Topology,
    ) -> LayerBatch:
        """Copies the arrays of layers, one of each per layer; guests to begin with may be left out."""
        begin_L = begin_L or [no_guests(topology)] * len(home_L)
        stacked = [np.stack(array_L) for array_L in (counts_L, home_L, recent_L, begin_L)]
        for array in stacked:
            array.setflags(write=False)
        counts_LRE, home_LE, recent_LNE, begin_LRK = stacked
        return cls(
            counts_LRE=counts_LRE, home_LE=home_LE, recent_LNE=recent_LNE, begin_LRK=begin_LRK, topology=topology
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedLayer:
    """The guests of one layer, proven to be possible, and what they achieve."""

    guests_RK: IntArray
    """Expert in each guest slot, -1 where empty. Shape: [ranks, slots]."""

    tokens_RK: IntArray
    """Tokens each guest takes over on the counts at hand. Shape: [ranks, slots]."""

    home_loads_R: IntArray
    """Tokens of each rank without guests. Shape: [ranks]."""

    loads_R: IntArray
    """Tokens of each rank with them. Shape: [ranks]."""

    stats: PlanStats
    """What the plan achieves on the counts at hand; no predicted time."""

    gates: tuple[Gate, ...]
    """What there is to tell about it."""


def can_place_together(algorithm: str, options: PlanningOptions, topology: Topology) -> bool:
    """Whether `place_together` gives the guests that `plan_layer` gives for recent micro-batches."""
    is_plain = options.min_imbalance_ppm == 0 and options.min_tokens_per_guest <= 1
    is_search = algorithm == "taot" and options.objective == "tolerance" and options.effort != "exact"
    return is_plain and is_search and topology.token_cap_R is None and topology.max_slots > 0


def place_together(batch: LayerBatch, options: PlanningOptions) -> list[PlacedLayer | None]:
    """Places guests for the micro-batch after `batch`, see `can_place_together`.

    Returns:
        One entry per layer; None where `plan_layer` has more to say: what is wrong with the counts, or that no guests
        are as good.
    """
    topology = batch.topology
    placed = _place(
        batch.counts_LRE,
        batch.home_LE,
        batch.recent_LNE,
        options.stretch_percent,
        topology.cost_milli_RR,
        topology.slots_R,
        topology.nodes_R,
        topology.speeds_R,
        scaled_capacities(0, options.tolerance_ppm, topology),
        batch.begin_LRK,
        rounds_for(topology.num_ranks, options.effort),
        topology.has_relay,
    )
    for array in placed:
        array.setflags(write=False)
    layers = zip(*placed, strict=True)
    return [_judge(*layer, topology=topology, tolerance_ppm=options.tolerance_ppm) for layer in layers]


def _judge(  # noqa: PLR0913 - one array of the kernel each
    guests_RK: IntArray,
    tokens_RK: IntArray,
    home_loads_R: IntArray,
    loads_R: IntArray,
    figures_F: IntArray,
    *,
    topology: Topology,
    tolerance_ppm: int,
) -> PlacedLayer | None:
    """Draws up one layer; None where it takes more than that."""
    is_right, total, cost_milli, num_moves, num_intra = figures_F.tolist()
    if not is_right:
        return None
    gates = gates_ahead(loads_R, pace_for(total, tolerance_ppm, topology), topology, has_guests=num_moves > 0)
    if Gate.OUT_OF_REACH in gates and num_moves and strain(loads_R, topology) >= strain(home_loads_R, topology):
        return None
    stats = PlanStats(
        imbalance_before=imbalance(home_loads_R, topology.speed_milli_R),
        imbalance_after=imbalance(loads_R, topology.speed_milli_R),
        intra_guests=num_intra,
        inter_guests=num_moves - num_intra,
        resident_guests=0,
        weighted_cost=cost_milli / 1000,
        predicted_seconds=None,
    )
    return PlacedLayer(
        guests_RK=guests_RK,
        tokens_RK=tokens_RK,
        home_loads_R=home_loads_R,
        loads_R=loads_R,
        stats=stats,
        gates=gates,
    )


@inner_kernel
def _are_there(guests_RK: IntArray, tokens_RK: IntArray, left_E: IntArray) -> bool:
    """Whether tokens go to guests only, and no more of an expert than there are in `left_E`, which is used up."""
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            expert, tokens = guests_RK[rank, slot], tokens_RK[rank, slot]
            if tokens == 0:
                continue
            if expert < 0 or not 0 <= tokens <= left_E[expert]:
                return False
            left_E[expert] -= tokens
    return True


@kernel
def _place(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    counts_LRE: IntArray,
    home_LE: IntArray,
    recent_LNE: IntArray,
    stretch_percent: int,
    cost_RR: IntArray,
    slots_R: IntArray,
    nodes_R: IntArray,
    speeds_R: IntArray,
    cap_R: IntArray,
    begin_LRK: IntArray,
    rounds: int,
    has_relay: bool,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Guests, their tokens, loads without and with them, and figures.

    Shape: [layers, ranks, slots] twice, [layers, ranks] twice, [layers, figures].
    """
    num_layers, num_ranks, _ = counts_LRE.shape
    guests_LRK = np.full((num_layers, num_ranks, slots_R.max()), -1, dtype=np.int64)
    tokens_LRK = np.zeros(guests_LRK.shape, dtype=np.int64)
    home_loads_LR = np.zeros((num_layers, num_ranks), dtype=np.int64)
    loads_LR = np.zeros((num_layers, num_ranks), dtype=np.int64)
    figures_LF = np.zeros((num_layers, 5), dtype=np.int64)
    for layer in range(num_layers):
        counts_RE, home_E = counts_LRE[layer], home_LE[layer]
        measured = measure_loads(counts_RE, home_E)
        if not measured.is_valid:
            continue
        scenarios_JE = make_up(counts_RE, recent_LNE[layer], stretch_percent)
        guests_RK = search_robust_guests(
            scenarios_JE, home_E, cost_RR, slots_R, cap_R, begin_LRK[layer], rounds, RESCUE_FACTOR * rounds
        )
        if not are_possible(guests_RK, home_E, slots_R):
            continue
        tokens_RK = load_guests(counts_RE, home_E, nodes_R, speeds_R, NO_CAPS, guests_RK)[1]
        moves_G3, cost_milli, num_intra = find_moves(guests_RK, home_E, cost_RR, nodes_R, NOBODY, has_relay)
        guests_LRK[layer], tokens_LRK[layer] = guests_RK, tokens_RK
        home_loads_LR[layer] = measured.load_R
        loads_LR[layer] = moved_loads(measured.load_R, home_E, guests_RK, tokens_RK)
        figures_LF[layer, _TOTAL], figures_LF[layer, _COST] = measured.total, cost_milli
        figures_LF[layer, _MOVES], figures_LF[layer, _INTRA] = moves_G3.shape[0], num_intra
        figures_LF[layer, _IS_RIGHT] = _are_there(guests_RK, tokens_RK, measured.tokens_E)
    return guests_LRK, tokens_LRK, home_loads_LR, loads_LR, figures_LF

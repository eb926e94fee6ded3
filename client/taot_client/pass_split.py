"""What every rank works out by itself, and alike, once a pass has its counts and its guests.

Axis letters: S source ranks, R ranks, E experts, K guest slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taot_client.token_layout import TokenLayout, lay_out, made_layout
from taot_planning import EMPTY_SLOT, LayerPlan, Topology, two_level_topology
from taot_planning.arrays import IntArray, read_only
from taot_planning.assignment import split_copies
from taot_planning.copy_loads import NO_CAPS
from taot_planning.kernel import kernel


class PassSplit(NamedTuple):
    """The tokens of a pass, split over homes and guests."""

    plan: LayerPlan
    """The guests that get tokens, and how many of whom."""

    layout: TokenLayout
    """This rank's share of the token exchange."""

    loads_2R: IntArray
    """Tokens each rank would compute without guests, and those it is to compute. Shape: [2, ranks]."""

    has_guests: bool
    """Whether any rank computes a guest."""


def split_pass(
    *, rank: int, counts_SE: IntArray, home_E: IntArray, topology: Topology, guests_RK: IntArray
) -> PassSplit:
    """Splits the tokens over a placement as `assign_tokens` says, empties slots that get none, and lays out the rest.

    Args:
        rank: the rank whose layout is wanted.
        counts_SE: the counts at hand. Shape: [ranks, experts].
        home_E: home rank of each expert. Shape: [experts].
        topology: the ranks.
        guests_RK: expert in each guest slot, -1 where empty. Shape: [ranks, slots].
    """
    caps_R = NO_CAPS if topology.token_cap_R is None else topology.token_cap_R
    fixed = home_E, topology.nodes_R, topology.speeds_R, caps_R
    used_RK, quota_SRK, send_order, group_order, sizes_N, loads_2R, num_guests = _split(
        rank, read_only(counts_SE), *fixed, read_only(guests_RK)
    )
    return PassSplit(
        plan=LayerPlan.take_over(guests_RK=used_RK, quota_SRK=quota_SRK),
        layout=made_layout(send_order, group_order, sizes_N.tolist(), shape=guests_RK.shape),
        loads_2R=loads_2R,
        has_guests=num_guests > 0,
    )


def warm_up() -> None:
    """Compiles the kernels, so that no first call in a training step does."""
    # By the way that calls take: of arrays made here by hand some would be of another kind, and warm up nothing.
    split_pass(
        rank=0,
        counts_SE=np.zeros((1, 1), dtype=np.int64),
        home_E=read_only(np.zeros(1, dtype=np.int64)),
        topology=two_level_topology(num_ranks=1, ranks_per_node=1, slots=1, inter_cost=1),
        guests_RK=np.full((1, 1), EMPTY_SLOT, dtype=np.int64),
    )


@kernel
def _add_loads(counts_SE: IntArray, home_E: IntArray, guests_RK: IntArray, quota_SRK: IntArray) -> IntArray:
    """Tokens of each rank without guests, and with them. Shape: [2, ranks]."""
    loads_2R = np.zeros((2, counts_SE.shape[0]), dtype=np.int64)
    static_R, planned_R = loads_2R[0], loads_2R[1]
    for source in range(counts_SE.shape[0]):
        for expert in range(counts_SE.shape[1]):
            static_R[home_E[expert]] += counts_SE[source, expert]
    planned_R[:] = static_R
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            if guests_RK[rank, slot] >= 0:
                for source in range(counts_SE.shape[0]):
                    planned_R[rank] += quota_SRK[source, rank, slot]
                    planned_R[home_E[guests_RK[rank, slot]]] -= quota_SRK[source, rank, slot]
    return loads_2R


@kernel
def _split(  # noqa: PLR0913, PLR0917 - a kernel takes arrays, not the objects that hold them
    rank: int,
    counts_SE: IntArray,
    home_E: IntArray,
    nodes_R: IntArray,
    speeds_R: IntArray,
    caps_R: IntArray,
    guests_RK: IntArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray, IntArray, int]:
    """Does what `split_pass` does: one kernel, since ranks call it in the middle of a training step.

    Returns:
        The guests that get tokens, the quotas, the orders of sending and of grouping, what `lay_out` counts, the loads
        without and with guests, and the number of guests.
    """
    tokens_RK, quota_SRK = split_copies(counts_SE, home_E, nodes_R, speeds_R, caps_R, guests_RK)
    used_RK = guests_RK.copy()
    num_guests = 0
    for host in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            if tokens_RK[host, slot] > 0:
                num_guests += 1
            else:
                used_RK[host, slot] = EMPTY_SLOT
    loads_2R = _add_loads(counts_SE, home_E, used_RK, quota_SRK)
    send_order, group_order, sizes_N = lay_out(rank, counts_SE, home_E, used_RK, quota_SRK)
    return used_RK, quota_SRK, send_order, group_order, sizes_N, loads_2R, num_guests

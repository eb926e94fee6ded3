"""Sets of ranks that must give tokens away together.

Ranks of such a set have more tokens than room, so at least one guest leaves it. The linear relaxation alone does not
see that: it pays for a fraction of a guest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from taot_planning.arrays import IntArray
from taot_planning.topology import Topology

MAX_SUBSETS = 256
"""All sets within a domain are taken where there are no more than this: up to eight ranks."""


def covering_sets(topology: Topology, surplus_R: IntArray) -> Iterator[NDArray[np.bool_]]:
    """Lists sets of ranks with a positive sum of surplus.

    They are whole domains, and within the innermost domains all sets, or in large ones single ranks and pairs.

    Args:
        topology: the ranks.
        surplus_R: tokens above the capacity of each rank, negative below it. Shape: [ranks].

    Yields:
        Whether each rank belongs to the set. Shape: [ranks].
    """
    seen: set[tuple[int, ...]] = set()
    for level in range(len(topology.levels)):
        domain_R = topology.domains_RV[:, level]
        for domain in np.unique(domain_R):
            ranks = np.flatnonzero(domain_R == domain).tolist()
            sizes = {len(ranks)}
            if level == 0:
                sizes |= set(range(1, len(ranks))) if 2 ** len(ranks) <= MAX_SUBSETS else {1, 2}
            for members in (each for size in sorted(sizes) for each in combinations(ranks, size)):
                if members not in seen and surplus_R[list(members)].sum() > 0:
                    seen.add(members)
                    members_R = np.zeros(topology.num_ranks, dtype=np.bool_)
                    members_R[list(members)] = True
                    yield members_R

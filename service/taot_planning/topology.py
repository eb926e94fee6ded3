"""The ranks, where they sit, and what it costs to move an expert between two of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from taot_planning.arrays import IntArray, frozen_ints, read_only

INNERMOST_COST_MILLI = 1000
"""Cost of a move within the innermost domain: the unit of every cost, in thousandths."""

MAX_COST_MILLI = 2**31 - 1

NORMAL_SPEED_MILLI = 1000
"""Speed of a rank like the others, in thousandths."""

SPEED_LIMITS_MILLI = (10, 10_000)
"""Slowest and fastest rank that can be told, in thousandths: products of loads and speeds stay below 2^63."""

MAX_TOKEN_CAP = 2**62
"""The largest token cap: no limit."""

MAX_BANDWIDTH = 2**50
"""Fastest link that can be told, in bytes per second: about 1 PB/s."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level of the topology tree, such as one NVLink island or one rack."""

    name: str
    """For people and dashboards."""

    transfer_cost_milli: int
    """Cost of a move between ranks whose smallest common domain is at this level, in thousandths."""

    bandwidth_bytes_per_second: int | None = None
    """Bandwidth of one rank between such ranks; None: unknown, and no step time can be predicted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Topology:
    """The tree of network domains over the ranks of one expert-parallel group.

    The innermost level is the node: its domains decide what counts as intra-node. Arrays are copied and
    checked; anything array-like may be given.
    """

    levels: tuple[Level, ...]
    """Innermost first. The outermost domain holds every rank."""

    domains_RV: IntArray
    """Which domain each rank belongs to at each level. Shape: [ranks, levels]."""

    slots_R: IntArray
    """Guest experts each rank can hold per layer. Shape: [ranks]."""

    cost_matrix_milli: IntArray | None = None
    """Replaces the costs of the levels when given, in thousandths, zero diagonal. Shape: [ranks, ranks]."""

    speed_milli_R: IntArray | None = None
    """Compute speed of each rank relative to a normal one, in thousandths; None: all alike. Loads are balanced in time:
    a rank of half the speed gets half the tokens. Shape: [ranks]."""

    token_cap_R: IntArray | None = None
    """The most tokens each rank can take in one layer and micro-batch; None: no limit. Guests never push a rank above
    it; what its home experts have to compute is not refused. Shape: [ranks]."""

    has_relay: bool = False
    """Whether guests are passed on: several guests of one expert in one remote domain then pay one crossing, the others
    the cost from the rank that has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains_RV", frozen_ints(self.domains_RV, name="domains", num_axes=2))
        object.__setattr__(self, "slots_R", frozen_ints(self.slots_R, name="slots", num_axes=1))
        self._check_levels()
        self._check_domains()
        if self.slots_R.size != self.num_ranks:
            raise ValueError(f"slots must have one entry per rank ({self.num_ranks}), got {self.slots_R.size}")
        if self.slots_R.min() < 0:
            raise ValueError(f"slots must be >= 0, got {self.slots_R.min()} on rank {self.slots_R.argmin()}")
        if self.cost_matrix_milli is not None:
            matrix_RR = frozen_ints(self.cost_matrix_milli, name="cost matrix", num_axes=2)
            object.__setattr__(self, "cost_matrix_milli", matrix_RR)
            _check_cost_matrix(matrix_RR, num_ranks=self.num_ranks)
        self._freeze_per_rank("speed_milli_R", "speeds", SPEED_LIMITS_MILLI)
        self._freeze_per_rank("token_cap_R", "token caps", (0, MAX_TOKEN_CAP))

    def _freeze_per_rank(self, field: str, name: str, limits: tuple[int, int]) -> None:
        """Copies and checks an optional array with one entry per rank."""
        if getattr(self, field) is None:
            return
        values_R = frozen_ints(getattr(self, field), name=name, num_axes=1)
        object.__setattr__(self, field, values_R)
        if values_R.size != self.num_ranks:
            raise ValueError(f"{name} must have one entry per rank ({self.num_ranks}), got {values_R.size}")
        outside = np.flatnonzero((values_R < limits[0]) | (values_R > limits[1]))
        if outside.size:
            rank = int(outside[0])
            raise ValueError(f"{name} must be between {limits[0]} and {limits[1]}, got {values_R[rank]} on rank {rank}")

    def _check_levels(self) -> None:
        if not self.levels:
            raise ValueError("a topology needs at least one level")
        costs = [level.transfer_cost_milli for level in self.levels]
        if costs[0] != INNERMOST_COST_MILLI:
            raise ValueError(
                f"the innermost level {self.levels[0].name!r} must cost {INNERMOST_COST_MILLI} thousandths,"
                f" got {costs[0]}: state the other levels relative to it"
            )
        if costs != sorted(costs) or costs[-1] > MAX_COST_MILLI:
            raise ValueError(f"transfer costs must not fall from level to level nor exceed 2^31-1, got {costs}")
        for level in self.levels:
            bandwidth = level.bandwidth_bytes_per_second
            if bandwidth is not None and not 1 <= bandwidth <= MAX_BANDWIDTH:
                raise ValueError(
                    f"the bandwidth of level {level.name!r} must be 1 to 2^50 bytes per second, got {bandwidth}"
                )

    def _check_domains(self) -> None:
        domains_RV = self.domains_RV
        if domains_RV.shape[0] == 0:
            raise ValueError("a topology needs at least one rank")
        if domains_RV.shape[1] != len(self.levels):
            raise ValueError(f"every rank needs one domain per level ({len(self.levels)}), got {domains_RV.shape[1]}")
        for level in range(1, len(self.levels)):
            outer_of: dict[int, int] = {}
            for inner, outer in zip(domains_RV[:, level - 1], domains_RV[:, level], strict=True):
                if outer_of.setdefault(int(inner), int(outer)) != int(outer):
                    raise ValueError(
                        f"domain {inner} of level {self.levels[level - 1].name!r} lies in two domains of"
                        f" level {self.levels[level].name!r}: domains must nest"
                    )
        if len(set(domains_RV[:, -1].tolist())) != 1:
            raise ValueError(
                f"the outermost level {self.levels[-1].name!r} must hold every rank in one domain,"
                f" got domains {sorted(set(domains_RV[:, -1].tolist()))}: add a level that joins them"
            )

    @cached_property
    def num_ranks(self) -> int:
        """Ranks in the group."""
        return int(self.domains_RV.shape[0])

    @cached_property
    def max_slots(self) -> int:
        """The largest number of guest slots of any rank, the K axis of plans."""
        return int(self.slots_R.max())

    @cached_property
    def nodes_R(self) -> IntArray:
        """The innermost domain of each rank. Shape: [ranks]."""
        return read_only(self.domains_RV[:, 0])

    @cached_property
    def speeds_R(self) -> IntArray:
        """Speed of each rank in thousandths, also where all are alike. Shape: [ranks]."""
        if self.speed_milli_R is not None:
            return self.speed_milli_R
        return read_only(np.full(self.num_ranks, NORMAL_SPEED_MILLI, dtype=np.int64))

    @cached_property
    def level_RR(self) -> IntArray:
        """Level of the smallest domain that two ranks share, 0 the innermost. Shape: [ranks, ranks]."""
        level_RR = np.full((self.num_ranks, self.num_ranks), len(self.levels) - 1, dtype=np.int64)
        for level in range(len(self.levels) - 2, -1, -1):
            domain_R = self.domains_RV[:, level]
            level_RR[domain_R[:, None] == domain_R[None, :]] = level
        return read_only(level_RR)

    @cached_property
    def cost_milli_RR(self) -> IntArray:
        """Cost of moving an expert from rank to rank, in thousandths, 0 to itself. Shape: [ranks, ranks]."""
        if self.cost_matrix_milli is not None:
            return self.cost_matrix_milli
        cost_RR = np.array([level.transfer_cost_milli for level in self.levels], dtype=np.int64)[self.level_RR]
        np.fill_diagonal(cost_RR, 0)
        cost_RR.setflags(write=False)
        return cost_RR


def _check_cost_matrix(matrix_RR: IntArray, *, num_ranks: int) -> None:
    if matrix_RR.shape != (num_ranks, num_ranks):
        raise ValueError(f"the cost matrix must be [{num_ranks}, {num_ranks}], got {list(matrix_RR.shape)}")
    if matrix_RR.diagonal().any():
        rank = int(np.flatnonzero(matrix_RR.diagonal())[0])
        raise ValueError(f"the cost matrix must have a zero diagonal, got {matrix_RR[rank, rank]} at rank {rank}")
    off_diagonal = matrix_RR + np.eye(num_ranks, dtype=np.int64)
    if off_diagonal.min() < 1 or matrix_RR.max() > MAX_COST_MILLI:
        bad = int(off_diagonal.argmin() if off_diagonal.min() < 1 else matrix_RR.argmax())
        row, column = divmod(bad, num_ranks)
        raise ValueError(
            f"costs must be between 1 and 2^31-1 thousandths, got {matrix_RR[row, column]}"
            f" from rank {row} to rank {column}"
        )


def two_level_topology(*, num_ranks: int, ranks_per_node: int, slots: int, inter_cost: float) -> Topology:
    """Nodes of `ranks_per_node` consecutive ranks, as `node_topology` joins them; the last may hold fewer.

    Raises:
        ValueError: if a number is out of range.
    """
    if ranks_per_node < 1:
        raise ValueError(f"ranks_per_node must be >= 1, got {ranks_per_node}")
    node_R = np.arange(num_ranks, dtype=np.int64) // ranks_per_node
    return node_topology(node_R, slots=slots, inter_cost=inter_cost)


def node_topology(node_R: IntArray, *, slots: int, inter_cost: float) -> Topology:
    """Ranks on nodes; a move between nodes costs `inter_cost`, within one 1.

    Args:
        node_R: node of each rank. Shape: [ranks].
        slots: guest slots of every rank.
        inter_cost: relative to a move within a node, 1 or more.

    Raises:
        ValueError: if a number is out of range.
    """
    if not 1 <= inter_cost <= MAX_COST_MILLI / 1000:
        raise ValueError(f"inter_cost must be between 1, the cost within a node, and 2^31 / 1000, got {inter_cost:g}")
    return Topology(
        levels=(
            Level(name="node", transfer_cost_milli=INNERMOST_COST_MILLI),
            Level(name="cluster", transfer_cost_milli=round(inter_cost * 1000)),
        ),
        domains_RV=np.stack([node_R, np.zeros_like(node_R)], axis=1),
        slots_R=np.full(node_R.size, slots, dtype=np.int64),
    )

"""The answer for one layer: which guests live where, and how many tokens of each source go to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from taot_planning.arrays import MAX_COUNT, IntArray, frozen_ints, read_only
from taot_planning.assignment import split_tokens
from taot_planning.explanation import Explanation
from taot_planning.guest_moves import list_moves
from taot_planning.kernel import brief_kernel
from taot_planning.layer_problem import LayerProblem
from taot_planning.load import add_up_quotas, imbalance, moved_loads
from taot_planning.step_time import predict_seconds

EMPTY_SLOT = -1
"""What `guests_RK` holds where a slot stays empty."""


_NOTHING_TO_TELL = Explanation()


@dataclass(frozen=True, kw_only=True)
class PlanStats:
    """What a plan achieves on the counts it was made for."""

    imbalance_before: float
    """(max - mean) / mean of the ranks' load without guests."""

    imbalance_after: float
    """The same with the plan applied."""

    intra_guests: int
    """Guests that come from a rank in the same node: their home, or with relays another guest's rank."""

    inter_guests: int
    """Guests that come from another node."""

    resident_guests: int
    """Guests that were there already, and are free."""

    weighted_cost: float
    """Sum over the guests that move of the cost between the two ranks, relative to the innermost level."""

    predicted_seconds: float | None
    """Predicted time of the layer's experts, see `step_time`; None: rates or bandwidths are unknown."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPlan:
    """An immutable placement of guests with the split of the tokens it was made for."""

    guests_RK: IntArray
    """Expert in each guest slot, -1 where the slot is empty. Shape: [ranks, slots]."""

    quota_SRK: IntArray
    """Tokens of each source rank that go to each guest slot; the rest stays with the expert's home.
    Shape: [source ranks, ranks, slots]."""

    explanation: Explanation = _NOTHING_TO_TELL
    """How it came about."""

    _tokens_RK: IntArray | None = field(init=False, default=None)
    """`tokens_RK`, once somebody has asked."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "guests_RK", frozen_ints(self.guests_RK, name="guests", num_axes=2))
        object.__setattr__(self, "quota_SRK", frozen_ints(self.quota_SRK, name="quotas", num_axes=3))

    @classmethod
    def take_over(cls, *, guests_RK: IntArray, quota_SRK: IntArray) -> LayerPlan:
        """Makes a plan of int64 arrays that nobody else holds: they are frozen, not copied."""
        guests_RK.setflags(write=False)
        quota_SRK.setflags(write=False)
        plan = object.__new__(cls)
        plan.__dict__.update(guests_RK=guests_RK, quota_SRK=quota_SRK)
        return plan

    def explained(self, explanation: Explanation) -> LayerPlan:
        """The same plan with another explanation."""
        plan = object.__new__(type(self))
        plan.__dict__.update(self.__dict__, explanation=explanation)
        return plan

    @property
    def has_guests(self) -> bool:
        """Whether there is any guest."""
        return bool((self.guests_RK != EMPTY_SLOT).any())

    @property
    def tokens_RK(self) -> IntArray:
        """Tokens each guest takes over from its home, over all sources; read-only. Shape: [ranks, slots]."""
        tokens_RK = self._tokens_RK
        if tokens_RK is None:
            tokens_RK = add_up_quotas(self.quota_SRK)
            tokens_RK.setflags(write=False)
            object.__setattr__(self, "_tokens_RK", tokens_RK)
        return tokens_RK

    def loads_R(self, problem: LayerProblem) -> IntArray:
        """Tokens each rank computes under this plan, home and guests together. Shape: [ranks]."""
        return moved_loads(problem.loads.load_R, problem.home_E, self.guests_RK, self.tokens_RK)

    def stats(self, problem: LayerProblem) -> PlanStats:
        """What the plan achieves on `problem`, the counts it was made for."""
        loads_R, speed_R = self.loads_R(problem), problem.topology.speed_milli_R
        moves = list_moves(problem, self.guests_RK)
        has_rates, has_residents = problem.rates is not None, problem.resident_RK is not None
        guests = int((self.guests_RK != EMPTY_SLOT).sum()) if has_residents else moves.number
        return PlanStats(
            imbalance_before=imbalance(problem.loads.load_R, speed_R),
            imbalance_after=imbalance(loads_R, speed_R),
            intra_guests=moves.num_intra,
            inter_guests=moves.number - moves.num_intra,
            resident_guests=guests - moves.number,
            weighted_cost=moves.cost_milli / 1000,
            predicted_seconds=predict_seconds(problem, moves, loads_R, self.tokens_RK.sum(axis=1))
            if has_rates
            else None,
        )


def plan_from_guests(problem: LayerProblem, guests_RK: IntArray) -> LayerPlan:
    """Splits the tokens over a placement (see `assign_tokens`) and empties the slots that get none."""
    tokens_RK, quota_SRK = split_tokens(problem, guests_RK)
    return LayerPlan.take_over(guests_RK=np.where(tokens_RK > 0, guests_RK, EMPTY_SLOT), quota_SRK=quota_SRK)


@brief_kernel
def are_possible(guests_RK: IntArray, home_E: IntArray, slots_R: IntArray) -> bool:
    """Whether `check_guests` has nothing to say; one pass, since it is asked for every layer of every plan."""
    for rank in range(guests_RK.shape[0]):
        for slot in range(guests_RK.shape[1]):
            expert = guests_RK[rank, slot]
            if expert == EMPTY_SLOT:
                continue
            if not 0 <= expert < home_E.size or slot >= slots_R[rank] or home_E[expert] == rank:
                return False
            for before in range(slot):
                if guests_RK[rank, before] == expert:
                    return False
    return True


@brief_kernel
def _is_possible(
    guests_RK: IntArray, quota_SRK: IntArray, home_E: IntArray, slots_R: IntArray, counts_RE: IntArray
) -> bool:
    """Whether `check_plan` has nothing to say about guests and quotas that fit each other."""
    return are_possible(guests_RK, home_E, slots_R) and _are_within_counts(guests_RK, quota_SRK, counts_RE)


@brief_kernel
def _are_within_counts(guests_RK: IntArray, quota_SRK: IntArray, counts_RE: IntArray) -> bool:
    """Whether tokens go to guests only, and none that are not there; in one pass. The guests must be possible."""
    left_E = np.empty(counts_RE.shape[1], dtype=np.int64)
    for source in range(counts_RE.shape[0]):
        left_E[:] = counts_RE[source]
        for rank in range(guests_RK.shape[0]):
            for slot in range(guests_RK.shape[1]):
                expert, quota = guests_RK[rank, slot], quota_SRK[source, rank, slot]
                if quota == 0:
                    continue
                if expert == EMPTY_SLOT or not 0 <= quota <= left_E[expert]:
                    return False
                left_E[expert] -= quota
    return True


def check_guests(guests_RK: IntArray, *, home_E: IntArray, slots_R: IntArray) -> None:
    """Checks that a placement can be carried out at all; planner and agent both call this.

    Raises:
        ValueError: naming the rank and the rule that is broken: known experts only, in the rank's own slots, no
            expert twice on a rank, no guest on its own home.
    """
    shape = [slots_R.size, int(slots_R.max(initial=0))]
    if list(guests_RK.shape) != shape:
        raise ValueError(f"guests must be [ranks, slots] = {shape}, got {list(guests_RK.shape)}")
    if not are_possible(read_only(guests_RK), read_only(home_E), read_only(slots_R)):
        _refuse_guests(guests_RK, home_E, slots_R)


def _refuse_guests(guests_RK: IntArray, home_E: IntArray, slots_R: IntArray) -> NoReturn:
    """Raises the ValueError for a placement that cannot be carried out."""
    for rank, row_K in enumerate(guests_RK):
        guests = row_K[row_K != EMPTY_SLOT].tolist()
        if any(not 0 <= guest < home_E.size for guest in guests):
            raise ValueError(f"rank {rank} holds guests {guests}, the experts are 0 to {home_E.size - 1}")
        beyond = np.flatnonzero(row_K[slots_R[rank] :] != EMPTY_SLOT)
        if beyond.size:
            slot = int(slots_R[rank] + beyond[0])
            raise ValueError(f"rank {rank} has {slots_R[rank]} guest slots, the plan uses its slot {slot}")
        if len(set(guests)) != len(guests):
            raise ValueError(f"rank {rank} holds one expert twice: guests {guests}")
        at_home = [guest for guest in guests if home_E[guest] == rank]
        if at_home:
            raise ValueError(f"expert {at_home[0]} is a guest on rank {rank}, its own home")
    raise AssertionError("a placement that is refused has a reason")


def check_plan(plan: LayerPlan, problem: LayerProblem) -> None:
    """Checks every promise of a plan: `check_guests`, and every token computed exactly once.

    Raises:
        ValueError: naming what is broken and where.
    """
    home_E, slots_R = problem.home_E, problem.topology.slots_R
    num_ranks, num_slots = problem.num_ranks, problem.topology.max_slots
    has_shapes = plan.guests_RK.shape == (num_ranks, num_slots)
    has_shapes = has_shapes and plan.quota_SRK.shape == (num_ranks, num_ranks, num_slots)
    if has_shapes and _is_possible(plan.guests_RK, plan.quota_SRK, home_E, slots_R, problem.counts_RE):
        return
    check_guests(plan.guests_RK, home_E=home_E, slots_R=slots_R)
    if not has_shapes:
        raise ValueError(f"quotas must be [{num_ranks}, {num_ranks}, {num_slots}], got {list(plan.quota_SRK.shape)}")
    _refuse_quotas(plan, problem)


def _refuse_quotas(plan: LayerPlan, problem: LayerProblem) -> NoReturn:
    """Raises the ValueError for quotas that the tokens at hand do not fill."""
    if plan.quota_SRK.min(initial=0) < 0:
        source, rank, slot = np.argwhere(plan.quota_SRK < 0)[0].tolist()
        raise ValueError(f"source rank {source} sends a negative number of tokens to slot {slot} of rank {rank}")
    if plan.quota_SRK.max(initial=0) > MAX_COUNT:
        # Checked apart because sums of larger numbers could wrap around to a number that looks right.
        source, rank, slot = np.argwhere(plan.quota_SRK > MAX_COUNT)[0].tolist()
        raise ValueError(f"source rank {source} sends more than 2^31-1 tokens to slot {slot} of rank {rank}")
    ranks, slots = np.nonzero(plan.guests_RK == EMPTY_SLOT)
    to_empty = np.flatnonzero(plan.quota_SRK[:, ranks, slots].any(axis=0))
    if to_empty.size:
        raise ValueError(f"tokens go to slot {slots[to_empty[0]]} of rank {ranks[to_empty[0]]}, which is empty")
    ranks, slots = np.nonzero(plan.guests_RK != EMPTY_SLOT)
    sent_SE = np.zeros_like(problem.counts_RE)
    for rank, slot in zip(ranks.tolist(), slots.tolist(), strict=True):
        sent_SE[:, plan.guests_RK[rank, slot]] += plan.quota_SRK[:, rank, slot]
    if (sent_SE > problem.counts_RE).any():
        source, expert = np.argwhere(sent_SE > problem.counts_RE)[0].tolist()
        raise ValueError(
            f"source rank {source} has {problem.counts_RE[source, expert]} tokens for expert {expert},"
            f" the plan sends {sent_SE[source, expert]} of them to guests"
        )
    raise AssertionError("quotas that are refused have a reason")

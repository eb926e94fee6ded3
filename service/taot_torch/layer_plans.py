"""Plans for many layers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from taot_planning import EMPTY_SLOT, LayerPlan, LayerProblem, PlanningOptions, plan_from_guests, plan_layer
from taot_planning.algorithms.tolerance import BUDGETS
from taot_planning.arrays import IntArray
from taot_planning.options import Effort
from taot_torch.batch_search import Found, search_guests
from taot_torch.guests import FREE
from taot_torch.layer_search import LayerSearch, make_search
from taot_torch.search_batch import SearchBatch, stack_searches


@dataclass(frozen=True, kw_only=True)
class _Starts:
    """Further searches of a layer, beside the one that is exactly `fast`."""

    number: int
    """How many."""

    rounds: int
    """Rounds of improvement of each in a group of up to 32 ranks; more ranks get more, in proportion."""

    most_rounds: int
    """Rounds of improvement, at most."""


MORE_STARTS: Mapping[Effort, _Starts] = MappingProxyType(
    {
        "fast": _Starts(number=0, rounds=0, most_rounds=0),
        # As good as `balanced` of `taot_planning`, with a quarter of its rounds one after the other.
        "balanced": _Starts(number=15, rounds=100, most_rounds=400),
    }
)


@dataclass(frozen=True, kw_only=True)
class _Candidates:
    """What the searches of one layer found."""

    fast_RK: IntArray
    """Guests of the first start, which is `fast`. Shape: [ranks, slots]."""

    fast_left: int
    """Tokens that it leaves above the cap."""

    best_RK: IntArray
    """Guests of the best start, the first of equals. Shape: [ranks, slots]."""


def plan_layers(problems: Sequence[LayerProblem], *, options: PlanningOptions, device: torch.device) -> list[LayerPlan]:
    """Plans all layers with `taot`, in one batch of searches on the device; the tokens are split on the host.

    With effort `fast` the plans are those of `taot_planning.plan_layer`. With more effort a layer is searched from
    several starts, the first of which is `fast`; the plan is never worse than that of `fast`: no more tokens above
    the tolerance on the fullest rank, and no dearer where they are as many. The same problems give the same plans
    on every device.

    Left to `taot_planning`, with effort `fast`, are layers that need no search, layers that ask for more than the
    plain search (`make_search` says which), and layers that do not reach the tolerance in the usual rounds: a few of
    them would hold up the batch for hundreds of rounds more, and for bisections. There too more effort takes the best
    start if it is better.
    """
    fast = replace(options, effort="fast")
    searches = [make_search(problem, options) for problem in problems]
    searched = [(problem, search) for problem, search in zip(problems, searches, strict=True) if search is not None]
    found = iter(_find_guests(searched, options.effort, device) if searched else [])
    return [
        plan_layer(problem, options=fast) if search is None else _choose_plan(problem, search.cap, next(found), fast)
        for problem, search in zip(problems, searches, strict=True)
    ]


def _find_guests(
    searched: Sequence[tuple[LayerProblem, LayerSearch]], effort: Effort, device: torch.device
) -> list[_Candidates]:
    more, fast = MORE_STARTS[effort], BUDGETS["fast"]
    num_starts = 1 + more.number
    batch = stack_searches([search for _, search in searched], num_starts=num_starts, device=device)
    rounds = []
    for problem, _ in searched:
        scale = max(problem.num_ranks, 32)
        rounds.append(min(fast.rounds * scale // 32, fast.most_rounds))
        rounds += [min(more.rounds * scale // 32, more.most_rounds)] * more.number
    found = search_guests(batch, rounds=rounds, chance_B=batch.index_B % num_starts + 1)
    left_LS, cost_LS = found.left_B.view(-1, num_starts), found.cost_B.view(-1, num_starts)
    starts_L, fast_left_L = _best_start(left_LS, cost_LS).tolist(), left_LS[:, 0].tolist()
    guests_LSCK = _experts(batch, found).unflatten(0, (-1, num_starts)).cpu().numpy()
    return [
        _Candidates(
            fast_RK=_all_ranks(guests_SCK[0], problem, search),
            fast_left=fast_left,
            best_RK=_all_ranks(guests_SCK[start], problem, search),
        )
        for (problem, search), guests_SCK, fast_left, start in zip(
            searched, guests_LSCK, fast_left_L, starts_L, strict=True
        )
    ]


def _best_start(left_LS: Tensor, cost_LS: Tensor) -> Tensor:
    """The start with the fewest tokens above the cap, then the least cost, then the first. Shape: [layers]."""
    fewest_LS = left_LS == left_LS.amin(1, keepdim=True)
    return torch.where(fewest_LS, cost_LS, 2**62).argmin(1)


def _experts(batch: SearchBatch, found: Found) -> Tensor:
    """The expert in each slot, -1 where empty. Shape: [searches, cold ranks, slots]."""
    index_BCK = found.guests.expert_BCK
    expert_BCK = batch.expert_BHX.flatten(1).gather(1, index_BCK.clamp(min=0).flatten(1)).view_as(index_BCK)
    return expert_BCK.masked_fill(index_BCK == FREE, EMPTY_SLOT)


def _all_ranks(guests_CK: IntArray, problem: LayerProblem, search: LayerSearch) -> IntArray:
    """The guests of all ranks, without padding. Shape: [ranks, slots]."""
    num_slots = problem.topology.max_slots
    guests_RK = np.full((problem.num_ranks, num_slots), EMPTY_SLOT, dtype=np.int64)
    width = min(num_slots, guests_CK.shape[1])
    guests_RK[search.ranks_C, :width] = guests_CK[: search.ranks_C.size, :width]
    return guests_RK


def _choose_plan(problem: LayerProblem, cap: int, found: _Candidates, fast: PlanningOptions) -> LayerPlan:
    """The plan of the best start, unless that of `fast` is as good."""

    def shortfall(plan: LayerPlan) -> tuple[int, float]:
        return max(int(plan.loads_R(problem).max()) - cap, 0), plan.stats(problem).weighted_cost

    reached = found.fast_left == 0
    plan = plan_from_guests(problem, found.fast_RK) if reached else plan_layer(problem, options=fast)
    if np.array_equal(found.best_RK, found.fast_RK):
        return plan
    return min(plan, plan_from_guests(problem, found.best_RK), key=shortfall)

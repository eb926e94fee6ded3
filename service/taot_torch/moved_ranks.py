"""Which hot ranks of each search are moved in a round, and in which order they get new guests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from taot_planning.algorithms.guest_search import MAX_MOVED
from taot_torch.draw_sequence import number
from taot_torch.search_batch import SearchBatch

_NOBODY = -2
"""Fills up a list of hot ranks; no guest has it as its hot rank."""

_LOOKS = 3
"""Cold ranks near a hot rank that are looked at for what stands in its way, at most."""


@dataclass(frozen=True, kw_only=True)
class MovedRanks:
    """Hot ranks that are taken out and inserted again."""

    met_BM: Tensor
    """In the order in which they were met, then a filler. Shape: [searches, MAX_MOVED]."""

    ordered_BM: Tensor
    """The same in the order in which they are inserted. Shape: [searches, MAX_MOVED]."""

    count_B: Tensor
    """How many. Shape: [searches]."""


def choose_moved(batch: SearchBatch, hot_BCK: Tensor, chance_B: Tensor) -> tuple[MovedRanks, Tensor]:
    """Chooses a hot rank, and those that stand in its way on one to three cold ranks near it.

    Args:
        batch: what to search for.
        hot_BCK: the hot rank of each guest, -1 where free.
        chance_B: state of the pseudo-random sequence.

    Returns:
        The moved ranks, and the state of the sequence after that.
    """
    state_BN = batch.sequence.ahead(chance_B)
    hot_B = number(state_BN[:, 1], batch.num_hot_B)
    looks_B = 1 + number(state_BN[:, 2], _LOOKS)
    # Each look draws two cold ranks and takes the nearer one.
    pair_BT2 = state_BN[:, 3 : 3 + 2 * _LOOKS].unflatten(1, (_LOOKS, 2))
    cold_BT, other_BT = number(pair_BT2, batch.num_cold_B[:, None, None]).unbind(2)
    cost_BC = batch.cost_BHC[batch.index_B, hot_B]
    cold_BT = torch.where(cost_BC.gather(1, other_BT) < cost_BC.gather(1, cold_BT), other_BT, cold_BT)
    looked_BT = torch.arange(_LOOKS, device=hot_B.device) < looks_B[:, None]
    met_BTK = torch.where(looked_BT[:, :, None], hot_BCK[batch.index_B[:, None], cold_BT], _NOBODY)
    met_BM = _first_distinct(torch.cat([hot_B[:, None], met_BTK.flatten(1)], dim=1))
    count_B = (met_BM != _NOBODY).sum(1)
    chance_B = state_BN.gather(1, (2 + 2 * looks_B)[:, None])[:, 0]
    ordered_BM, chance_B = _order(batch, met_BM, count_B, chance_B)
    return MovedRanks(met_BM=met_BM, ordered_BM=ordered_BM, count_B=count_B), chance_B


def _first_distinct(values_BV: Tensor) -> Tensor:
    """The first `MAX_MOVED` different values >= 0 in their order, then `_NOBODY`. Shape: [searches, MAX_MOVED]."""
    num_values = values_BV.shape[1]
    earlier_VV = torch.ones((num_values, num_values), dtype=torch.bool, device=values_BV.device).tril(-1)
    repeated_BV = ((values_BV[:, :, None] == values_BV[:, None, :]) & earlier_VV).any(2)
    counts_BV = (values_BV >= 0) & ~repeated_BV
    # What does not count goes to a last column, which is cut off.
    column_BV = torch.where(counts_BV, counts_BV.cumsum(1) - 1, MAX_MOVED).clamp(max=MAX_MOVED)
    list_BM = values_BV.new_full((values_BV.shape[0], MAX_MOVED + 1), _NOBODY)
    return list_BM.scatter(1, column_BV, values_BV)[:, :MAX_MOVED]


def _order(batch: SearchBatch, met_BM: Tensor, count_B: Tensor, chance_B: Tensor) -> tuple[Tensor, Tensor]:
    """Orders moved ranks by chance, or by descending surplus, with equal odds; and the state of the sequence."""
    state_BN = batch.sequence.ahead(chance_B)
    by_chance_B = number(state_BN[:, 1], 2) == 0
    surplus_BM = batch.surplus_BH.gather(1, met_BM.clamp(min=0)).masked_fill(met_BM == _NOBODY, -1)
    sorted_BM = met_BM.gather(1, (-surplus_BM).argsort(dim=1, stable=True))
    ordered_BM = torch.where(by_chance_B[:, None], _shuffle(met_BM, count_B, state_BN), sorted_BM)
    num_draws_B = torch.where(by_chance_B, count_B, 1)
    return ordered_BM, state_BN.gather(1, num_draws_B[:, None])[:, 0]


def _shuffle(met_BM: Tensor, count_B: Tensor, state_BN: Tensor) -> Tensor:
    """Swaps each rank but the first with one up to it, by the second and further draws. Shape: that of `met_BM`."""
    for index in range(1, MAX_MOVED):
        at_B = torch.where(index < count_B, number(state_BN[:, index + 1], index + 1), index)
        here_and_there_B2 = torch.stack([torch.full_like(at_B, index), at_B], dim=1)
        met_BM = met_BM.scatter(1, here_and_there_B2.flip(1), met_BM.gather(1, here_and_there_B2))
    return met_BM

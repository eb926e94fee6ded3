"""Searches of many layers, padded and stacked: what the tensor operations read and never change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taot_planning.arrays import IntArray
from taot_torch.draw_sequence import DrawSequence, make_sequence
from taot_torch.layer_search import LayerSearch, pad

_MOST_DRAWS = 8
"""Draws that one step needs at most, but for the choice of a cold rank: there one for each."""


@dataclass(frozen=True, kw_only=True)
class SearchBatch:
    """Where a search has fewer ranks, slots or experts than others, it is padded with empty ones."""

    surplus_BH: Tensor
    """Tokens above the cap. Shape: [searches, hot ranks]."""

    room_BC: Tensor
    """Tokens below the cap. Shape: [searches, cold ranks]."""

    slots_BC: Tensor
    """Guest slots. Shape: [searches, cold ranks]."""

    cost_BHC: Tensor
    """Cost of a guest, in thousandths; 1 where padded, so that one can divide. Shape: [searches, hot ranks, cold
    ranks]."""

    expert_BHX: Tensor
    """Experts of each hot rank, largest first. Shape: [searches, hot ranks, experts of one]."""

    tokens_BHX: Tensor
    """Their tokens. Shape: [searches, hot ranks, experts of one]."""

    num_hot_B: Tensor
    """Hot ranks that are not padding. Shape: [searches]."""

    num_cold_B: Tensor
    """Cold ranks that are not padding. Shape: [searches]."""

    index_B: Tensor
    """0, 1, 2, ..., to pick one row of each search. Shape: [searches]."""

    num_slots: int
    """The K axis of guests."""

    sequence: DrawSequence
    """Jumps ahead in the pseudo-random sequence."""


def stack_searches(searches: Sequence[LayerSearch], *, num_starts: int, device: torch.device) -> SearchBatch:
    """The batch of all starts of all layers, the starts of one layer side by side."""

    def stack(arrays: Sequence[IntArray], fill: int = 0) -> Tensor:
        return torch.from_numpy(pad(arrays, fill=fill)).to(device).repeat_interleave(num_starts, dim=0)

    room_BC = stack([each.room_C for each in searches])
    return SearchBatch(
        surplus_BH=stack([each.surplus_H for each in searches]),
        room_BC=room_BC,
        slots_BC=stack([each.slots_C for each in searches]),
        cost_BHC=stack([each.cost_HC for each in searches], fill=1),
        expert_BHX=stack([each.expert_HX for each in searches]),
        tokens_BHX=stack([each.tokens_HX for each in searches]),
        num_hot_B=torch.tensor([each.surplus_H.size for each in searches], device=device).repeat_interleave(num_starts),
        num_cold_B=torch.tensor([each.room_C.size for each in searches], device=device).repeat_interleave(num_starts),
        index_B=torch.arange(room_BC.shape[0], device=device),
        num_slots=max(int(each.slots_C.max()) for each in searches),
        sequence=make_sequence(max(room_BC.shape[1], _MOST_DRAWS), device=device),
    )

"""What an expert-parallel layer asks at the points where placement matters, and the answer without an agent."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch

from taot_client.counts_gather import NO_STEP, CallSite, GatheredCounts, GatherRoom, count_choices, gather_counts
from taot_client.groups import ExpertParallelGroup
from taot_client.home_experts import Weights
from taot_client.layer_pass import LayerPass
from taot_client.token_layout import lay_out_tokens
from taot_planning import EMPTY_SLOT, LayerPlan
from taot_planning.arrays import IntArray


class Coordinator(Protocol):
    """What a layer's forward asks and tells, in this order, and what it computes."""

    def gate(self, weights: Weights) -> Weights:
        """Returns the home weights to compute with, behind whatever must see their gradients."""

    def pinned_choice(self) -> torch.Tensor | None:
        """The routing to repeat when this forward is a recomputation, else None. Shape: [tokens, choices]."""

    def admit(self, experts_TK: torch.Tensor) -> LayerPass:
        """Agrees with the other ranks on who computes which tokens. Collective."""

    def dispatched(self) -> None:
        """Notes that the tokens of a pass have been exchanged: what gave way to them on the links may start."""

    def guests(self, layer_pass: LayerPass, x_guest: torch.Tensor) -> tuple[torch.Tensor, list[Weights]]:
        """Waits for the guests of a pass; returns their tokens and the weights of each, in slot order."""

    def leave_guests(self, layer_pass: LayerPass, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Notes that the guests have computed; returns their outputs, behind what must run before their backward."""

    def computing(self, tokens: int) -> AbstractContextManager[None]:
        """Surrounds the forward of experts over so many tokens of a pass: those at home, then those of guests."""


class PlainCoordinator:
    """Plain expert parallelism: every expert stays home."""

    def __init__(
        self,
        group: ExpertParallelGroup,
        home_E: IntArray,
        *,
        on_pass: Callable[[GatheredCounts], None] | None = None,
    ) -> None:
        self._group = group
        self._home_E = home_E
        self._on_pass = on_pass
        self._room = GatherRoom(num_ranks=group.size, num_experts=home_E.size)

    def gate(self, weights: Weights) -> Weights:
        """Nothing stands between the layer and its weights."""
        return weights

    def pinned_choice(self) -> torch.Tensor | None:
        """A recomputation routes anew."""
        return None

    def admit(self, experts_TK: torch.Tensor) -> LayerPass:
        """Gathers the counts, which the split sizes need anyway."""
        site = CallSite(step=NO_STEP, micro_batch=0, layer=0)
        local = count_choices(experts_TK, num_experts=self._home_E.size, room=self._room)
        gathered = gather_counts(self._group, local, site=site, room=self._room)
        if self._on_pass is not None:
            self._on_pass(gathered)
        return home_only_pass(self._group, self._home_E, experts_TK, gathered, site=site)

    def dispatched(self) -> None:
        """Nothing gave way."""

    def guests(self, layer_pass: LayerPass, x_guest: torch.Tensor) -> tuple[torch.Tensor, list[Weights]]:
        """There are none."""
        del layer_pass
        return x_guest, []

    def leave_guests(self, layer_pass: LayerPass, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """There were none."""
        del layer_pass
        return outputs

    def computing(self, tokens: int) -> AbstractContextManager[None]:
        """Nobody asks how long it takes."""
        del tokens
        return nullcontext()


def home_only_pass(
    group: ExpertParallelGroup,
    home_E: IntArray,
    experts_TK: torch.Tensor,
    gathered: GatheredCounts,
    *,
    site: CallSite,
) -> LayerPass:
    """The pass in which every token goes to the home of its expert."""
    plan = LayerPlan(
        guests_RK=np.full((group.size, 0), EMPTY_SLOT, dtype=np.int64),
        quota_SRK=np.zeros((group.size, group.size, 0), dtype=np.int64),
    )
    layout = lay_out_tokens(
        rank=group.rank,
        counts_SE=gathered.counts_RE,
        home_E=home_E,
        guests_RK=plan.guests_RK,
        quota_SRK=plan.quota_SRK,
    )
    return LayerPass(site=site, experts_TK=experts_TK, gathered=gathered, plan=plan, layout=layout)

"""What the passes of a step came to: tokens that ranks really computed, beside those they would have without guests.

Ranks count what they compute and tell with their next gather; the difference is what the pass in between came to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from taot_planning import imbalance
from taot_planning.arrays import IntArray


@dataclass(kw_only=True, eq=False)
class LayerOutcome:
    """One layer in one step, seen by all ranks alike."""

    counts_RE: IntArray | None = None
    """What was routed in its last pass; None without any. Shape: [ranks, experts]."""

    num_passes: int = 0
    """Passes that have ended."""

    saved_tokens: int = 0
    """Tokens of the fullest rank without guests, less those it computed, over the passes with guests."""

    used_guests: bool = False
    """Whether a pass had guests."""


class NotedPass(NamedTuple):
    """A pass whose outcome is looked at when the step has ended."""

    loads_2R: IntArray
    """Tokens each rank would have computed without guests, and those it is to compute. Shape: [2, ranks]."""

    computed_before_R: IntArray
    """Tokens that each rank had computed in the layer before it, in this step. Shape: [ranks]."""

    has_guests: bool
    """Whether any tokens went to guests."""


class SettledPasses(NamedTuple):
    """All passes of a step, by layer and in order. Axis letters: P passes, R ranks."""

    layer_P: list[int]
    """Layer of each. Shape: [passes]."""

    static_PR: IntArray
    """Tokens without guests. Shape: [passes, ranks]."""

    planned_PR: IntArray
    """Tokens as planned. Shape: [passes, ranks]."""

    computed_PR: IntArray
    """Tokens as computed. Shape: [passes, ranks]."""


class PassOutcomes:
    """The passes of the step at hand.

    They are noted as they come and looked at when the step has ended, all in one go: between two layers of a forward
    the same would take many times as long.
    """

    def __init__(self, num_layers: int) -> None:
        self._noted_L: list[list[NotedPass]] = [[] for _ in range(num_layers)]
        self.layers = [LayerOutcome() for _ in range(num_layers)]

    def note(self, layer: int, counts_RE: IntArray, noted: NotedPass) -> None:
        """Notes a pass that is about to be computed, and what was routed in it."""
        self.layers[layer].counts_RE = counts_RE
        self._noted_L[layer].append(noted)

    def settle(self, computed_RL: IntArray) -> SettledPasses | None:
        """Ends all passes, now that ranks have told what they have computed in each layer so far. [ranks, layers].

        Returns:
            What they came to; None where there were none.
        """
        layer_P = [layer for layer, noted in enumerate(self._noted_L) for _ in noted]
        if not layer_P:
            return None
        noted_P = [each for noted in self._noted_L for each in noted]
        loads_P2R = np.array([each.loads_2R for each in noted_P])
        before_PR = np.array([each.computed_before_R for each in noted_P])
        # What a pass came to is known with the gather of the next one of its layer, or at the end.
        after_PR = np.concatenate((before_PR[1:], before_PR[:1]))
        last_L = {layer: index for index, layer in enumerate(layer_P)}
        after_PR[list(last_L.values())] = computed_RL.T[list(last_L)]
        settled = SettledPasses(layer_P, loads_P2R[:, 0], loads_P2R[:, 1], after_PR - before_PR)
        saved_P = (settled.static_PR.max(axis=1) - settled.computed_PR.max(axis=1)).tolist()
        for layer, noted, saved in zip(layer_P, noted_P, saved_P, strict=True):
            outcome = self.layers[layer]
            outcome.num_passes += 1
            if noted.has_guests:
                outcome.used_guests = True
                outcome.saved_tokens += saved
        for each in self._noted_L:
            each.clear()
        return settled


def imbalances(loads_PR: IntArray, speed_milli_R: IntArray | None) -> list[float]:
    """What `imbalance` says of each of many passes. Shape: [passes].

    Args:
        loads_PR: tokens each rank computes. Shape: [passes, ranks].
        speed_milli_R: speeds of the ranks, None where all are alike. Shape: [ranks].
    """
    if speed_milli_R is not None:
        return [imbalance(loads_R, speed_milli_R) for loads_R in loads_PR]
    totals_P = loads_PR.sum(axis=1)
    above_P: IntArray = loads_PR.max(axis=1) * loads_PR.shape[1] - totals_P
    imbalance_P: list[float] = (above_P / np.maximum(totals_P, 1)).tolist()
    return imbalance_P

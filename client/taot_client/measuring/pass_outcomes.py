"""What the passes of a step came to: tokens that ranks really computed, beside those they would have without guests.

Ranks count what they compute and tell with their next gather; the difference is what the pass in between came to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

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

    static_R: IntArray
    """Tokens each rank would have computed without guests. Shape: [ranks]."""

    planned_R: IntArray
    """Tokens each rank is to compute. Shape: [ranks]."""

    before_R: IntArray
    """Tokens each rank had computed in this layer before. Shape: [ranks]."""

    has_guests: bool
    """Whether any tokens went to guests."""


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

    def settle(self, computed_RL: IntArray) -> Iterator[tuple[int, IntArray, IntArray, IntArray]]:
        """Ends all passes, now that ranks have told what they have computed in each layer so far. [ranks, layers].

        Yields:
            Layer, and tokens of each rank without guests, as planned, and as computed: pass by pass.
        """
        for layer, noted in enumerate(self._noted_L):
            outcome = self.layers[layer]
            afterwards = [each.before_R for each in noted[1:]] + [computed_RL[:, layer]]
            for each, after_R in zip(noted, afterwards, strict=False):  # layers without a pass have none to end
                loads_R = after_R - each.before_R
                outcome.num_passes += 1
                if each.has_guests:
                    outcome.used_guests = True
                    outcome.saved_tokens += max(each.static_R.tolist()) - max(loads_R.tolist())
                yield layer, each.static_R, each.planned_R, loads_R
            noted.clear()

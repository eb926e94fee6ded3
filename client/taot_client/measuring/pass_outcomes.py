"""What the passes of a step came to: tokens that ranks really computed, beside those they would have without guests.

Ranks count what they compute and tell with their next gather; the difference is what the pass in between came to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taot_planning.arrays import IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenPass:
    """A pass whose outcome the ranks have yet to tell."""

    counts_RE: IntArray
    """What was routed. Shape: [ranks, experts]."""

    static_R: IntArray
    """Tokens each rank would have computed without guests. Shape: [ranks]."""

    planned_R: IntArray
    """Tokens each rank is to compute. Shape: [ranks]."""

    before_R: IntArray
    """Tokens each rank had computed in this layer before. Shape: [ranks]."""

    has_guests: bool
    """Whether any tokens went to guests."""


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


class PassOutcomes:
    """The passes of the step at hand."""

    def __init__(self, num_layers: int) -> None:
        self._open: dict[int, OpenPass] = {}
        self.layers = [LayerOutcome() for _ in range(num_layers)]

    def begin(self, layer: int, started: OpenPass) -> None:
        """Notes a pass that is about to be computed."""
        self._open[layer] = started
        self.layers[layer].counts_RE = started.counts_RE

    def settle(self, layer: int, computed_R: IntArray) -> tuple[IntArray, IntArray, IntArray] | None:
        """Ends the open pass of a layer, now that ranks have told what they have computed in it so far.

        Returns:
            Tokens of each rank without guests, as planned, and as computed; None where no pass was open.
        """
        started = self._open.pop(layer, None)
        if started is None:
            return None
        loads_R = np.asarray(computed_R) - started.before_R
        outcome = self.layers[layer]
        outcome.num_passes += 1
        if started.has_guests:
            outcome.used_guests = True
            outcome.saved_tokens += int(started.static_R.max() - loads_R.max())
        return started.static_R, started.planned_R, loads_R

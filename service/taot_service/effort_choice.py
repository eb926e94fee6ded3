"""How hard to search for the next layers of a plan that should be published soon, and for how many at a time.

Pure; time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from taot_planning.options import Effort

REMEMBERED_PART = 0.95
"""What is left of a time for `balanced` after every plan without such a layer: one slow layer keeps others from being
tried for some plans, not for good. Where it takes five times too long it is tried once every 30 plans or so."""

BATCH_SECONDS = 0.004
"""What a batch of layers should take, for which others wait: less than a slice, and much more than it costs to begin
one."""

PARTS = 4
"""A batch is this part of what is left at most, so that threads which share a report end together."""


@dataclass(frozen=True, kw_only=True)
class EffortSeconds:
    """What planning one layer took at most in the newest plan of a session that says, by effort; 0: not known yet.

    Of layers that were planned together it is their mean.
    """

    fast: float = 0.0
    """With the effort `fast`."""

    balanced: float = 0.0
    """With the effort `balanced`."""

    def with_layer(self, effort: Effort, seconds: float) -> EffortSeconds:
        """The same after one more layer."""
        if effort == "fast":
            return EffortSeconds(fast=max(self.fast, seconds), balanced=self.balanced)
        return EffortSeconds(fast=self.fast, balanced=max(self.balanced, seconds))

    def or_else(self, before: EffortSeconds) -> EffortSeconds:
        """These, and those from before where nothing is known."""
        return EffortSeconds(fast=self.fast or before.fast, balanced=self.balanced or before.balanced)

    def after(self, before: EffortSeconds) -> EffortSeconds:
        """These of a plan just made, and those from before where nothing is known, less sure of `balanced`."""
        return self.or_else(EffortSeconds(fast=before.fast, balanced=before.balanced * REMEMBERED_PART))


def choose_effort(
    asked: Effort,
    *,
    spare_seconds: float | None,
    layers_left: int,
    is_contended: bool,
    layer_seconds: EffortSeconds,
) -> Effort:
    """The effort for the next layer: as asked for, or `fast` where that would be too late or others wait.

    Args:
        asked: the effort of the session.
        spare_seconds: time until the plan should be published, below 0 when it is late; None: whenever it is ready.
        layers_left: layers without a plan, the next one included.
        is_contended: whether reports of others wait for the solver.
        layer_seconds: what a layer takes.
    """
    if asked != "balanced" or spare_seconds is None:
        return asked
    needed_seconds = layer_seconds.balanced + (layers_left - 1) * layer_seconds.fast
    return "fast" if is_contended or needed_seconds > spare_seconds else "balanced"


def choose_batch(layer_seconds: float, layers_left: int, *, is_contended: bool) -> int:
    """How many layers to plan in one go with the effort `fast`, 1 or more.

    Args:
        layer_seconds: what a layer takes; 0: not known yet.
        layers_left: layers that may still be begun.
        is_contended: whether others wait for the solver, so that no thread helps.
    """
    in_time = int(BATCH_SECONDS / layer_seconds) if layer_seconds else 1
    share = layers_left if is_contended else -(-layers_left // PARTS)
    return max(min(in_time, share), 1)

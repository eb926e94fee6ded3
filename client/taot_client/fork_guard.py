"""Keeps forked children, such as a data loader's workers, away from the parent's gRPC connection.

A child has none of gRPC's threads: it must neither use the connection nor run its clean-up.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Guarded(Protocol):
    """An object that lets go of its connection."""

    def abandon(self) -> object:
        """Lets go of everything that must not be used in a child, and returns it unreleased."""


_guarded: weakref.WeakSet[Guarded] = weakref.WeakSet()
_kept: list[object] = []
"""What children hold on to: dropping the last reference would run the clean-up."""


def guard(owner: Guarded) -> None:
    """Makes children abandon the connection of `owner`."""
    _guarded.add(owner)


def _abandon_all() -> None:
    _kept.extend(owner.abandon() for owner in list(_guarded))


os.register_at_fork(after_in_child=_abandon_all)

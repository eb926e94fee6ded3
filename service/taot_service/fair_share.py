"""Who is to have the solver next: time is shared by training job, within a job by session. Pure.

Start-time fair queueing on a tree (Goyal, Vin and Cheng 1996). Every job, every session of a job and every kind of
work of a session has used some solver time; whoever has used least goes first. Who comes back from idleness starts
where the one served last started: idle time is not saved up. Where nobody is active all is forgotten. With several
threads, time is charged when a slice ends, so that a share may be ahead by the slices in work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

MAX_IDLE_SHARES = 1024
"""Idle shares below one that are remembered because they are ahead of the others."""

Path: TypeAlias = tuple[str, ...]
"""Names from the outermost share inwards: training job, session, kind of work."""


class FairShare:
    """The solver time that each path has used, compared with its siblings."""

    def __init__(self) -> None:
        self._root = _Share()

    def enter(self, path: Path) -> None:
        """Notes that one more piece of work of `path` waits or is in work."""
        share = self._root
        share.num_active += 1
        for name in path:
            inner = share.inner.setdefault(name, _Share())
            if not inner.num_active:
                inner.used_seconds = max(inner.used_seconds, share.started_seconds)
            inner.num_active += 1
            share = inner

    def leave(self, path: Path) -> None:
        """Notes that a piece of work of `path` is over."""
        share = self._root
        shares = [share]
        for name in path:
            share = share.inner[name]
            shares.append(share)
        for each in shares:
            each.num_active -= 1
            if not each.num_active:
                each.inner.clear()
                each.started_seconds = 0.0
        for outer in shares[:-1]:
            outer.forget()

    def charge(self, path: Path, seconds: float) -> None:
        """Adds solver time to a path that is active."""
        share = self._root
        for name in path:
            share = share.inner[name]
            share.used_seconds += seconds

    def choose(self, paths: Sequence[Path]) -> Path:
        """The one of some active paths that goes first; of equals the first in `paths`."""
        share, left = self._root, list(paths)
        for depth in range(len(left[0])):
            used = {path[depth]: share.inner[path[depth]].used_seconds for path in left}
            name = min(used, key=used.__getitem__)
            share.started_seconds = max(share.started_seconds, used[name])
            share, left = share.inner[name], [path for path in left if path[depth] == name]
        return left[0]

    def ahead_seconds(self, path: Path) -> float:
        """How much more an active path has used than the least of its active siblings, at most on any level."""
        share, most = self._root, 0.0
        for name in path:
            least = min(each.used_seconds for each in share.inner.values() if each.num_active)
            share = share.inner[name]
            most = max(most, share.used_seconds - least)
        return most


class _Share:
    """One job, session or kind of work, or the whole."""

    def __init__(self) -> None:
        self.used_seconds = 0.0
        """On the scale of its siblings."""
        self.started_seconds = 0.0
        """What the one inside that was chosen last had used then: where newcomers start."""
        self.num_active = 0
        self.inner: dict[str, _Share] = {}

    def forget(self) -> None:
        """Drops what is idle and not ahead: it would start where it starts without."""
        idle = [name for name, each in self.inner.items() if not each.num_active]
        for name in idle:
            if self.inner[name].used_seconds <= self.started_seconds or len(self.inner) > MAX_IDLE_SHARES:
                del self.inner[name]

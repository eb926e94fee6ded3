"""Who is to have the solver next: time is shared by training job, within a job by session. Pure.

Start-time fair queueing on a tree (Goyal, Vin and Cheng 1996). Every job, every session of a job and every kind of
work of a session has used some solver time; whoever has used least goes first. Who comes back from idleness starts
where the one served last started: idle time is not saved up. Where nobody is active all is forgotten. With several
threads, time is charged when a slice ends, so that a share may be ahead by the slices in work.

A kind of work may have a head start: within its session it goes first until it is ahead by that much. Among jobs and
sessions nobody has one, so that nobody's hurry costs others their share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

MAX_IDLE_SHARES = 1024
"""Idle shares below one that are remembered because they are ahead of the others."""

Path: TypeAlias = tuple[str, ...]
"""Names from the outermost share inwards: training job, session, kind of work."""


class FairShare:
    """The solver time that each path has used, compared with its siblings."""

    def __init__(self, *, head_starts: Mapping[str, float]) -> None:
        """Begins with nobody.

        Args:
            head_starts: seconds by which a kind of work, a path's last name, may be ahead of others and still go first.
        """
        self._root = _Share()
        self._head_starts = head_starts

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

    def choose(self, paths: Iterable[Path]) -> Path:
        """The one of some active paths that goes first; of equals the first in `paths`."""
        share, left = self._root, list(paths)
        for depth in range(len(left[0])):
            names, is_kind = dict.fromkeys(path[depth] for path in left), depth == len(left[0]) - 1
            turns = {name: self._turn_seconds(share, name, is_kind=is_kind) for name in names}
            chosen = min(turns, key=turns.__getitem__)
            share, left = share.inner[chosen], [path for path in left if path[depth] == chosen]
        return left[0]

    def begin(self, path: Path) -> None:
        """Notes that the path that was chosen is served: newcomers start where it stands."""
        share = self._root
        for depth, name in enumerate(path):
            turn_seconds = self._turn_seconds(share, name, is_kind=depth == len(path) - 1)
            share.started_seconds = max(share.started_seconds, turn_seconds)
            share = share.inner[name]

    def _turn_seconds(self, outer: _Share, name: str, *, is_kind: bool) -> float:
        """By what siblings are compared: the least goes first."""
        # Newcomers start at it too: were the head start left out there, each of them would have to let it pass anew.
        return outer.inner[name].used_seconds - (self._head_starts.get(name, 0.0) if is_kind else 0.0)


class _Share:
    """One job, session or kind of work, or the whole."""

    def __init__(self) -> None:
        self.used_seconds = 0.0
        """On the scale of its siblings."""
        self.started_seconds = 0.0
        """What the one inside that was served last had used then, less its head start: where newcomers start."""
        self.num_active = 0
        self.inner: dict[str, _Share] = {}

    def forget(self) -> None:
        """Drops what is idle and not ahead: it would start where it starts without."""
        idle = [name for name, each in self.inner.items() if not each.num_active]
        for name in idle:
            if self.inner[name].used_seconds <= self.started_seconds or len(self.inner) > MAX_IDLE_SHARES:
                del self.inner[name]

"""A process group that tells when tokens are exchanged over it."""

from __future__ import annotations

import torch


class NotingGroup:
    """Passes everything on to a group, and notes its token exchanges."""

    def __init__(self, group: torch.distributed.ProcessGroup, notes: list[str]) -> None:
        self._group, self._notes = group, notes

    def __getattr__(self, name: str) -> object:
        return getattr(self._group, name)

    def alltoall_base(self, *arguments: object) -> torch.distributed.Work:
        self._notes.append("tokens")
        return self._group.alltoall_base(*arguments)

"""Sessions that are no more: why each has ended, for callers that come late. Pure."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import NamedTuple

from taot_api.contract_error import ContractError, Reason

MAX_ENDED_SESSIONS = 1024
"""Ended sessions whose reason is remembered."""


class EndReason(Enum):
    """Why a session ended; the value is its name in logs and messages."""

    REPLACED = "replaced by a newer incarnation of its group"
    CLOSED = "closed"
    EXPIRED = "dropped after its lease ran out"


class Run(NamedTuple):
    """One run of a group, which may have several sessions one after the other."""

    training_job: str
    group: str
    incarnation: int


class _Ended(NamedTuple):
    """What is remembered of a session that has ended."""

    run: Run
    reason: EndReason
    is_paused: bool


class EndedSessions:
    """The last MAX_ENDED_SESSIONS of one planner epoch."""

    def __init__(self, *, planner_epoch: str) -> None:
        self._planner_epoch = planner_epoch
        self._ended: OrderedDict[str, _Ended] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, session_id: str, *, run: Run, reason: EndReason, is_paused: bool) -> None:
        """Remembers one more, and forgets the oldest beyond the limit."""
        self._ended[session_id] = _Ended(run, reason, is_paused)
        if len(self._ended) > MAX_ENDED_SESSIONS:
            self._ended.popitem(last=False)

    def job_of(self, session_id: str) -> str | None:
        """The training job of a session that is remembered."""
        ended = self._ended.get(session_id)
        return None if ended is None else ended.run.training_job

    def is_paused(self, run: Run) -> bool:
        """Whether an operator has paused a run whose last session ran out of its lease, and has not resumed it."""
        latest = next((ended for ended in reversed(self._ended.values()) if ended.run == run), None)
        return latest is not None and latest.is_paused

    def reason_of(self, session_id: str) -> EndReason:
        """Why a session has ended; the usual reason where it is no longer remembered."""
        ended = self._ended.get(session_id)
        return EndReason.EXPIRED if ended is None else ended.reason

    def never_opened(self, session_id: str) -> ContractError:
        """The error for an id that was never given out, or not to the caller."""
        return self._no_session(session_id, Reason.SESSION_NOT_FOUND, "is not known to this planner: open it again")

    def missing(self, session_id: str) -> ContractError:
        """Why there is no open session of that id, as an error for its caller."""
        ended = self._ended.get(session_id)
        if ended is None:
            return self.never_opened(session_id)
        if ended.reason is EndReason.REPLACED:
            why = f"was {ended.reason.value}: this run has been replaced, stop it"
            return self._no_session(session_id, Reason.STALE_INCARNATION, why)
        return self._no_session(session_id, Reason.SESSION_NOT_FOUND, f"was {ended.reason.value}: open it again")

    def _no_session(self, session_id: str, reason: Reason, why: str) -> ContractError:
        shown = session_id[:64]
        return ContractError(
            reason,
            f"session {shown!r} {why} (planner epoch {self._planner_epoch})",
            field="session_id",
            metadata={"session_id": shown, "planner_epoch": self._planner_epoch},
        )

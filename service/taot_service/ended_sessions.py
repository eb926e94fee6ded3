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


class _Ended(NamedTuple):
    """What is remembered of a session that has ended."""

    training_job: str
    reason: EndReason


class EndedSessions:
    """The last MAX_ENDED_SESSIONS of one planner epoch."""

    def __init__(self, *, planner_epoch: str) -> None:
        self._planner_epoch = planner_epoch
        self._ended: OrderedDict[str, _Ended] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, session_id: str, *, training_job: str, reason: EndReason) -> None:
        """Remembers one more, and forgets the oldest beyond the limit."""
        self._ended[session_id] = _Ended(training_job, reason)
        if len(self._ended) > MAX_ENDED_SESSIONS:
            self._ended.popitem(last=False)

    def job_of(self, session_id: str) -> str | None:
        """The training job of a session that is remembered."""
        ended = self._ended.get(session_id)
        return None if ended is None else ended.training_job

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

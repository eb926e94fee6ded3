"""What the link knows of its planner: whether it answers, and what went wrong. Logged on change only.

Used by the threads of the link and by the training thread; single fields are read and written as a whole.
"""

from __future__ import annotations

import logging
import threading

import grpc

from taot_api.v1 import planner_pb2 as pb
from taot_client.planner.planner_epochs import MAX_EPOCH_CHARACTERS, PlannerEpochs
from taot_client.planner.refusal_details import RefusalDetails
from taot_client.planner.unsent_telemetry import UnsentTelemetry

logger = logging.getLogger(__name__)

_LOCKED_OUT = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class LinkState:
    """The state of the link to one address."""

    def __init__(self, address: str, unsent: UnsentTelemetry) -> None:
        self._address = address
        self._unsent = unsent
        self._lock = threading.Lock()
        self._epochs = PlannerEpochs()
        self._has_told_two = False
        self._has_told_broken = False
        self._told_refusal = ""
        self._told_lock = ""
        self.is_connected = False
        """Whether the planner answered the last call."""
        self.num_rejected_plans = 0
        """Plans that this group could not take."""

    def note_success(self) -> None:
        """A call was answered."""
        if not self.is_connected:
            logger.info("the planner at %s answers", self._address)
        self.is_connected = True
        self._told_refusal = self._told_lock = ""

    def note_opened(self, session: pb.Session) -> None:
        """A session was opened."""
        self.note_success()
        self.note_epoch(session.planner_epoch)
        logger.info(
            "session %s open at planner %s (release %s, epoch %s)",
            session.session_id,
            self._address,
            session.planner_release,
            session.planner_epoch,
        )

    def note_failure(self, what: str, error: grpc.RpcError) -> None:
        """A call was not answered.

        Why a planner does not let this job in is said once: otherwise it looks like one that is away. Training goes
        on, and asks again: a token may be granted or renewed at any time.
        """
        if error.code() in _LOCKED_OUT:
            if self._told_lock != str(error.details()):
                self._told_lock = str(error.details())
                logger.error(
                    "the planner at %s does not let this job in (%s): %s", self._address, what, self._told_lock
                )
        elif self.is_connected:
            logger.warning("the planner at %s does not answer (%s): %s", self._address, what, describe(error))
        self.is_connected = False
        if error.code() is not grpc.StatusCode.CANCELLED:  # which is this side's doing
            self._unsent.add_error("call_failed")

    def note_broken_report(self) -> None:
        """A report could not be sent, by an error of ours that is being handled: it is lost, and told once."""
        self._unsent.add_error("report_dropped")
        if not self._has_told_broken:
            self._has_told_broken = True
            logger.exception("a report to the planner at %s was dropped; training goes on", self._address)

    def note_no_room(self, what: str, error: grpc.RpcError) -> None:
        """The planner answered that it has no room at the moment, or that this job is too large for it."""
        if self._told_refusal != what:
            logger.warning("the planner at %s has no room (%s): %s", self._address, what, error.details())
            self._told_refusal = what

    def note_rejected(self, error: ValueError) -> None:
        """A plan was refused by this side."""
        self.num_rejected_plans += 1
        self._unsent.add_error("plan_refused")
        logger.error("a plan of the planner at %s was refused, the last one stays: %s", self._address, error)

    def note_details(self, details: RefusalDetails) -> None:
        """Takes what a refusal tells of the planner."""
        self.note_epoch(details.metadata.get("planner_epoch", ""))

    def note_epoch(self, epoch: str) -> None:
        """An answer came from this life of a planner."""
        with self._lock:  # three threads hear answers
            if not self._epochs.note(epoch):
                return
            is_first, self._has_told_two = not self._has_told_two, True
        self._unsent.add_error("two_planners")
        if is_first:
            logger.error(
                "more than one planner answers at %s (epoch %s is back): plans come and go with the one that answers;"
                " run a single planner, or send all calls of a job to the same one",
                self._address,
                epoch[:MAX_EPOCH_CHARACTERS],
            )


def describe(error: grpc.RpcError) -> str:
    """A failed call in a few words."""
    return f"{error.code().name}: {error.details()}"

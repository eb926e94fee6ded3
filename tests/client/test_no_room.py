"""A planner without room: its advice is heeded, and whoever closes the link does not wait for the pause to end."""

from __future__ import annotations

import itertools
import threading
from datetime import timedelta

from link_samples import WAIT, eventually, report, spec
from planner_client import planner_client
from running_planner import CALM_SECONDS, running_planner

from taot_client.planner.planner_link import PlannerLink
from taot_client.planner.retry_pause import JITTER, MAX_ADVISED_SECONDS, RETRY_SECONDS
from taot_service.admission import CALL_RETRY_SECONDS, SESSION_RETRY_SECONDS
from taot_service.config import ServiceConfig


class RecordedPauses(threading.Event):
    """Says how long it was waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        return super().wait(timeout)


def watched(link: PlannerLink) -> RecordedPauses:
    """Records the pauses of a link that has not started yet."""
    pauses = RecordedPauses()
    link._closing = pauses
    return pauses


def test_an_overloaded_planner_is_asked_again_when_it_advises_and_then_plans_flow():
    # The one watch of the session is taken by somebody else.
    config, own = ServiceConfig(max_watches=1, publish_within=CALM_SECONDS), spec("overloaded")
    with running_planner(config) as planner, planner_client(planner.address) as client:
        session_id = client.open(own)
        other, steps = client.watch(session_id), itertools.count()
        client.report(session_id, report(next(steps)))
        next(other)  # so it is open
        link = PlannerLink(planner.address, own)
        pauses = watched(link)
        assert link.start(wait=WAIT) is None
        assert eventually(lambda: len(pauses.seconds) >= 3)
        assert all(CALL_RETRY_SECONDS <= each <= CALL_RETRY_SECONDS * (1 + JITTER) for each in pauses.seconds)
        assert CALL_RETRY_SECONDS > RETRY_SECONDS * (1 + JITTER), "else this shows nothing"
        assert link.is_connected, "it has answered"
        assert link.plan is None
        other.cancel()

        def plans_flow() -> bool:
            link.report(report(next(steps)))
            return link.plan is not None

        assert eventually(plans_flow)
        link.close()


def test_a_link_that_pauses_because_there_is_no_room_ends_when_it_is_closed(caplog):
    with running_planner(ServiceConfig(max_sessions=1)) as planner, planner_client(planner.address) as client:
        client.open(spec("there"))
        link = PlannerLink(planner.address, spec("one-too-many"))
        pauses = watched(link)
        assert link.start(wait=timedelta(milliseconds=1)) is None
        assert eventually(lambda: pauses.seconds)
        assert SESSION_RETRY_SECONDS <= pauses.seconds[0] <= MAX_ADVISED_SECONDS
        link.close()  # which waits for the threads for less than the pause lasts
        assert not any(thread.is_alive() for thread in link._threads)
        assert len(pauses.seconds) == 1
    assert len([each for each in caplog.records if "has no room" in each.message]) == 1

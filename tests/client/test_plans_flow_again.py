"""How soon plans flow once a planner listens, first or again, however long it was away."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from link_samples import eventually, report, spec
from running_planner import PlannerProcess, free_port, planner_process

from taot_client.planner.planner_link import PlannerLink

pytestmark = pytest.mark.slow

AWAY_SECONDS = 5.0
STEP_SECONDS = 0.05
HANG_SECONDS = 60
"""The aim is 2 s on a machine that has nothing else to do; this one tells a hang from a busy machine."""


@contextlib.contextmanager
def training(address: str, group: str) -> Iterator[PlannerLink]:
    """A link whose group reports step after step, whether anybody answers or not."""
    link, ended = PlannerLink(address, spec(group)), threading.Event()

    def train() -> None:
        for step in itertools.count():
            link.report(report(step))
            if ended.wait(STEP_SECONDS):
                return

    trainer = threading.Thread(target=train, daemon=True)
    assert link.start(wait=timedelta(milliseconds=1)) is None
    trainer.start()
    try:
        yield link
    finally:
        ended.set()
        trainer.join()
        link.close()


def await_plans(link: PlannerLink, *, before: str | None, what: str) -> str:
    """Waits for a plan of another planner epoch and prints how long that took; returns the epoch."""
    listening = time.monotonic()
    assert eventually(lambda: epoch_of(link) not in (None, before), seconds=HANG_SECONDS), "plans never came"
    print(f"{what}: plans flow {time.monotonic() - listening:.2f} s after it listens")
    epoch = epoch_of(link)
    assert epoch is not None
    return epoch


def epoch_of(link: PlannerLink) -> str | None:
    return link.plan.identity.planner_epoch if link.plan is not None else None


@pytest.mark.timeout(300)
def test_plans_flow_soon_after_a_planner_listens_that_starts_late_and_is_restarted():
    port, pause = free_port(), threading.Event()

    def started() -> contextlib.AbstractContextManager[PlannerProcess]:
        return planner_process(grpc_port=port, is_warm_awaited=False)

    with training(f"127.0.0.1:{port}", "late") as link:
        pause.wait(AWAY_SECONDS)
        assert not link.is_connected
        assert link.plan is None
        with started() as first:
            epoch = await_plans(link, before=None, what=f"started {AWAY_SECONDS:.0f} s after the agent")
            first.kill()
        for away_seconds in (0.0, AWAY_SECONDS):
            assert eventually(lambda: not link.is_connected)
            pause.wait(away_seconds)  # calls go on meanwhile
            with started() as again:
                epoch = await_plans(link, before=epoch, what=f"away for {away_seconds:.0f} s and its start")
                again.kill()
        assert link.num_reconnects >= 2

"""When a planner ends by itself."""

from __future__ import annotations

import asyncio

import pytest
from routing_samples import make_spec

from taot_service.config import ServiceConfig
from taot_service.planner import Planner
from taot_service.server import ends_by_itself

NEVER, AT_ONCE = None, 0.0


@pytest.mark.parametrize(
    ("when_idle", "when_unused", "ends"),
    [
        (NEVER, NEVER, "never"),
        (AT_ONCE, NEVER, "after the session"),
        (NEVER, AT_ONCE, "once warm"),
        (AT_ONCE, AT_ONCE, "once warm, after the session"),
        (3600.0, 3600.0, "never"),
    ],
)
def test_a_planner_ends_when_unused_before_its_first_session_and_when_idle_after_its_last(when_idle, when_unused, ends):
    config = ServiceConfig(exit_when_idle=when_idle, exit_when_unused=when_unused)

    async def scenario():
        planner, seen = Planner(config), []

        def look(moment: str) -> None:
            if ends_by_itself(planner, config):
                seen.append(moment)

        look("cold")
        await planner.warm_up()
        look("once warm")
        session = planner.open_session(make_spec())
        look("in the session")
        planner.close_session(session.session_id)
        look("after the session")
        await planner.close()
        return ", ".join(seen) or "never"

    assert asyncio.run(scenario()) == ends


def test_a_session_before_the_planner_is_warm_counts_as_use():
    config = ServiceConfig(exit_when_unused=0.0)

    async def scenario():
        planner = Planner(config)
        session = planner.open_session(make_spec())
        await planner.warm_up()
        is_over = [ends_by_itself(planner, config)]
        planner.close_session(session.session_id)
        is_over.append(ends_by_itself(planner, config))
        await planner.close()
        return is_over

    assert asyncio.run(scenario()) == [False, False]

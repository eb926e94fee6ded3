from __future__ import annotations

import asyncio

import numpy as np
import pytest

from taot_api import ContractError, PlanIdentity, PublishedPlan, Reason
from taot_service.plan_feed import PlanFeed


def make_plan(version: int) -> PublishedPlan:
    return PublishedPlan(
        identity=PlanIdentity(planner_epoch="epoch", version=version),
        source_step=version,
        source_micro_batch=0,
        guests_L=(np.array([[-1]]),),
    )


def run(scenario):
    """Runs a coroutine with a bound against hangs."""
    return asyncio.run(asyncio.wait_for(scenario, timeout=30))


def test_a_new_reader_gets_the_newest_plan_first():
    async def scenario():
        feed = PlanFeed()
        feed.publish(make_plan(1))
        feed.publish(make_plan(2))
        assert (await feed.subscribe(after_version=0).next_plan()).identity.version == 2

    run(scenario())


def test_a_reader_that_has_a_plan_waits_for_a_newer_one():
    async def scenario():
        feed = PlanFeed()
        feed.publish(make_plan(2))
        reading = asyncio.ensure_future(feed.subscribe(after_version=2).next_plan())
        await asyncio.sleep(0)
        assert not reading.done()
        feed.publish(make_plan(3))
        assert (await reading).identity.version == 3

    run(scenario())


def test_a_slow_reader_misses_what_was_superseded_and_never_goes_back():
    async def scenario():
        feed = PlanFeed()
        subscription = feed.subscribe(after_version=0)
        seen = []
        for version in range(1, 31):
            feed.publish(make_plan(version))
            if version % 10 == 0:
                seen.append((await subscription.next_plan()).identity.version)
        assert seen == [10, 20, 30]

    run(scenario())


def test_no_wake_up_is_lost_between_subscribing_and_the_first_read():
    async def scenario():
        feed = PlanFeed()
        subscription = feed.subscribe(after_version=0)
        feed.publish(make_plan(1))
        assert (await subscription.next_plan()).identity.version == 1

    run(scenario())


def test_every_reader_gets_every_plan_it_is_quick_enough_for():
    async def scenario():
        feed = PlanFeed()
        subscriptions = [feed.subscribe(after_version=0) for _ in range(20)]
        for version in (1, 2, 3):
            reads = [asyncio.ensure_future(subscription.next_plan()) for subscription in subscriptions]
            await asyncio.sleep(0)
            feed.publish(make_plan(version))
            assert [plan.identity.version for plan in await asyncio.gather(*reads)] == [version] * 20

    run(scenario())


def test_the_end_reaches_waiting_and_later_readers():
    async def scenario():
        feed = PlanFeed()
        feed.publish(make_plan(1))
        reading = asyncio.ensure_future(feed.subscribe(after_version=1).next_plan())
        await asyncio.sleep(0)
        feed.end(ContractError(Reason.SHUTTING_DOWN, "over"))
        with pytest.raises(ContractError, match="over"):
            await reading
        with pytest.raises(ContractError, match="over"):
            await feed.subscribe(after_version=0).next_plan()

    run(scenario())


def test_a_closed_subscription_is_forgotten():
    async def scenario():
        feed = PlanFeed()
        subscription = feed.subscribe(after_version=0)
        subscription.close()
        assert not feed._subscriptions

    run(scenario())


def test_a_plan_is_encoded_once_for_all_of_its_readers_and_kept_for_them_alone():
    encoded = []

    def encode(plan: PublishedPlan) -> object:
        encoded.append(plan.identity.version)
        return object()

    async def scenario():
        feed = PlanFeed()
        feed.publish(make_plan(1))
        alone = feed.subscribe(after_version=0)
        await alone.next_encoded(encode)
        assert feed._encoded is None, "nobody else will ask"
        others = [feed.subscribe(after_version=0) for _ in range(3)]
        first = [await each.next_encoded(encode) for each in others]
        assert len(set(map(id, first))) == 1
        feed.publish(make_plan(2))
        second = [await each.next_encoded(encode) for each in (alone, *others)]
        assert len(set(map(id, second))) == 1
        assert second[0] is not first[0]
        assert encoded == [1, 1, 2]
        for each in others:
            each.close()
        assert feed._encoded is None

    run(scenario())

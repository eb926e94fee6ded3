from __future__ import annotations

import asyncio

import pytest

from taot_service.change_feed import MAX_READERS, ChangeFeed, Changes, TooManyReadersError
from taot_service.config import ServiceConfig
from taot_service.event_stream import stream_events
from taot_service.planner import Planner

BOUND_SECONDS = 30


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, timeout=BOUND_SECONDS))


def test_a_reader_first_learns_of_all_sessions_then_of_changes():
    async def scenario():
        feed = ChangeFeed()
        reader = feed.subscribe()
        first = await reader.next_changes(timeout_seconds=BOUND_SECONDS)
        feed.note_session("a")
        return first, await reader.next_changes(timeout_seconds=BOUND_SECONDS)

    first, second = run(scenario())
    assert first == Changes(has_other_sessions=True)
    assert second == Changes(session_ids=frozenset({"a"}))


def test_what_waits_for_a_slow_reader_does_not_grow_with_changes():
    async def scenario():
        feed = ChangeFeed()
        reader = feed.subscribe()
        for _ in range(1000):
            feed.note_session("a")
            feed.note_session("b")
        feed.note_sessions()  # the list tells of every session
        feed.note_session("b")
        return await reader.next_changes(timeout_seconds=BOUND_SECONDS)

    assert run(scenario()) == Changes(session_ids=frozenset({"b"}), has_other_sessions=True)


def test_nothing_new_is_told_at_the_timeout():
    async def scenario():
        reader = ChangeFeed().subscribe()
        await reader.next_changes(timeout_seconds=BOUND_SECONDS)
        return await reader.next_changes(timeout_seconds=0.01)

    assert run(scenario()) == Changes()


def test_an_end_reaches_waiting_and_later_readers():
    async def scenario():
        feed = ChangeFeed()
        early = feed.subscribe()
        await early.next_changes(timeout_seconds=BOUND_SECONDS)
        waiting = asyncio.ensure_future(early.next_changes(timeout_seconds=BOUND_SECONDS))
        await asyncio.sleep(0)
        feed.end()
        late = feed.subscribe()
        return [await waiting, await late.next_changes(timeout_seconds=BOUND_SECONDS)]

    assert all(changes.is_end for changes in run(scenario()))


def test_there_is_room_for_so_many_readers_only():
    feed = ChangeFeed()
    readers = [feed.subscribe() for _ in range(MAX_READERS)]
    with pytest.raises(TooManyReadersError, match="close a page"):
        feed.subscribe()
    readers[0].close()
    assert feed.num_readers == MAX_READERS - 1
    feed.subscribe()


def test_a_silent_stream_sends_heartbeats():
    async def scenario():
        planner = Planner(ServiceConfig())
        stream = stream_events(planner, planner.changes.subscribe(), heartbeat_seconds=0.01, pace_seconds=0)
        told = [await anext(stream) for _ in range(3)]
        await stream.aclose()
        await planner.close()
        return told, planner.changes.num_readers

    told, num_readers = run(scenario())
    assert told[0].startswith(b"event: sessions\ndata: {")
    assert told[1:] == [b": nothing new\n\n"] * 2
    assert num_readers == 0

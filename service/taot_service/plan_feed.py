"""The plans of one session, for whoever watches: always the newest, never one after a newer one.

Lives on the event loop. It holds one plan however slow its readers are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from taot_api.contract_error import ContractError
from taot_api.published_plan import PublishedPlan

T = TypeVar("T")


END_SECONDS = 10.0
"""Within which a reader has to take notice of the end; one that is stuck with what it has read is cancelled then."""


class PlanFeed:
    """Hands the newest plan to any number of readers."""

    def __init__(self) -> None:
        self._newest: PublishedPlan | None = None
        self._end: ContractError | None = None
        self._subscriptions: set[PlanSubscription] = set()
        self._encoded: Any = None

    def publish(self, plan: PublishedPlan) -> None:
        """Supersedes the plan before. Versions must grow."""
        assert self._newest is None or plan.identity.version > self._newest.identity.version
        self._newest, self._encoded = plan, None
        self._wake_all()

    def end(self, error: ContractError) -> None:
        """Ends every reader, now and later, with `error`."""
        self._end = error
        self._wake_all()
        for subscription in self._subscriptions:
            subscription.cancel_later()

    def subscribe(self, *, after_version: int) -> PlanSubscription:
        """Starts to read; nothing published from now on is missed unless it is superseded."""
        subscription = PlanSubscription(self, after_version=after_version)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: PlanSubscription) -> None:
        """Called by a subscription that closes."""
        self._subscriptions.discard(subscription)
        if len(self._subscriptions) < 2:  # noqa: PLR2004 - nobody to share with
            self._encoded = None

    def encode_newest(self, make: Callable[[PublishedPlan], T]) -> T:
        """What `make` makes of the newest plan: once for all readers, and kept only where there are several."""
        assert self._newest is not None
        if self._encoded is not None:
            kept: T = self._encoded
            return kept
        encoded = make(self._newest)
        if len(self._subscriptions) > 1:
            self._encoded = encoded
        return encoded

    def newer_than(self, version: int) -> PublishedPlan | None:
        """The newest plan if it is newer than `version`.

        Raises:
            ContractError: when the feed has ended.
        """
        if self._end is not None:
            raise self._end
        if self._newest is None or self._newest.identity.version <= version:
            return None
        return self._newest

    def _wake_all(self) -> None:
        for subscription in self._subscriptions:
            subscription.changed.set()


class PlanSubscription:
    """One reader's place in a feed: that of the task that makes it."""

    def __init__(self, feed: PlanFeed, *, after_version: int) -> None:
        self.changed = asyncio.Event()
        """Set by the feed when there may be something to read."""
        self._feed = feed
        self._version = after_version
        self._reader = asyncio.current_task()
        self._last_timer: asyncio.TimerHandle | None = None
        """Runs once the feed has ended."""

    def close(self) -> None:
        """Stops to read."""
        self._feed.unsubscribe(self)
        if self._last_timer is not None:
            self._last_timer.cancel()

    def cancel_later(self) -> None:
        """Cancels the task that has subscribed, unless it stops to read before END_SECONDS have gone by."""
        if self._reader is not None and self._last_timer is None:
            self._last_timer = asyncio.get_running_loop().call_later(END_SECONDS, self._reader.cancel)

    async def next_encoded(self, make: Callable[[PublishedPlan], T]) -> T:
        """Waits for a plan newer than the last one, and encodes it unless another reader has.

        Args:
            make: the same for all readers of a feed; what it returns is shared and must not be changed.

        Raises:
            ContractError: when the feed has ended.
        """
        await self.next_plan()  # which is the newest: nothing runs in between
        return self._feed.encode_newest(make)

    async def next_plan(self) -> PublishedPlan:
        """Waits for a plan newer than the last one.

        Raises:
            ContractError: when the feed has ended.
        """
        while True:
            self.changed.clear()
            plan = self._feed.newer_than(self._version)
            if plan is not None:
                self._version = plan.identity.version
                return plan
            await self.changed.wait()

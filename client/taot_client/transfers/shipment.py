"""One flat buffer on its way between two ranks, and what is measured of such transfers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch


class TransferError(RuntimeError):
    """A guest transfer failed or did not end in time; the message names peer, expert, layer and step."""


class Cargo(NamedTuple):
    """What a shipment carries, for errors and logs."""

    kind: str
    """`weights` or `gradient`."""

    expert: int
    """The expert."""

    layer: str
    """Name of its layer."""

    step: int
    """The optimizer step."""

    def __str__(self) -> str:
        return f"{self.kind} of expert {self.expert}, layer {self.layer!r}, step {self.step}"


@dataclass(eq=False, kw_only=True, slots=True)
class Shipment:
    """A transfer: posted by a mover, completed by whatever the device offers for that."""

    cargo: Cargo
    """What is carried."""

    peer: int
    """Rank at the other end."""

    tag: int
    """Tells transfers between the same two ranks apart; equal at both ends."""

    buffer: torch.Tensor
    """Flat uint8 buffer, filled or read by the transfer; must not be touched before it has completed."""

    is_receive: bool
    """Direction."""

    stage: int = 0
    """0 for what is sent at once, 1 for what a rank passes on after it has received; equal at both ends."""

    after: tuple[Shipment, ...] = ()
    """Receives of stage 0, or posted earlier, that end before this one is sent. One alone, of the same buffer, without
    `prepare`: the buffer is passed on as it arrives."""

    prepare: Callable[[Shipment], None] | None = None
    """Called with the shipment once all of `after` have arrived: completes its buffer from theirs."""

    completion: Completion | None = None
    """Set by the mover that posted it."""

    def is_done(self) -> bool:
        """Whether the transfer has completed without an error. Never blocks."""
        return self.completion is not None and self.completion.is_done()

    def wait(self, timeout_seconds: float) -> None:
        """Returns when the buffer may be used by what the calling thread does next.

        Raises:
            TransferError: if the transfer failed, or has not ended after `timeout_seconds`.
        """
        assert self.completion is not None, "a shipment is posted before it is waited for"
        direction = "from" if self.is_receive else "to"
        try:
            ended = self.completion.wait(timeout_seconds)
        except RuntimeError as error:
            raise TransferError(f"{self.cargo} {direction} rank {self.peer} failed: {error}") from error
        if not ended:
            raise TransferError(f"{self.cargo} {direction} rank {self.peer} did not end within {timeout_seconds:.1f} s")


class Completion(Protocol):
    """How the end of a transfer is known."""

    def is_done(self) -> bool:
        """Whether it has ended well. Never blocks."""

    def wait(self, timeout_seconds: float) -> bool:
        """Waits for the end; False when the time is over. Raises RuntimeError when the transfer failed."""


class Mover(Protocol):
    """Carries shipments over one process group."""

    def post(self, shipments: list[Shipment]) -> None:
        """Starts transfers and returns at once. All ranks post matching shipments in the same order."""

    def drain(self, timeout_seconds: float) -> None:
        """Returns when every posted buffer may be reused. Raises TransferError as `Shipment.wait` does."""

    def close(self) -> None:
        """Stops what the mover has started."""


class WaitClock(Protocol):
    """Measures waits of the training thread."""

    def exposed(self) -> AbstractContextManager[None]:
        """Adds the duration of what is done inside."""


class TransferClock:
    """Adds up how long transfers were in flight, and how long the training thread stood still for them.

    Time in flight counts once, however many transfers are under way; it begins when the first is posted and
    therefore contains the time a receiver waits for its peer to reach the same point.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._in_flight = 0
        self._since = 0.0
        self._flight_seconds = 0.0
        self.exposed_seconds = 0.0

    def depart(self, num_transfers: int = 1) -> None:
        """Notes that transfers, one at least, are being posted."""
        with self._lock:
            if self._in_flight == 0:
                self._since = self._now()
            self._in_flight += num_transfers

    def arrive(self) -> None:
        """Notes that a transfer has ended."""
        with self._lock:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._flight_seconds += self._now() - self._since

    @property
    def flight_seconds(self) -> float:
        """Seconds during which at least one transfer was in flight, so far."""
        with self._lock:
            running = self._now() - self._since if self._in_flight else 0.0
            return self._flight_seconds + running

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Adds the duration of a wait of the training thread to `exposed_seconds`."""
        started = self._now()
        try:
            yield
        finally:
            self.exposed_seconds += self._now() - started

"""Moves buffers with gloo: posted from the training thread, progressed and completed in the background."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.distributed as dist

from taot_client.measuring.link_meter import LinkMeter
from taot_client.transfers.shipment import Shipment, TransferClock

PIECE_BYTES = 4 * 1024 * 1024
"""Largest message: bigger ones keep a pair of ranks busy for so long that others starve."""


@dataclass(eq=False, slots=True)
class _Flight:
    """The works of one shipment; completed by a watcher thread, since gloo's own works do not tell."""

    clock: TransferClock
    landing: threading.Condition
    """Notified whenever a piece lands or a flight ends; one for all flights of a mover."""

    works: list[dist.Work] = field(default_factory=list)
    has_ended: bool = False
    error: RuntimeError | None = None
    num_landed: int = 0
    on_arrival: Callable[[], None] | None = None

    def is_done(self) -> bool:
        return self.has_ended and self.error is None

    def wait(self, timeout_seconds: float) -> bool:
        with self.landing:
            ended = self.landing.wait_for(lambda: self.has_ended, timeout_seconds)
        if self.error is not None:
            raise self.error
        return ended

    def complete(self) -> None:
        try:
            for work in self.works:
                work.wait()
                self._land()
        except RuntimeError as error:
            self.error = self.error or error
        else:
            if self.on_arrival is not None and self.error is None:
                self.on_arrival()
        finally:
            self.works.clear()  # they hold the buffers
            self.clock.arrive()
            with self.landing:
                self.has_ended = True
                self.landing.notify_all()

    def await_piece(self, index: int) -> None:
        """Waits until a piece has landed. The group's own timeout bounds it: no piece outlives that.

        Raises:
            RuntimeError: if the transfer failed before.
        """
        with self.landing:
            self.landing.wait_for(lambda: self.num_landed > index or self.has_ended)
            if self.num_landed <= index:
                raise self.error or RuntimeError("it ended before its last piece")

    def _land(self) -> None:
        with self.landing:
            self.num_landed += 1
            self.landing.notify_all()


_Queue = queue.SimpleQueue[list[_Flight] | None]


class GlooMover:
    """Carries shipments over a gloo group.

    One watcher thread per direction waits for them in order; a third sends what is passed on once it has arrived.
    """

    def __init__(
        self, group: dist.ProcessGroup, *, clock: TransferClock, name: str, links: LinkMeter | None = None
    ) -> None:
        self._group = group
        self._clock = clock
        self._posting = threading.Lock()
        self._landing = threading.Condition()
        self._links = links
        self._posted: list[Shipment] = []
        self._receives: _Queue = queue.SimpleQueue()
        self._sends: _Queue = queue.SimpleQueue()
        self._relays: queue.SimpleQueue[list[Shipment] | None] = queue.SimpleQueue()
        for part, target in (
            ("receives", partial(_watch, self._receives)),
            ("sends", partial(_watch, self._sends)),
            ("relays", self._watch_relays),
        ):
            threading.Thread(target=target, name=f"taot-{name}-{part}", daemon=True).start()

    def post(self, shipments: list[Shipment]) -> None:
        """Posts all receives before the first send: sends to a rank that is receiving already start at once.

        What cannot be posted, since the peer has gone, fails when it is waited for.
        """
        self._posted = [each for each in self._posted if not each.is_done()]
        receives: list[_Flight] = []
        sends: list[_Flight] = []
        relayed: dict[tuple[int, ...], list[Shipment]] = {}
        # Receives are watched by stage. What is passed on waits for none but those of stage 0, which wait for nobody:
        # in another order two ranks may wait for each other's relays for ever.
        in_order = [each for each in shipments if each.is_receive] + [each for each in shipments if not each.is_receive]
        if any([each.stage for each in shipments]):  # noqa: C419 - a generator takes longer
            in_order.sort(key=lambda each: (not each.is_receive, each.stage))
        self._clock.depart(len(shipments))
        for shipment in in_order:
            flight = shipment.completion = _Flight(clock=self._clock, landing=self._landing)
            if self._links is not None and shipment.is_receive:
                flight.on_arrival = self._links.expect(shipment)
            self._posted.append(shipment)
            if shipment.after:
                relayed.setdefault(tuple(map(id, shipment.after)), []).append(shipment)
                continue
            for piece in _pieces(shipment.buffer):
                self._post_piece(shipment, flight, piece)
            (receives if shipment.is_receive else sends).append(flight)
        # Each watcher is woken once, after the last was posted: it would want the interpreter meanwhile.
        if receives:
            self._receives.put(receives)
        if sends:
            self._sends.put(sends)
        for together in relayed.values():
            self._relays.put(together)

    def drain(self, timeout_seconds: float) -> None:
        """Waits until every posted transfer has completed."""
        while self._posted:
            self._posted[0].wait(timeout_seconds)
            self._posted.pop(0)

    def close(self) -> None:
        """Lets the watcher threads end once they have seen what was posted."""
        self._receives.put(None)
        self._relays.put(None)  # which ends the sends, to which it still adds

    def _post_piece(self, shipment: Shipment, flight: _Flight, piece: torch.Tensor) -> None:
        if flight.error is not None:
            return
        transfer = self._group.recv if shipment.is_receive else self._group.send
        try:
            with self._posting:
                flight.works.append(transfer([piece], shipment.peer, shipment.tag))
        except RuntimeError as error:
            flight.error = error

    def _watch_relays(self) -> None:
        while (together := self._relays.get()) is not None:
            flights = [_flight_of(each) for each in together]
            try:
                self._pass_on(together, flights)
            except Exception as error:  # noqa: BLE001 - the top of a thread
                for flight in flights:
                    flight.error = flight.error or RuntimeError(f"there is nothing to pass on: {error}")
            self._sends.put(flights)
        self._sends.put(None)

    def _pass_on(self, together: list[Shipment], flights: list[_Flight]) -> None:
        """Posts sends that wait for the same receives, piece by piece where these are passed on as they are."""
        first = together[0]
        received = [_flight_of(each) for each in first.after]
        num_pieces = -(-first.buffer.numel() // PIECE_BYTES)
        if first.prepare is not None:
            for each in received:
                each.await_piece(num_pieces - 1)
            for shipment in together:
                if shipment.prepare is not None:
                    shipment.prepare(shipment)
        for index in range(num_pieces):
            for each in received:
                each.await_piece(index)
            for shipment, flight in zip(together, flights, strict=True):
                piece = shipment.buffer[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
                self._post_piece(shipment, flight, piece)


def _pieces(buffer: torch.Tensor) -> Sequence[torch.Tensor]:
    return [buffer] if buffer.numel() <= PIECE_BYTES else buffer.split(PIECE_BYTES)


def _flight_of(shipment: Shipment) -> _Flight:
    assert isinstance(shipment.completion, _Flight), "this mover has posted it"
    return shipment.completion


def _watch(flights: _Queue) -> None:
    while (together := flights.get()) is not None:
        for flight in together:
            flight.complete()

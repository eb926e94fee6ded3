"""What one rank measures of one layer: its computation, its waits for guests, when the layer is reached."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import torch

from taot_client.device import make_stopwatch
from taot_client.measuring.stopwatch import Timed
from taot_client.transfers.shipment import TransferClock

_RECENT_STEPS = 16
"""Steps of which the fastest tells the time of a token: others were warming up, or shared the device."""


class _Computing(AbstractContextManager[None]):
    """A forward of experts under way."""

    def __init__(self, meter: LayerMeter, lap: AbstractContextManager[None], new_tokens: int) -> None:
        self._meter = meter
        self._lap = lap
        self._new_tokens = new_tokens

    def __enter__(self) -> None:
        self._lap.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lap.__exit__(kind, error, trace)
        if error is None:
            self._meter.computed_tokens += self._new_tokens


class LayerMeter:
    """One per layer and rank. Every number counts from the start of the agent, unless it says otherwise."""

    def __init__(self, *, device: torch.device, clock: TransferClock) -> None:
        """Measures on `device`; waits count in the rank's `clock` as well."""
        self._clock = clock
        self._computing = make_stopwatch(device)
        self._waiting = make_stopwatch(device)
        self._began = 0.0
        self._computed = self._computing.total()
        self._token_us: deque[float] = deque(maxlen=_RECENT_STEPS)
        self.computed_tokens = 0
        self.reach_seconds = 0.0

    def begin_step(self) -> None:
        """Notes that the layer's guests of a new step have been sent for."""
        self._began, self.reach_seconds = time.monotonic(), 0.0
        now, before = self._computing.total(), self._computed
        self._computed = now
        if now.tokens > before.tokens:
            self._token_us.append((now.microseconds - before.microseconds) / (now.tokens - before.tokens))

    def reach(self) -> None:
        """Notes that a pass begins; `reach_seconds` is how long after `begin_step` the first of the step did."""
        if not self.reach_seconds:
            self.reach_seconds = time.monotonic() - self._began

    def computing(self, tokens: int, *, is_repeat: bool) -> AbstractContextManager[None]:
        """Times the forward of experts over so many tokens; those of a recomputation are not counted again."""
        return _Computing(self, self._computing.running(tokens=tokens), 0 if is_repeat else tokens)

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Times a wait for guest weights or gradients of this layer."""
        with self._clock.exposed(), self._waiting.running():
            yield

    def compute_time(self) -> Timed:
        """Time and tokens of the experts' forwards so far. Never waits."""
        return self._computing.total()

    def token_microseconds(self) -> float:
        """Time of one token in one expert, forward, in the fastest of the last steps; 0 before the first has ended."""
        return min(self._token_us, default=0.0)

    def exposed_us(self) -> int:
        """Microseconds that training stood still for guests of this layer so far. Never waits."""
        return self._waiting.total().microseconds

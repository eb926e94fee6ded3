"""What one rank measures of one layer: its computation, its waits for guests, when the layer is reached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from taot_client.device import make_stopwatch
from taot_client.shipment import TransferClock
from taot_client.stopwatch import Timed


class LayerMeter:
    """One per layer and rank. Every number counts from the start of the agent, unless it says otherwise."""

    def __init__(self, *, device: torch.device, clock: TransferClock) -> None:
        """Measures on `device`; waits count in the rank's `clock` as well."""
        self._clock = clock
        self._computing = make_stopwatch(device)
        self._waiting = make_stopwatch(device)
        self._began = 0.0
        self.computed_tokens = 0
        self.reach_seconds = 0.0

    def begin_step(self) -> None:
        """Notes that the layer's guests of a new step have been sent for."""
        self._began, self.reach_seconds = time.monotonic(), 0.0

    def reach(self) -> None:
        """Notes that a pass begins; `reach_seconds` is how long after `begin_step` the first of the step did."""
        if not self.reach_seconds:
            self.reach_seconds = time.monotonic() - self._began

    @contextmanager
    def computing(self, tokens: int, *, is_repeat: bool) -> Iterator[None]:
        """Times the forward of experts over so many tokens; those of a recomputation are not counted again."""
        with self._computing.running(tokens=tokens):
            yield
        if not is_repeat:
            self.computed_tokens += tokens

    @contextmanager
    def exposed(self) -> Iterator[None]:
        """Times a wait for guest weights or gradients of this layer."""
        with self._clock.exposed(), self._waiting.running():
            yield

    def compute_time(self) -> Timed:
        """Time and tokens of the experts' forwards so far. Never waits."""
        return self._computing.total()

    def token_microseconds(self) -> float:
        """Time of one token in one expert so far, forward; 0 before the first. Never waits."""
        timed = self._computing.total()
        return timed.microseconds / timed.tokens if timed.tokens else 0.0

    def exposed_us(self) -> int:
        """Microseconds that training stood still for guests of this layer so far. Never waits."""
        return self._waiting.total().microseconds

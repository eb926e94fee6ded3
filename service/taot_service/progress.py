"""How far a piece of work has come: shared by the threads that plan its layers."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from taot_service.effort_choice import EffortSeconds
from taot_service.layer_solution import LayerSolution


class Progress:
    """Hands out layers in their order, and collects what came of them."""

    def __init__(self, num_experts_L: Sequence[int]) -> None:
        """Begins with no layer.

        Args:
            num_experts_L: experts of each layer.
        """
        self.is_dropped = False
        """Set, from any thread and for good, once nobody wants the plan any more."""
        self.started_seconds: float | None = None
        """When a thread first took it up, on the clock of the sessions."""
        self.layer_seconds = EffortSeconds()
        """What its layers took."""
        self._solution_L: list[LayerSolution | None] = [None] * len(num_experts_L)
        self._num_experts_L = num_experts_L
        self._failure: Exception | None = None
        self._num_begun = 0
        self._num_open = 0
        self._lock = threading.Lock()
        self._is_idle = threading.Condition(self._lock)

    @property
    def layers_left(self) -> int:
        """Layers that may still be begun."""
        is_over = self.is_dropped or self._failure is not None
        return 0 if is_over else len(self._solution_L) - self._num_begun

    @property
    def solution_L(self) -> list[LayerSolution] | None:
        """All layers, in the order of the work's; None while some lack."""
        solved = [solution for solution in self._solution_L if solution is not None]
        return solved if len(solved) == len(self._solution_L) else None

    def begin_layers(self, most: int) -> range:
        """The next layers, with as many experts each, for the thread that asks, which then tells what came of them.

        Empty where there are none left.
        """
        with self._lock:
            start = end = self._num_begun
            last = start + min(most, self.layers_left)
            while end < last and self._num_experts_L[end] == self._num_experts_L[start]:
                end += 1
            self._num_begun = end
            self._num_open += end - start
            return range(start, end)

    def note(self, layers: range, solutions: Sequence[LayerSolution], *, seconds: float) -> None:
        """Layers that were begun are solved, each in some seconds."""
        with self._lock:
            self.layer_seconds = self.layer_seconds.with_layer(solutions[0].effort, seconds)
            self._solution_L[layers.start : layers.stop] = solutions
            self._end_layers(layers)

    def fail(self, layers: range, error: Exception) -> None:
        """Layers that were begun cannot be solved; no other is begun any more."""
        with self._lock:
            self._failure = self._failure or error
            self._end_layers(layers)

    def wait_for_begun(self) -> None:
        """Waits until nobody has a layer in hand.

        Raises:
            Exception: what the first of the layers has failed with.
        """
        with self._lock:
            self._is_idle.wait_for(lambda: self._num_open == 0)
        if self._failure is not None:
            raise self._failure

    def _end_layers(self, layers: range) -> None:
        self._num_open -= len(layers)
        if self._num_open == 0:
            self._is_idle.notify_all()

"""How far a piece of work has come: shared by the threads that plan its layers."""

from __future__ import annotations

import threading

from taot_service.effort_choice import EffortSeconds
from taot_service.layer_solution import LayerSolution


class Progress:
    """Hands out layers one by one, and collects what came of them."""

    def __init__(self, *, num_layers: int) -> None:
        self.is_dropped = False
        """Set, from any thread and for good, once nobody wants the plan any more."""
        self.started_seconds: float | None = None
        """When a thread first took it up, on the clock of the sessions."""
        self.layer_seconds = EffortSeconds()
        """What its layers took."""
        self._solution_L: list[LayerSolution | None] = [None] * num_layers
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

    def begin_layer(self) -> int | None:
        """The next layer for the thread that asks, which then tells what came of it; None: there is none left."""
        with self._lock:
            if not self.layers_left:
                return None
            self._num_begun += 1
            self._num_open += 1
            return self._num_begun - 1

    def note(self, layer: int, solution: LayerSolution, *, seconds: float) -> None:
        """A layer that was begun is solved; 0 seconds where its solution was there before."""
        with self._lock:
            self.layer_seconds = self.layer_seconds.with_layer(solution.effort, seconds)
            self._solution_L[layer] = solution
            self._end_layer()

    def fail(self, error: Exception) -> None:
        """A layer that was begun cannot be solved; no other is begun any more."""
        with self._lock:
            self._failure = self._failure or error
            self._end_layer()

    def wait_for_begun(self) -> None:
        """Waits until nobody has a layer in hand.

        Raises:
            Exception: what the first of the layers has failed with.
        """
        with self._lock:
            self._is_idle.wait_for(lambda: self._num_open == 0)
        if self._failure is not None:
            raise self._failure

    def _end_layer(self) -> None:
        self._num_open -= 1
        if self._num_open == 0:
            self._is_idle.notify_all()

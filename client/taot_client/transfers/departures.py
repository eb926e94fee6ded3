"""When guests planned ahead leave: those of later layers wait until earlier layers' tokens have been sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

LAYERS_UNDER_WAY = 1
"""Layers with guests that are reached next and whose guests have left. With two, tokens find guests on the links."""


class Departures:
    """The layers whose guests have yet to leave in this step, in forward order.

    Tokens are waited for at once, guests when their layer is reached. So no more guests are on the links than the next
    layers need: what all layers of a model send together would stand in the way of the first layers' counts and tokens.
    Who leaves when follows from the plan and from program order alone, so that it is the same on all ranks.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._under_way: deque[int] = deque()

    def clear(self) -> None:
        """Forgets those that wait: a new plan is in force, or the weights are others."""
        self._waiting.clear()
        self._under_way.clear()

    def add(self, layer: int, depart: Callable[[], None]) -> None:
        """Lets a layer's guests wait behind those of earlier layers; `depart` sends for them."""
        self._waiting.append((layer, depart))

    def begin(self) -> None:
        """Lets the guests leave that the first layers need."""
        self._depart_beyond(-1)

    def dispatched(self, layer: int) -> None:
        """Notes that the tokens of a layer have been sent: guests of the layers behind it may leave."""
        if self._waiting:
            self._depart_beyond(layer)

    def reach(self, layer: int) -> None:
        """Notes that a forward has come to a layer: its guests leave at the latest now, if layers were left out."""
        while self._waiting and self._waiting[0][0] <= layer:
            self._waiting.popleft()[1]()

    def depart_all(self) -> None:
        """Lets all guests leave."""
        while self._waiting:
            self._waiting.popleft()[1]()

    def _depart_beyond(self, layer: int) -> None:
        while self._under_way and self._under_way[0] <= layer:
            self._under_way.popleft()
        while self._waiting and len(self._under_way) < LAYERS_UNDER_WAY:
            following, depart = self._waiting.popleft()
            self._under_way.append(following)
            depart()

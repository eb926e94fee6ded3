"""The passes of one layer whose backward has not ended: what recomputation must repeat exactly."""

from __future__ import annotations

import torch

from taot_client.layer_pass import LayerPass


def in_backward() -> bool:
    """Whether this thread runs inside an autograd backward, as a recomputation does."""
    return torch._C._current_graph_task_id() != -1


class PinnedPasses:
    """Keeps each pass from its forward to the end of its backward, by micro-batch."""

    def __init__(self, *, layer: str) -> None:
        self._layer = layer
        self._pins: dict[int, LayerPass] = {}
        self._next = 0

    @staticmethod
    def is_recomputation() -> bool:
        """Whether a forward that starts now repeats an earlier one (activation checkpointing)."""
        return in_backward()

    @property
    def num_in_flight(self) -> int:
        """Passes whose backward has not ended; the same on all ranks, which run the same program.

        A training-mode forward that never gets a backward counts until the step ends: evaluate in eval mode.
        """
        return len(self._pins)

    def next_index(self, micro_batch: int | None) -> int:
        """The micro-batch of a forward that starts now: the given one, or the next in order.

        Raises:
            RuntimeError: if the given one is in flight already.
        """
        if micro_batch is None:
            return self._next
        if micro_batch in self._pins:
            raise RuntimeError(
                f"layer {self._layer!r} ran twice in micro-batch {micro_batch} before its backward: give every forward"
                " its own agent.micro_batch(index); a layer used twice in one forward is not supported"
            )
        return micro_batch

    def add(self, layer_pass: LayerPass) -> None:
        """Pins a pass."""
        self._pins[layer_pass.site.micro_batch] = layer_pass
        self._next = max(self._next, layer_pass.site.micro_batch) + 1

    def current(self, micro_batch: int | None) -> LayerPass:
        """The pass that a recomputation repeats.

        Raises:
            RuntimeError: if there is none, or several and nobody said which.
        """
        if micro_batch is None and len(self._pins) == 1:
            return next(iter(self._pins.values()))
        if micro_batch is None:
            raise RuntimeError(
                f"layer {self._layer!r} is recomputed with {len(self._pins)} micro-batches in flight: wrap every"
                " forward and every backward in `with agent.micro_batch(index)`"
            )
        if micro_batch not in self._pins:
            raise RuntimeError(
                f"layer {self._layer!r} is recomputed for micro-batch {micro_batch}, whose backward has ended or"
                f" whose forward never ran; in flight: {sorted(self._pins)}"
            )
        return self._pins[micro_batch]

    def find(self, micro_batch: int) -> LayerPass | None:
        """The pass of a micro-batch, if its backward has yet to end."""
        return self._pins.get(micro_batch)

    def end(self, layer_pass: LayerPass) -> None:
        """Lets go of a pass whose backward has ended."""
        self._pins.pop(layer_pass.site.micro_batch, None)

    def clear(self) -> None:
        """Lets go of everything: a new step begins."""
        self._pins.clear()
        self._next = 0

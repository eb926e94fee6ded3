"""Notices expert weights that are not laid out any more as they were when the agent was made."""

from __future__ import annotations

from collections.abc import Sequence

from taot_client.home_experts import HomeExperts
from taot_client.transfers.layer_route import LayerRoute


class LayoutWatch:
    """Looks at the home experts of a layer in every step; closely where their memory is another than last time."""

    def __init__(self, experts: HomeExperts, route: LayerRoute) -> None:
        """Knows from `route` how the weights were laid out."""
        self._experts = experts
        self._route = route
        self._seen: Sequence[object] = ()

    def check(self) -> None:
        """Checks that the weights are still laid out as at start.

        Raises:
            RuntimeError: if the model has been moved or cast since.
        """
        tensors = self._experts.tensors()
        seen = [(tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]
        if seen == self._seen:
            return
        if self._experts.layout() != self._route.layout or any(x.device != self._route.device for x in tensors):
            raise RuntimeError(
                f"the expert weights of layer {self._route.name!r} have another shape, dtype or device than when the"
                " agent was made: make the agent after the model has been moved and cast"
            )
        self._seen = seen

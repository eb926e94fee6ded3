"""The search for guests of `taot`, for many layers at once, in torch tensor operations.

`plan_layers` gives the same plans as `taot_planning.plan_layer` with effort `fast`, and for more effort the best of
several searches of each layer. The search is written a second time here, in whole arrays where `taot_planning` has
scalar loops: read it to understand the search, and compare the two to trust it.

It is meant for CUDA. A round is hundreds of small operations whatever the number of layers, so a few dozen layers keep
no device busy; on a CPU it is tens to hundreds of times slower than `taot_planning`. Use it only where
`benchmarks/batched_planning.py` says that it is faster.

Axis letters, on top of those of `taot_planning`: B searches of a batch, H hot ranks, C cold ranks, X experts of one
hot rank (largest first), M hot ranks in the order in which they get guests, N draws, T cold ranks that are looked at.
Searches of one batch differ in size; the arrays are padded.
"""

from taot_torch.layer_plans import plan_layers

__all__ = ["plan_layers"]

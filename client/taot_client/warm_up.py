"""Compiles what the agent computes with before a training step needs it."""

from __future__ import annotations

from collections.abc import Sequence

from taot_client import counts_gather, pass_split, token_layout
from taot_client.transfers import transfer_schedule
from taot_planning import warm_up as warm_up_planning


def warm_up(algorithms: Sequence[str]) -> None:
    """Compiles the kernels of the agent and of planning inline; milliseconds where they are on the disk.

    Args:
        algorithms: which the ranks may plan with.
    """
    warm_up_planning(algorithms, has_recent=False)
    for module in (token_layout, pass_split, transfer_schedule, counts_gather):
        module.warm_up()

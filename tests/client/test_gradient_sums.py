"""The gradients of one expert's guests in one remote node cross as one sum."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rank_threads import Rank, run_ranks
from torch import nn

from taot_client.transfers.expert_layout import ExpertLayout
from taot_client.transfers.gloo_mover import GlooMover
from taot_client.transfers.guest_gradients import GradientExchange, WayBack, gate_weights
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import Shipment, TransferClock, TransferError
from taot_client.transfers.transfer_schedule import schedule_moves

LONG_SECONDS = 30.0
"""A bound against hangs; nothing here should come near it."""

NODES_R = np.array([0, 0, 1, 1, 1])
HOME_E = np.array([0, 1])
GUESTS_RK = np.array([[-1, -1], [-1, 0], [0, 1], [-1, 0], [0, -1]])
"""Expert 0 is guest on its own node (rank 1) and on all three ranks of the other; expert 1 on rank 2."""


def on_mover(rank: Rank, body: Callable[[GlooMover], Any]) -> Any:
    mover = GlooMover(rank.agent_groups.gradients, clock=TransferClock(), name="gradients")
    try:
        return body(mover)
    finally:
        mover.close()


def route_of(rank: Rank, dtype: torch.dtype, *, layer: int = 4) -> LayerRoute:
    return LayerRoute(
        rank=rank.group.rank,
        layer=layer,
        name="moe",
        layout=ExpertLayout.of((torch.zeros(2, 3, dtype=dtype),)),
        device=torch.device("cpu"),
        is_labelled=True,
    )


def exchange_on(
    rank: Rank, mover: GlooMover, gradient_RK: dict[tuple[int, int], float], dtype: torch.dtype
) -> tuple[GradientExchange, list[Shipment]]:
    exchange = GradientExchange(
        route_of(rank, dtype),
        WayBack.of(schedule_moves(GUESTS_RK, HOME_E, relay_nodes_R=NODES_R), rank=rank.group.rank),
        mover=mover,
        step=6,
    )
    me = rank.group.rank
    own = {slot: (torch.full((3,), value, dtype=dtype),) for (at, slot), value in gradient_RK.items() if at == me}
    return exchange, exchange.launch(own)


def gradients_by_home(gradient_RK: dict[tuple[int, int], float], dtype: torch.dtype) -> list[Any]:
    """What each rank collects, and how many gradients it has sent to which rank."""

    def body(rank: Rank) -> Any:
        def act(mover: GlooMover) -> Any:
            exchange, posted = exchange_on(rank, mover, gradient_RK, dtype)
            arrived = exchange.collect(clock=TransferClock(), timeout_seconds=LONG_SECONDS)
            mover.drain(LONG_SECONDS)
            sent_to = sorted(each.peer for each in posted if not each.is_receive)
            return [(expert, views[0].tolist()) for expert, views in arrived], sent_to

        return on_mover(rank, act)

    return run_ranks(5, body)


def test_gradients_of_one_node_cross_as_one_sum() -> None:
    gradient_RK = {(1, 1): 1000.0, (2, 0): 1.0, (2, 1): 7.0, (3, 1): 10.0, (4, 0): 100.0}
    collected = gradients_by_home(gradient_RK, torch.float64)
    assert [arrived for arrived, _ in collected] == [
        [(0, [1000.0] * 3), (0, [111.0] * 3)],
        [(1, [7.0] * 3)],
        [],
        [],
        [],
    ]
    # Rank 2 has expert 1 to itself, so rank 3 collects for expert 0.
    assert [sent_to for _, sent_to in collected] == [[], [0], [1, 3], [0], [3]]


def test_a_sum_is_rounded_once_and_not_after_every_addition() -> None:
    # In bf16 1 + 2^-8 is 1 again: added one by one to a rounded sum, the small ones would be lost.
    small = 2.0**-8
    gradient_RK = {(1, 1): 0.0, (2, 0): small, (2, 1): 0.0, (3, 1): 1.0, (4, 0): small}
    arrived, _ = gradients_by_home(gradient_RK, torch.bfloat16)[0]
    assert arrived[1] == (0, [1 + 2 * small] * 3)


def test_a_part_that_is_not_what_was_awaited_is_not_added() -> None:
    gave_up = threading.Event()

    def body(rank: Rank) -> str:
        def act(mover: GlooMover) -> str:
            me = rank.group.rank
            gradient_RK = {(1, 1): 0.0, (2, 0): 1.0, (2, 1): 0.0, (3, 1): 1.0}
            if me == 4:
                moves = schedule_moves(GUESTS_RK, HOME_E, relay_nodes_R=NODES_R)
                (move,) = [each for each in moves if each.rank == 4]
                strange = route_of(rank, torch.float32).pack([torch.ones(3)], expert=1, epoch=-1, with_checksum=False)
                mover.post([route_of(rank, torch.float32).gradient(move, strange, step=6)])
                mover.drain(LONG_SECONDS)
                return ""
            exchange, posted = exchange_on(rank, mover, gradient_RK, torch.float32)
            if me == 3:
                (total,) = [each for each in posted if each.after]
                with pytest.raises(TransferError) as refusal:
                    total.wait(LONG_SECONDS)
                assert gave_up.wait(LONG_SECONDS)
                return str(refusal.value)
            if me == 0:
                weight = nn.Parameter(torch.ones(1, 3))
                (gated,) = gate_weights(
                    (weight,), collect=lambda: exchange.collect(clock=TransferClock(), timeout_seconds=1.0)
                )
                with pytest.raises(TransferError, match="gradient of expert 0, .* from rank 3 did not end"):
                    gated.sum().backward()
                assert weight.grad is None
                gave_up.set()
            return ""

        return on_mover(rank, act)

    message = run_ranks(5, body)[3]
    assert "gradient of expert 0, layer 'moe', step 6 to rank 0 failed: " in message
    assert "[4, 0, -1] of layer 'moe' holds [4, 1, -1]" in message

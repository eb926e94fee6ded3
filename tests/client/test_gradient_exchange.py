from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_threads import Rank, run_ranks
from torch import nn

from taot_client.transfers.expert_layout import ExpertLayout
from taot_client.transfers.gloo_mover import GlooMover
from taot_client.transfers.guest_gradients import GradientExchange, WayBack, Weights, enter_guests, gate_weights
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import TransferClock
from taot_client.transfers.transfer_schedule import Move, schedule_moves

HOME_E = np.array([0, 0, 1])
GUESTS_RK = np.array([[2, -1], [1, 0], [0, 1]])
"""Ranks 1 and 2 host both experts of rank 0, in different slots; rank 0 hosts rank 1's."""

FUSED = (torch.zeros(2, 3), torch.zeros(2, 2, 2).double())


def gradient_of(guest_rank: int, slot: int) -> Weights:
    """A gradient that names the copy it comes from."""
    value = 100.0 * guest_rank + 10.0 * slot
    return torch.full((3,), value + 1), torch.full((2, 2), value + 2).double()


def make_route(rank: Rank, *, layer: int = 4, is_labelled: bool = True) -> LayerRoute:
    return LayerRoute(
        rank=rank.group.rank,
        layer=layer,
        name=f"blocks.{layer}.moe",
        layout=ExpertLayout.of(FUSED),
        device=torch.device("cpu"),
        is_labelled=is_labelled,
    )


def make_exchange(rank: Rank, mover: GlooMover, moves: list[Move], *, is_labelled: bool = True) -> GradientExchange:
    return GradientExchange(
        make_route(rank, is_labelled=is_labelled), WayBack.of(moves, rank=rank.group.rank), mover=mover, step=6
    )


def make_mover(rank: Rank) -> GlooMover:
    return GlooMover(rank.agent_groups.gradients, clock=TransferClock(), name="gradients")


@pytest.mark.parametrize("is_labelled", [True, False], ids=["labelled", "unlabelled"])
def test_gradients_come_home_in_the_order_of_guest_rank_and_slot(is_labelled: bool) -> None:
    def body(rank: Rank) -> list[tuple[int, list[float]]]:
        mover = make_mover(rank)
        exchange = make_exchange(rank, mover, schedule_moves(GUESTS_RK, HOME_E), is_labelled=is_labelled)
        own_slots = np.flatnonzero(GUESTS_RK[rank.group.rank] >= 0).tolist()
        exchange.launch({slot: gradient_of(rank.group.rank, slot) for slot in own_slots})
        arrived = exchange.collect(clock=TransferClock(), timeout_seconds=30)
        mover.drain(30)
        mover.close()
        return [(expert, [first[0].item(), second[0, 0].item()]) for expert, (first, second) in arrived]

    assert run_ranks(3, body) == [
        [(1, [101, 102]), (0, [111, 112]), (0, [201, 202]), (1, [211, 212])],
        [(2, [1, 2])],
        [],
    ]


ONE_GUEST = [Move(stage=0, round=0, home=0, source=0, rank=1, slot=1, expert=0)]
"""Rank 1 hosts expert 0 of rank 0."""

EXACTLY_ONE = "Every forward needs exactly one backward, through the layer's output"


def gated_by(exchange: GradientExchange) -> tuple[nn.Parameter, torch.Tensor]:
    """A weight of two experts, and what stands behind the gate that waits for the exchange."""
    weight = nn.Parameter(torch.ones(2, 3))
    (gated,) = gate_weights(
        (weight,),
        collect=lambda: [(e, grads[:1]) for e, grads in exchange.collect(clock=TransferClock(), timeout_seconds=30)],
    )
    return weight, gated


def test_a_gate_whose_guests_were_never_sent_says_so() -> None:
    def body(rank: Rank) -> str:
        mover = make_mover(rank)
        weight, gated = gated_by(make_exchange(rank, mover, []))
        with pytest.raises(RuntimeError, match="are waiting and cannot be collected") as refusal:
            gated.sum().backward()
        mover.close()
        assert weight.grad is None, "a gradient that lacks the guests' share must not be used"
        return str(refusal.value)

    (message,) = run_ranks(1, body)
    assert "layer 'blocks.4.moe'" in message
    assert EXACTLY_ONE in message


def test_gradients_leave_once() -> None:
    def body(rank: Rank) -> list[tuple[int, list[float]]]:
        mover = make_mover(rank)
        exchange = make_exchange(rank, mover, ONE_GUEST)
        gradients = {1: gradient_of(1, 1)} if rank.group.rank == 1 else {}
        assert len(exchange.launch(gradients)) == 1
        with pytest.raises(RuntimeError, match=f"are launched and cannot be launched. {EXACTLY_ONE}"):
            exchange.launch(gradients)
        # The first launch is as good as before.
        arrived = exchange.collect(clock=TransferClock(), timeout_seconds=30)
        with pytest.raises(RuntimeError, match="are collected and cannot be launched"):
            exchange.launch(gradients)
        mover.drain(30)
        mover.close()
        return [(expert, first.tolist()) for expert, (first, _) in arrived]

    assert run_ranks(2, body) == [[(0, [111.0] * 3)], []]


def test_a_second_backward_through_the_gate_adds_nothing() -> None:
    def body(rank: Rank) -> list[list[float]]:
        mover = make_mover(rank)
        exchange = make_exchange(rank, mover, ONE_GUEST)
        weight, gated = gated_by(exchange)
        exchange.launch({1: gradient_of(1, 1)} if rank.group.rank == 1 else {})
        loss = gated.sum()
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match=f"are collected and cannot be collected. {EXACTLY_ONE}"):
            loss.backward()
        mover.drain(30)
        mover.close()
        assert weight.grad is not None
        return weight.grad.tolist()

    home, guest = run_ranks(2, body)
    assert home == [[112.0] * 3, [1.0] * 3]
    assert guest == [[1.0] * 3] * 2


def test_a_second_backward_through_the_entry_is_refused() -> None:
    def body(rank: Rank) -> None:
        mover = make_mover(rank)
        exchange = make_exchange(rank, mover, [])
        x, _ = enter_guests(torch.ones(1, 2), [], deliver=lambda gradients: None if exchange.launch({}) else None)
        loss = x.sum()
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="are launched and cannot be launched"):
            loss.backward()
        mover.close()

    run_ranks(1, body)


@pytest.mark.parametrize(
    ("layer", "expert", "epoch"), [(5, 0, -1), (4, 1, -1), (4, 0, 6)], ids=["layer", "expert", "weights"]
)
def test_what_comes_home_must_be_the_gradient_that_was_awaited(layer: int, expert: int, epoch: int) -> None:
    def body(rank: Rank) -> str:
        mover = make_mover(rank)
        if rank.group.rank == 1:
            buffer = make_route(rank, layer=layer).pack(
                gradient_of(1, 1), expert=expert, epoch=epoch, with_checksum=False
            )
            mover.post([make_route(rank).gradient(ONE_GUEST[0], buffer, step=6)])
            mover.drain(30)
            mover.close()
            return ""
        exchange = make_exchange(rank, mover, ONE_GUEST)
        weight, gated = gated_by(exchange)
        exchange.launch({})
        with pytest.raises(RuntimeError, match="of layer 'blocks.4.moe' holds") as refusal:
            gated.sum().backward()
        mover.drain(30)
        mover.close()
        assert weight.grad is None, "another's gradient must not be used"
        return str(refusal.value)

    message, _ = run_ranks(2, body)
    assert f"[4, 0, -1] of layer 'blocks.4.moe' holds [{layer}, {expert}, {epoch}]" in message

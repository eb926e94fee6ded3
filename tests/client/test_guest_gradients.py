from __future__ import annotations

import numpy as np
import pytest
import torch
from rank_threads import Rank, run_ranks
from torch import nn

from taot_client.expert_layout import ExpertLayout
from taot_client.gloo_mover import GlooMover
from taot_client.guest_gradients import (
    GradientExchange,
    Weights,
    add_guest_gradients,
    enter_guests,
    gate_weights,
)
from taot_client.layer_route import LayerRoute
from taot_client.shipment import TransferClock
from taot_client.transfer_schedule import Move, schedule_moves

# Sums of gradients.


def test_guest_gradients_are_summed_and_never_averaged() -> None:
    grads = (torch.ones(3, 2), torch.full((3, 1), 10.0))
    returned = [(1, (torch.full((2,), 2.0), torch.full((1,), 20.0))), (1, (torch.full((2,), 4.0), torch.zeros(1)))]
    first, second = add_guest_gradients(grads, returned)
    assert first.tolist() == [[1, 1], [7, 7], [1, 1]]
    assert second.tolist() == [[10], [30], [10]]


def test_bf16_sums_in_fp32_and_rounds_once() -> None:
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(2, 1000, generator=generator).bfloat16()
    guests = [torch.randn(1000, generator=generator).bfloat16() for _ in range(6)]
    (summed,) = add_guest_gradients((grad,), [(1, (guest,)) for guest in guests])
    # By hand, in numpy's fp32; only the last rounding is torch's.
    by_hand = grad[1].float().numpy()
    for guest in guests:
        by_hand = (by_hand + guest.float().numpy()).astype(np.float32)
    assert summed.dtype is torch.bfloat16
    assert torch.equal(summed[1], torch.from_numpy(by_hand).bfloat16())
    assert torch.equal(summed[0], grad[0])
    running = grad[1]
    for guest in guests:
        running = running + guest
    assert not torch.equal(summed[1], running), "the data would not tell rounding once from rounding every time"


def test_the_order_of_addition_is_the_given_one() -> None:
    grad, large, small = torch.zeros(1, 1), torch.tensor([2.0**24]), torch.ones(1)
    in_order = [(0, (each,)) for each in (large, small, small)]
    # 2^24 + 1 rounds back to 2^24 in fp32, so the two orders differ.
    assert add_guest_gradients((grad,), in_order)[0].item() == 2.0**24
    assert add_guest_gradients((grad,), in_order[::-1])[0].item() == 2.0**24 + 2


def test_fp64_is_never_narrowed() -> None:
    grad = torch.tensor([[1.0], [0.0]]).double()
    (summed,) = add_guest_gradients((grad,), [(0, (torch.tensor([2.0**-50]).double(),))])
    assert summed.dtype is torch.float64
    assert summed.tolist() == [[1.0 + 2.0**-50], [0.0]]


def test_gradients_that_autograd_owns_are_not_changed() -> None:
    grads, guest = (torch.ones(2, 3),), (torch.ones(3),)
    (summed,) = add_guest_gradients(grads, [(0, guest), (1, guest)])
    assert summed.data_ptr() != grads[0].data_ptr()
    assert torch.equal(grads[0], torch.ones(2, 3))
    assert torch.equal(guest[0], torch.ones(3))
    assert torch.equal(summed, torch.full((2, 3), 2.0))


# The entry before the guest experts.


class Deliveries:
    """Keeps what the entry hands over."""

    def __init__(self) -> None:
        self.received: list[Weights] = []

    def __call__(self, gradients: Weights) -> None:
        self.received.append(gradients)


@pytest.mark.parametrize("tokens_need_gradient", [True, False])
def test_the_entry_delivers_the_weights_gradients_once(tokens_need_gradient: bool) -> None:
    deliver = Deliveries()
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=tokens_need_gradient)
    weight = torch.tensor([[1.0, -1.0], [2.0, 0.5]])
    x_guest, (behind,) = enter_guests(x, [weight], deliver=deliver)
    assert torch.equal(x_guest, x)
    assert torch.equal(behind, weight)
    (x_guest @ behind).sum().backward()
    ((gradient,),) = deliver.received
    assert gradient.tolist() == [[4.0, 4.0], [7.0, 7.0]]  # column sums of x, for each output
    assert weight.grad is None, "a guest is a plain buffer"
    if tokens_need_gradient:
        assert x.grad is not None
        assert x.grad.tolist() == [[0.0, 2.5], [0.0, 2.5]]


@pytest.mark.parametrize("tokens_need_gradient", [True, False])
def test_the_entry_delivers_once_also_without_guests(tokens_need_gradient: bool) -> None:
    deliver = Deliveries()
    x = torch.zeros(0, 2, requires_grad=tokens_need_gradient)
    x_guest, behind = enter_guests(x, [], deliver=deliver)
    assert behind == ()
    torch.cat([torch.ones(3, 2, requires_grad=True), x_guest]).sum().backward()
    assert deliver.received == [()]


def test_a_guest_that_contributed_nothing_delivers_zeros() -> None:
    deliver = Deliveries()
    weights = [torch.ones(2, 2), torch.ones(2, 3)]
    x_guest, behind = enter_guests(torch.ones(1, 2), weights, deliver=deliver)
    (x_guest @ behind[0]).sum().backward()
    ((used, unused),) = deliver.received
    assert used.tolist() == [[1, 1], [1, 1]]
    assert unused.tolist() == [[0, 0, 0], [0, 0, 0]]


# The gate before the home experts.


def returned_to_expert_1() -> list[tuple[int, Weights]]:
    return [(1, (torch.full((2,), 5.0),)), (1, (torch.full((2,), 7.0),))]


def test_hooks_on_the_parameter_see_the_whole_sum() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    seen: list[tuple[str, list[list[float]]]] = []
    weight.register_hook(lambda grad: seen.append(("gradient", grad.tolist())))

    def after_accumulation(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        seen.append(("accumulated", parameter.grad.tolist()))

    weight.register_post_accumulate_grad_hook(after_accumulation)
    (gated,) = gate_weights((weight,), collect=returned_to_expert_1)
    (gated * 3.0).sum().backward()
    whole = [[3.0, 3.0], [15.0, 15.0]]
    assert seen == [("gradient", whole), ("accumulated", whole)]


def test_gates_of_several_micro_batches_add_up() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    for _ in range(3):
        (gated,) = gate_weights((weight,), collect=returned_to_expert_1)
        (gated * 3.0).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [[9.0, 9.0], [45.0, 45.0]]


def test_the_gate_collects_once_and_only_in_backward() -> None:
    calls = 0

    def collect() -> list[tuple[int, Weights]]:
        nonlocal calls
        calls += 1
        return []

    weights = (nn.Parameter(torch.ones(1, 2)), nn.Parameter(torch.ones(1, 3)))
    gated = gate_weights(weights, collect=collect)
    assert calls == 0
    sum(each.sum() for each in gated).backward()
    assert calls == 1
    assert [weight.grad.tolist() for weight in weights if weight.grad is not None] == [[[1, 1]], [[1, 1, 1]]]


def test_homes_whose_tokens_all_went_to_guests_still_get_their_gradients() -> None:
    weights = (nn.Parameter(torch.ones(1, 2)), nn.Parameter(torch.ones(1, 2)))
    gated = gate_weights(weights, collect=lambda: [(0, (torch.full((2,), 3.0), torch.full((2,), 4.0)))])
    # Only the first tensor is used, on no tokens: the other's gradient is undefined to autograd.
    (torch.zeros(0, 2) * gated[0]).sum().backward()
    assert weights[0].grad is not None
    assert weights[1].grad is not None
    assert weights[0].grad.tolist() == [[3.0, 3.0]]
    assert weights[1].grad.tolist() == [[4.0, 4.0]]


# The exchange between the two.


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
    return GradientExchange(route=make_route(rank, is_labelled=is_labelled), moves=moves, mover=mover, step=6)


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


ONE_GUEST = [Move(round=0, home=0, rank=1, slot=1, expert=0)]
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

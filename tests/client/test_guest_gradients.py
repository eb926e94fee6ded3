from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from taot_client.transfers.guest_gradients import (
    Weights,
    add_guest_gradients,
    enter_guests,
    gate_weights,
)

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
    assert x_guest.requires_grad is tokens_need_gradient, "as with home experts: it is a third of the computing"
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

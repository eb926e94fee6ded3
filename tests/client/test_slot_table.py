from __future__ import annotations

import threading

import pytest
import torch

from taot_client.transfers.expert_layout import ExpertLayout
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.shipment import Cargo, Shipment, TransferError
from taot_client.transfers.slot_table import SlotState, SlotTable
from taot_client.transfers.transfer_schedule import Move

FUSED = (torch.arange(24.0).view(2, 3, 4), torch.arange(10, dtype=torch.bfloat16).view(2, 5))
LAYOUT = ExpertLayout.of(FUSED)
ROUTE = LayerRoute(rank=0, layer=3, name="moe", layout=LAYOUT, device=torch.device("cpu"), is_labelled=True)


class Arrival:
    """Ends when the test says so: the test's own hand instead of a network."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.awaited = threading.Event()
        self.error: RuntimeError | None = None

    def is_done(self) -> bool:
        return self.ended.is_set() and self.error is None

    def wait(self, timeout_seconds: float) -> bool:
        self.awaited.set()
        ended = self.ended.wait(timeout_seconds)
        if self.error is not None:
            raise self.error
        return ended


def make_table(*, num_slots: int = 3, poison: bool = False) -> SlotTable:
    return SlotTable(ROUTE, [ROUTE.new_buffer().zero_() for _ in range(num_slots)], poison=poison)


def packed(expert: int, *, weight_epoch: int, with_checksum: bool = False) -> torch.Tensor:
    tensors = [fused[expert % 2] for fused in FUSED]
    return ROUTE.pack(tensors, expert=expert, epoch=weight_epoch, with_checksum=with_checksum)


def start_receiving(table: SlotTable, index: int, *, expert: int, weight_epoch: int) -> Arrival:
    slot = table.begin_receive(index, expert=expert, weight_epoch=weight_epoch)
    arrival = Arrival()
    slot.shipment = Shipment(
        cargo=Cargo(kind="weights", expert=expert, layer="moe", step=0),
        peer=1,
        tag=index,
        buffer=slot.buffer,
        is_receive=True,
        completion=arrival,
    )
    return arrival


def receive(table: SlotTable, index: int, *, expert: int, weight_epoch: int, with_checksum: bool = False) -> None:
    arrival = start_receiving(table, index, expert=expert, weight_epoch=weight_epoch)
    table.slots[index].buffer.copy_(packed(expert, weight_epoch=weight_epoch, with_checksum=with_checksum))
    arrival.ended.set()
    table.await_arrival(index, timeout_seconds=1)


def test_the_life_of_a_slot() -> None:
    table = make_table()
    slot = table.slots[1]
    assert slot.state is SlotState.EMPTY
    assert table.ready_bits(weight_epoch=4) == 0

    arrival = start_receiving(table, 1, expert=7, weight_epoch=4)
    assert (slot.state, slot.expert, slot.weight_epoch) == (SlotState.RECEIVING, 7, 4)
    assert table.ready_bits(weight_epoch=4) == 0, "not there yet"

    slot.buffer.copy_(packed(7, weight_epoch=4))
    arrival.ended.set()
    assert table.ready_bits(weight_epoch=4) == 0b010
    assert slot.state is SlotState.READY

    weights = table.weights(1, expert=7, weight_epoch=4)
    for view, fused in zip(weights, FUSED, strict=True):
        assert torch.equal(view, fused[1])

    table.acquire(1)
    table.acquire(1)
    assert slot.state is SlotState.IN_USE
    assert table.ready_bits(weight_epoch=4) == 0b010, "in use is as good as ready"
    table.release(1)
    assert slot.state is SlotState.IN_USE, "another micro-batch needs it still"
    table.release(1)
    assert slot.state is SlotState.READY

    table.clear(timeout_seconds=0.0)
    assert (slot.state, slot.expert, slot.shipment) == (SlotState.EMPTY, -1, None)
    assert table.ready_bits(weight_epoch=4) == 0


def test_waiting_for_an_arrival_makes_the_slot_ready_and_bounds_the_wait() -> None:
    table = make_table()
    arrival = start_receiving(table, 0, expert=5, weight_epoch=0)
    with pytest.raises(TransferError, match=r"weights of expert 5, layer 'moe', step 0 from rank 1"):
        table.await_arrival(0, timeout_seconds=0.0)
    assert table.slots[0].state is SlotState.RECEIVING
    arrival.ended.set()
    table.await_arrival(0, timeout_seconds=0.0)
    assert table.slots[0].state is SlotState.READY
    table.await_arrival(0, timeout_seconds=0.0)
    table.await_arrival(1, timeout_seconds=0.0)
    assert table.slots[1].state is SlotState.EMPTY, "nothing was on its way there"


def test_a_slot_in_use_cannot_receive() -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=0)
    table.acquire(0)
    with pytest.raises(AssertionError, match="in use"):
        table.begin_receive(0, expert=2, weight_epoch=0)
    assert (table.slots[0].expert, table.slots[0].state) == (1, SlotState.IN_USE)
    table.release(0)
    assert table.begin_receive(0, expert=2, weight_epoch=0).expert == 2


def test_a_receiving_slot_cannot_receive_another() -> None:
    table = make_table()
    start_receiving(table, 0, expert=1, weight_epoch=0)
    with pytest.raises(AssertionError, match="receiving already"):
        table.begin_receive(0, expert=2, weight_epoch=0)
    assert table.slots[0].expert == 1


def test_weights_of_another_epoch_are_not_ready() -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=4)
    receive(table, 1, expert=2, weight_epoch=5)
    receive(table, 2, expert=3, weight_epoch=5)
    table.acquire(2)
    assert table.ready_bits(weight_epoch=4) == 0b001
    assert table.ready_bits(weight_epoch=5) == 0b110
    assert table.ready_bits(weight_epoch=6) == 0


def test_every_slot_has_its_own_bit_up_to_the_largest_number() -> None:
    table = make_table(num_slots=62)
    for index in (0, 31, 61):
        receive(table, index, expert=index, weight_epoch=0)
    assert table.ready_bits(weight_epoch=0) == (1 << 61) | (1 << 31) | 1


@pytest.mark.parametrize(("wanted", "epoch"), [(2, 4), (1, 5), (2, 5)], ids=["expert", "epoch", "both"])
def test_what_arrived_must_be_what_the_plan_says(wanted: int, epoch: int) -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=4)
    told = rf"a buffer for .* \[3, {wanted}, {epoch}\] of layer 'moe' holds \[3, 1, 4\]"
    with pytest.raises(RuntimeError, match=told):
        table.weights(0, expert=wanted, weight_epoch=epoch)


def test_the_label_that_arrived_counts_and_not_what_was_expected() -> None:
    table = make_table()
    arrival = start_receiving(table, 0, expert=1, weight_epoch=4)
    table.slots[0].buffer.copy_(packed(9, weight_epoch=4))
    arrival.ended.set()
    table.await_arrival(0, timeout_seconds=1)
    with pytest.raises(RuntimeError, match=r"a buffer for .* \[3, 1, 4\] of layer 'moe' holds \[3, 9, 4\]"):
        table.weights(0, expert=1, weight_epoch=4)


def test_weights_are_refused_before_they_have_arrived() -> None:
    table = make_table()
    with pytest.raises(AssertionError, match="empty, not ready"):
        table.weights(0, expert=1, weight_epoch=0)
    start_receiving(table, 0, expert=1, weight_epoch=0)
    table.slots[0].buffer.copy_(packed(1, weight_epoch=0))
    with pytest.raises(AssertionError, match="receiving, not ready"):
        table.weights(0, expert=1, weight_epoch=0)


def test_weights_that_changed_after_they_were_sent_are_refused() -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=0, with_checksum=True)
    view, _ = table.weights(0, expert=1, weight_epoch=0)
    view[1, 2] += 1e-6
    with pytest.raises(RuntimeError, match="expert 1 of layer 'moe' changed between send and use"):
        table.weights(0, expert=1, weight_epoch=0)


def free_of_numbers(table: SlotTable) -> bool:
    return all(bool(view.isnan().all()) for slot in table.slots for view in LAYOUT.views(slot.buffer))


def test_poisoned_slots_hold_nan_while_they_are_free() -> None:
    table = make_table(poison=True)
    assert free_of_numbers(table)
    receive(table, 0, expert=1, weight_epoch=0)
    assert not any(view.isnan().any() for view in table.weights(0, expert=1, weight_epoch=0))
    table.clear(timeout_seconds=0.0)
    assert free_of_numbers(table)


def test_clearing_waits_for_a_receive_under_way() -> None:
    table = make_table(poison=True)
    arrival = start_receiving(table, 1, expert=1, weight_epoch=0)
    clearing = threading.Thread(target=table.clear, kwargs={"timeout_seconds": 30}, daemon=True)
    clearing.start()
    assert arrival.awaited.wait(30)
    assert table.slots[1].state is SlotState.RECEIVING, "its memory is still being written"
    table.slots[1].buffer.copy_(packed(1, weight_epoch=0))
    arrival.ended.set()
    clearing.join(30)
    assert not clearing.is_alive()
    assert (table.slots[1].state, table.slots[1].shipment) == (SlotState.EMPTY, None)
    assert free_of_numbers(table), "what came while clearing waited belongs to the past too"


def test_clearing_gives_up_on_a_receive_that_does_not_end_and_leaves_its_memory_alone() -> None:
    table = make_table(poison=True)
    arrival = start_receiving(table, 0, expert=1, weight_epoch=0)
    table.slots[0].buffer.copy_(packed(1, weight_epoch=0))
    content = table.slots[0].buffer.clone()
    with pytest.raises(TransferError, match=r"weights of expert 1, .* from rank 1 did not end"):
        table.clear(timeout_seconds=0.0)
    assert (table.slots[0].state, table.slots[0].expert) == (SlotState.RECEIVING, 1)
    assert torch.equal(table.slots[0].buffer, content)
    with pytest.raises(AssertionError, match="receiving already"):
        table.begin_receive(0, expert=2, weight_epoch=1)
    arrival.ended.set()
    table.clear(timeout_seconds=0.0)
    assert table.slots[0].state is SlotState.EMPTY


def test_clearing_tells_of_a_receive_that_failed() -> None:
    table = make_table()
    arrival = start_receiving(table, 0, expert=1, weight_epoch=0)
    arrival.error = RuntimeError("connection closed by peer")
    arrival.ended.set()
    with pytest.raises(TransferError, match="from rank 1 failed: connection closed by peer"):
        table.clear(timeout_seconds=30)
    assert table.ready_bits(weight_epoch=0) == 0
    assert table.slots[0].state is SlotState.RECEIVING


def test_clearing_ends_the_use_by_micro_batches_that_were_given_up() -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=0)
    table.acquire(0)
    table.clear(timeout_seconds=0.0)
    assert table.begin_receive(0, expert=2, weight_epoch=1).num_users == 0


def test_a_release_too_many_is_noticed() -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=0)
    with pytest.raises(AssertionError, match="not in use"):
        table.release(0)


def test_memory_is_allocated_once() -> None:
    table = make_table(poison=True)
    addresses = [slot.buffer.data_ptr() for slot in table.slots]
    assert len(set(addresses)) == len(addresses)
    for epoch in range(20):
        for index in range(3):
            receive(table, index, expert=epoch + index, weight_epoch=epoch)
            first, _ = table.weights(index, expert=epoch + index, weight_epoch=epoch)
            assert first.data_ptr() == addresses[index], "weights are views of the slot"
        table.acquire(0)
        table.release(0)
        table.clear(timeout_seconds=0.0)
    assert [slot.buffer.data_ptr() for slot in table.slots] == addresses


def test_weights_that_are_still_being_passed_on_are_left_alone() -> None:
    table = make_table(poison=True)
    receive(table, 0, expert=1, weight_epoch=0)
    slot, departure = table.slots[0], Arrival()
    move = Move(stage=1, round=0, home=1, source=0, rank=2, slot=0, expert=1)
    slot.outgoing = [ROUTE.weights(move, slot.buffer, step=0)]
    slot.outgoing[0].completion = departure
    content = slot.buffer.clone()
    assert table.ready_bits(weight_epoch=0) == 1, "this rank may use them meanwhile"
    for wait in (table.clear, lambda timeout_seconds: table.await_quiet(0, timeout_seconds=timeout_seconds)):
        with pytest.raises(TransferError, match=r"weights of expert 1, .* to rank 2 did not end"):
            wait(timeout_seconds=0.0)
    with pytest.raises(AssertionError, match="slot 0 is passed on"):
        table.begin_receive(0, expert=2, weight_epoch=0)
    assert torch.equal(slot.buffer, content)
    departure.ended.set()
    table.clear(timeout_seconds=0.0)
    assert (slot.state, slot.outgoing) == (SlotState.EMPTY, [])
    assert free_of_numbers(table)


def test_a_slot_may_be_filled_again_with_the_same_weights_between_a_forward_and_its_backward() -> None:
    table = make_table()
    receive(table, 0, expert=1, weight_epoch=2)
    x = torch.ones(5, 3, requires_grad=True)
    output = x @ table.weights(0, expert=1, weight_epoch=2)[0]
    receive(table, 0, expert=0, weight_epoch=2)  # in place, as autograd would complain of
    receive(table, 0, expert=1, weight_epoch=2)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad[0], FUSED[0][1].sum(dim=1))


def test_patience_ends_with_the_arrival_or_with_its_time() -> None:
    table = make_table()
    assert table.ready_bits(weight_epoch=0) == 0
    table.be_patient(patience_seconds=60.0)  # nothing is on its way
    slot, arrival = table.begin_receive(0, expert=1, weight_epoch=0), Arrival()
    move = Move(stage=0, round=0, home=1, source=1, rank=ROUTE.rank, slot=0, expert=1)
    slot.shipment = ROUTE.weights(move, slot.buffer, step=0)
    slot.shipment.completion = arrival
    table.be_patient(patience_seconds=0.01)
    assert slot.state is SlotState.RECEIVING
    assert table.is_awaited()
    threading.Timer(0.05, arrival.ended.set).start()
    table.be_patient(patience_seconds=60.0)
    assert slot.state is SlotState.READY
    assert not table.is_awaited()

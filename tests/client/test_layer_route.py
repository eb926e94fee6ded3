from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from taot_client.transfers.expert_layout import ExpertLayout
from taot_client.transfers.layer_route import LayerRoute
from taot_client.transfers.transfer_schedule import Move

FUSED = (torch.arange(24.0).view(2, 3, 4), torch.arange(10, dtype=torch.bfloat16).view(2, 5))
ROUTE = LayerRoute(
    rank=0,
    layer=3,
    name="blocks.3.moe",
    layout=ExpertLayout.of(FUSED),
    device=torch.device("cpu"),
    is_labelled=True,
)
UNLABELLED = replace(ROUTE, is_labelled=False)
EXPERT = tuple(fused[1] for fused in FUSED)


# Packing.


@pytest.mark.parametrize("route", [ROUTE, UNLABELLED], ids=["labelled", "unlabelled"])
@pytest.mark.parametrize("with_checksum", [True, False])
def test_an_expert_is_packed_whole(route: LayerRoute, with_checksum: bool) -> None:
    buffer = route.pack(EXPERT, expert=7, epoch=4, with_checksum=with_checksum)
    assert buffer.numel() == route.layout.buffer_bytes
    for view, tensor in zip(route.layout.views(buffer), EXPERT, strict=True):
        assert torch.equal(view, tensor)


def test_the_label_says_layer_expert_and_weight_epoch() -> None:
    buffer = ROUTE.pack(EXPERT, expert=2**40, epoch=-1, with_checksum=False)
    assert ROUTE.layout.label(buffer).tolist() == [3, 2**40, -1, 0]


def test_the_checksum_travels_in_the_label() -> None:
    buffer = ROUTE.pack(EXPERT, expert=7, epoch=4, with_checksum=True)
    # By hand: the 64-bit words in front of the label, wrapping around.
    words = memoryview(buffer.numpy().tobytes()).cast("q")[:-4]
    total = sum(words) & (2**64 - 1)
    assert ROUTE.layout.label(buffer)[3].item() == (total - 2**64 if total >= 2**63 else total)


def test_packing_leaves_the_weights_and_their_graph_alone() -> None:
    weights = [torch.nn.Parameter(fused.clone()) for fused in FUSED]
    buffer = ROUTE.pack([weight[1] for weight in weights], expert=1, epoch=0, with_checksum=True)
    assert not buffer.requires_grad
    buffer.fill_(0)
    for weight, fused in zip(weights, FUSED, strict=True):
        assert torch.equal(weight.detach(), fused)


def test_every_pack_has_memory_of_its_own() -> None:
    first = ROUTE.pack(EXPERT, expert=1, epoch=0, with_checksum=False)
    second = ROUTE.pack([torch.zeros_like(tensor) for tensor in EXPERT], expert=2, epoch=0, with_checksum=False)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(ROUTE.layout.views(first)[0], EXPERT[0])


# Checking.


@pytest.mark.parametrize("with_checksum", [True, False])
def test_the_right_content_passes(with_checksum: bool) -> None:
    buffer = ROUTE.pack(EXPERT, expert=7, epoch=4, with_checksum=with_checksum)
    # As it arrives at another rank.
    replace(ROUTE, rank=1).check_label(buffer.clone(), expert=7, epoch=4)


@pytest.mark.parametrize(
    ("layer", "expert", "epoch"),
    [(2, 7, 4), (3, 6, 4), (3, 7, 5), (3, 7, -1), (2, 6, 5)],
    ids=["layer", "expert", "epoch", "gradient", "all"],
)
def test_content_that_is_not_what_it_should_be_is_told_apart(layer: int, expert: int, epoch: int) -> None:
    buffer = replace(ROUTE, layer=layer).pack(EXPERT, expert=expert, epoch=epoch, with_checksum=True)
    told = (
        r"a buffer for \(layer, expert, weight epoch\) \[3, 7, 4\] of layer 'blocks.3.moe'"
        rf" holds \[{layer}, {expert}, {epoch}\]"
    )
    with pytest.raises(RuntimeError, match=told):
        ROUTE.check_label(buffer, expert=7, epoch=4)


def test_content_that_changed_on_the_way_is_noticed_where_a_checksum_was_taken() -> None:
    told = "expert 7 of layer 'blocks.3.moe' changed between send and use"
    guarded = ROUTE.pack(EXPERT, expert=7, epoch=4, with_checksum=True)
    for position in (0, ROUTE.layout.offsets_bytes[1], ROUTE.layout.size_bytes - 1):
        guarded[position] ^= 1
        with pytest.raises(RuntimeError, match=told):
            ROUTE.check_label(guarded, expert=7, epoch=4)
        guarded[position] ^= 1
    ROUTE.check_label(guarded, expert=7, epoch=4)
    unguarded = ROUTE.pack(EXPERT, expert=7, epoch=4, with_checksum=False)
    unguarded[0] ^= 1
    ROUTE.check_label(unguarded, expert=7, epoch=4)


def test_zeros_have_a_checksum_too() -> None:
    # Tensors that fill their share exactly: what lies between others is part of the checksum.
    fused = [torch.zeros(1, 4)]
    route = replace(ROUTE, layout=ExpertLayout.of(fused))
    buffer = route.pack([fused[0][0]], expert=0, epoch=0, with_checksum=True)
    route.check_label(buffer, expert=0, epoch=0)
    buffer[5] = 1
    with pytest.raises(RuntimeError, match="changed between send and use"):
        route.check_label(buffer, expert=0, epoch=0)


class Watched(torch.Tensor):
    """Memory that notes what is done with it: on a GPU, reading would stop it."""

    touched: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.touched.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_an_unlabelled_route_writes_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    was = torch.full((ROUTE.layout.buffer_bytes,), 0x5A, dtype=torch.uint8)
    monkeypatch.setattr(LayerRoute, "new_buffer", lambda _: was.clone())
    buffer = UNLABELLED.pack(EXPERT, expert=7, epoch=4, with_checksum=True)
    assert torch.equal(UNLABELLED.layout.label(buffer), UNLABELLED.layout.label(was))
    labelled = ROUTE.pack(EXPERT, expert=7, epoch=4, with_checksum=True)
    assert ROUTE.layout.label(labelled).tolist()[:3] == [3, 7, 4]


def test_an_unlabelled_route_checks_nothing_and_reads_nothing() -> None:
    other = replace(ROUTE, layer=9).pack(EXPERT, expert=1, epoch=1, with_checksum=True)
    other[0] ^= 1
    buffer = other.as_subclass(Watched)
    Watched.touched.clear()
    UNLABELLED.check_label(buffer, expert=7, epoch=4)
    assert Watched.touched == []
    with pytest.raises(RuntimeError, match="holds"):
        ROUTE.check_label(buffer, expert=7, epoch=4)
    assert Watched.touched, "a labelled route reads"


# Addressing.


@pytest.mark.parametrize(("kind", "sender"), [("weights", 2), ("gradient", 5)])
def test_both_ends_of_a_transfer_meet(kind: str, sender: int) -> None:
    move = Move(stage=0, round=0, home=2, source=2, rank=5, slot=1, expert=7)
    receiver = 7 - sender
    buffer = ROUTE.new_buffer()
    sending, receiving = (getattr(replace(ROUTE, rank=rank), kind)(move, buffer, step=6) for rank in (sender, receiver))
    assert (sending.is_receive, sending.peer) == (False, receiver)
    assert (receiving.is_receive, receiving.peer) == (True, sender)
    assert sending.tag == receiving.tag
    assert sending.buffer is buffer
    assert str(sending.cargo) == f"{kind} of expert 7, layer 'blocks.3.moe', step 6"


@pytest.mark.parametrize("kind", ["weights", "gradient"])
def test_transfers_of_every_layer_slot_and_stage_have_tags_of_their_own(kind: str) -> None:
    buffer = ROUTE.new_buffer()
    tags = set()
    for layer in range(10):
        for slot in range(62):
            for stage in range(2):
                move = Move(stage=stage, round=0, home=0, source=2, rank=1, slot=slot, expert=9, is_relay=bool(stage))
                tags.add(getattr(replace(ROUTE, layer=layer), kind)(move, buffer, step=0).tag)
    assert len(tags) == 10 * 62 * 2


def test_a_guest_that_is_passed_on_travels_between_its_source_and_its_rank() -> None:
    move = Move(stage=1, round=0, home=2, source=4, rank=5, slot=1, expert=7)
    for kind, sender in (("weights", 4), ("gradient", 5)):
        for rank in (4, 5):
            end = getattr(replace(ROUTE, rank=rank), kind)(move, ROUTE.new_buffer(), step=6)
            assert (end.is_receive, end.peer) == (rank != sender, 9 - rank)

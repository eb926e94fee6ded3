from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_threads import Rank, run_ranks

from taot_client.counts_gather import (
    CallSite,
    GatheredCounts,
    GatherRoom,
    LocalCounts,
    Measured,
    _count_on_device,
    count_choices,
    gather_counts,
)

E = 6
"""Experts in these tests."""

SITE = CallSite(step=3, micro_batch=1, layer=2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_padding_and_broken_ids_are_counted_apart(dtype: torch.dtype) -> None:
    local = count_choices(torch.tensor([[0, 1], [-1, -1], [2, E]], dtype=dtype), num_experts=E)
    assert local.counts_E.tolist() == [1, 1, 1, 0, 0, 0]
    assert local.counts_E.sum() == 3
    assert local.invalid_ids == 3
    assert local.valid_tokens == 2


@pytest.mark.parametrize("choices", [(0, 2), (4, 0)], ids=["no tokens", "no choices"])
def test_nothing_to_count(choices: tuple[int, int]) -> None:
    local = count_choices(torch.empty(choices, dtype=torch.int64), num_experts=E)
    assert local.counts_E.tolist() == [0] * E
    assert (local.invalid_ids, local.valid_tokens) == (0, 0)


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-(2**40), 2**40) | st.integers(-2, E + 1), min_size=3, max_size=3), max_size=20)
)
def test_counts_agree_with_counting_one_by_one(rows: list[list[int]]) -> None:
    experts_TK = torch.tensor(rows, dtype=torch.int64).view(-1, 3)
    local = count_choices(experts_TK, num_experts=E)
    flat = [choice for row in rows for choice in row]
    assert local.counts_E.tolist() == [flat.count(expert) for expert in range(E)]
    assert local.invalid_ids == sum(not 0 <= choice < E for choice in flat)
    assert local.valid_tokens == sum(any(0 <= choice < E for choice in row) for row in rows)
    on_device = _count_on_device(experts_TK, E)
    assert on_device.tolist() == [*local.counts_E.tolist(), local.invalid_ids, local.valid_tokens]


def said_by(rank: int) -> tuple[LocalCounts, int, Measured]:
    """Numbers that name their rank and place, as large as they may become."""
    counts_E = np.arange(E, dtype=np.int64) * 1000 + rank
    counts_E[rank] = 2**31 - 1
    local = LocalCounts(counts_E=counts_E, valid_tokens=10**9 + rank, invalid_ids=7)
    measured = Measured(
        exposed_us=10**12 + rank,
        flight_us=2 * 10**12 + rank,
        intra_node_sent_bytes=2**60 + rank,
        inter_node_sent_bytes=2**61 + rank,
    )
    return local, 1 << (61 - rank) | 1 << rank, measured


def test_every_rank_hears_what_every_rank_said() -> None:
    def body(rank: Rank) -> GatheredCounts:
        local, ready_bits, measured = said_by(rank.group.rank)
        return gather_counts(rank.group, local, site=SITE, ready_bits=ready_bits, measured=measured)

    for gathered in run_ranks(3, body):
        for rank in range(3):
            local, ready_bits, measured = said_by(rank)
            assert gathered.counts_RE[rank].tolist() == local.counts_E.tolist()
            assert gathered.valid_tokens_R[rank] == local.valid_tokens
            assert gathered.ready_bits_R[rank] == ready_bits
            assert gathered.measured_R[rank] == measured


def test_all_62_slots_can_be_ready() -> None:
    def body(rank: Rank) -> list[int]:
        local, _, _ = said_by(rank.group.rank)
        ready = (1 << 62) - 1 if rank.group.rank else 1 << 61
        ready_bits_R: list[int] = gather_counts(rank.group, local, site=SITE, ready_bits=ready).ready_bits_R.tolist()
        return ready_bits_R

    assert run_ranks(2, body) == [[1 << 61, (1 << 62) - 1]] * 2


@pytest.mark.parametrize(
    ("other", "place"),
    [
        (CallSite(step=4, micro_batch=1, layer=2), "rank 1: step 4, micro-batch 1, layer 2"),
        (CallSite(step=3, micro_batch=0, layer=2), "rank 1: step 3, micro-batch 0, layer 2"),
        (CallSite(step=3, micro_batch=1, layer=5), "rank 1: step 3, micro-batch 1, layer 5"),
    ],
    ids=["step", "micro-batch", "layer"],
)
def test_ranks_at_different_places_all_say_where_everybody_is(other: CallSite, place: str) -> None:
    def body(rank: Rank) -> str:
        local, _, _ = said_by(rank.group.rank)
        with pytest.raises(RuntimeError, match="different places of the program") as refusal:
            gather_counts(rank.group, local, site=other if rank.group.rank == 1 else SITE)
        return str(refusal.value)

    for message in run_ranks(3, body):
        assert "rank 0: step 3, micro-batch 1, layer 2" in message
        assert place in message
        assert "rank 2: step 3, micro-batch 1, layer 2" in message


@pytest.mark.parametrize("count", [-1, 2**31])
def test_counts_that_are_none_are_refused_on_every_rank(count: int) -> None:
    def body(rank: Rank) -> str:
        local, _, _ = said_by(rank.group.rank)
        if rank.group.rank == 1:
            local.counts_E[4] = count
        with pytest.raises(ValueError, match="counts must be between") as refusal:
            gather_counts(rank.group, local, site=SITE)
        return str(refusal.value)

    for message in run_ranks(2, body):
        assert f"rank 1 has sent {count} for expert 4" in message


def test_room_is_on_the_host_also_where_a_model_is_built_under_another_device() -> None:
    with torch.device("meta"):
        room = GatherRoom(num_ranks=2, num_experts=3)
    assert room.rows_RN.shape[0] == 2
    assert room.counts_E.shape == (3,)

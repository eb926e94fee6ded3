from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_up_routing import random_guests, random_problem

from taot_client.transfers.transfer_schedule import (
    Move,
    align_guests,
    gradient_order,
    guests_there,
    part_guests,
    schedule_moves,
    tournament_round,
)
from taot_planning.arrays import IntArray
from taot_planning.guest_moves import list_moves


@pytest.mark.parametrize("num_ranks", range(2, 10))
def test_everybody_meets_everybody_once_and_one_peer_at_a_time(num_ranks: int) -> None:
    pairs = list(combinations(range(num_ranks), 2))
    pairs_in: dict[int, list[tuple[int, int]]] = {}
    for a, b in pairs:
        met = tournament_round(a, b, num_ranks=num_ranks)
        assert met == tournament_round(b, a, num_ranks=num_ranks)
        pairs_in.setdefault(met, []).append((a, b))
    for met, playing in pairs_in.items():
        ranks = [rank for pair in playing for rank in pair]
        assert len(set(ranks)) == len(ranks), f"a rank meets two peers in round {met}: {playing}"
    # No tournament of this many ranks can be shorter.
    assert sorted(pairs_in) == list(range(num_ranks - 1 + num_ranks % 2))


def placement_of(num_moves: int, seed: int) -> tuple[IntArray, IntArray]:
    """Exactly `num_moves` guests in random slots, none at home and none twice on a rank, with uneven homes."""
    rng = np.random.default_rng(seed)
    num_ranks, num_experts = int(rng.integers(2, 10)), int(rng.integers(130, 200))
    home_E = rng.integers(0, num_ranks, num_experts)
    home_E[:2] = [0, 1]  # nobody is at home everywhere
    per_rank = np.bincount(rng.integers(0, num_ranks, num_moves), minlength=num_ranks)
    num_slots = int(per_rank.max()) + 2
    guests_RK = np.full((num_ranks, num_slots), -1, dtype=np.int64)
    for rank, wanted in enumerate(per_rank.tolist()):
        away = np.flatnonzero(home_E != rank)
        # More guests than experts only to make a long schedule: the schedule does not care.
        guests = rng.choice(away, wanted, replace=bool(wanted > away.size))
        guests_RK[rank, rng.permutation(num_slots)[:wanted]] = guests
    return guests_RK, home_E


@settings(max_examples=40, deadline=None)
@given(num_moves=st.integers(1, 1000), seed=st.integers(0, 2**32 - 1))
@example(num_moves=1, seed=0)
@example(num_moves=1000, seed=1)
def test_every_guest_travels_once_from_its_home(num_moves: int, seed: int) -> None:
    guests_RK, home_E = placement_of(num_moves, seed)
    moves = schedule_moves(guests_RK, home_E)
    assert len(moves) == num_moves
    filled_RK = np.full_like(guests_RK, -1)
    for move in moves:
        assert filled_RK[move.rank, move.slot] == -1, f"a slot is filled twice: {move}"
        filled_RK[move.rank, move.slot] = move.expert
        assert move.home == home_E[move.expert]
    np.testing.assert_array_equal(filled_RK, guests_RK)


def operations_of(rank: int, moves: list[Move]) -> dict[int, list[tuple[str, Move]]]:
    """What one rank posts, by peer, as it walks through the schedule."""
    by_peer: dict[int, list[tuple[str, Move]]] = {}
    for move in moves:
        if move.home == rank:
            by_peer.setdefault(move.rank, []).append(("send", move))
        elif move.rank == rank:
            by_peer.setdefault(move.home, []).append(("receive", move))
    return by_peer


@settings(max_examples=40, deadline=None)
@given(num_moves=st.integers(1, 1000), seed=st.integers(0, 2**32 - 1))
def test_every_send_has_its_receive_in_the_same_place(num_moves: int, seed: int) -> None:
    guests_RK, home_E = placement_of(num_moves, seed)
    num_ranks = guests_RK.shape[0]
    # Every rank makes the schedule by itself, from copies of its own.
    posted = [operations_of(rank, schedule_moves(guests_RK.copy(), home_E.copy())) for rank in range(num_ranks)]
    mirror = {"send": "receive", "receive": "send"}
    num_operations = 0
    for rank in range(num_ranks):
        for peer, operations in posted[rank].items():
            assert posted[peer][rank] == [(mirror[kind], move) for kind, move in operations]
            num_operations += len(operations)
    assert num_operations == 2 * num_moves


@settings(max_examples=40, deadline=None)
@given(num_moves=st.integers(1, 1000), seed=st.integers(0, 2**32 - 1))
def test_a_rank_finishes_one_peer_before_the_next(num_moves: int, seed: int) -> None:
    guests_RK, home_E = placement_of(num_moves, seed)
    moves = schedule_moves(guests_RK, home_E)
    for rank in range(guests_RK.shape[0]):
        peers = [move.rank if move.home == rank else move.home for move in moves if rank in (move.home, move.rank)]
        changes = [peer for index, peer in enumerate(peers) if index == 0 or peers[index - 1] != peer]
        assert len(changes) == len(set(changes)), f"rank {rank} comes back to a peer: {changes}"


RELAYED_GROUPS = st.tuples(st.integers(2, 9), st.integers(1, 1000), st.integers(0, 2**32 - 1))
"""Ranks, moves and a seed."""


def relayed_placement(group: tuple[int, int, int]) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Guests, homes, any nodes, and experts that some ranks have already; no expert twice on a rank."""
    num_ranks, num_moves, seed = group
    rng = np.random.default_rng(seed)
    # Few experts have many guests each, many experts fill the longest schedules.
    num_experts = int(rng.choice([num_ranks, 40, 2200]))
    home_E = rng.integers(0, num_ranks, num_experts)
    nodes_R = rng.integers(0, int(rng.integers(1, num_ranks + 1)), num_ranks)
    per_rank = np.bincount(rng.integers(0, num_ranks, num_moves), minlength=num_ranks)
    guests_RK = np.full((num_ranks, int(per_rank.max()) + 1), -1, dtype=np.int64)
    resident_RK = np.full((num_ranks, 3), -1, dtype=np.int64)
    for rank, wanted in enumerate(per_rank.tolist()):
        away = rng.permutation(np.flatnonzero(home_E != rank))
        resident = away[: int(rng.integers(0, 4))]
        resident_RK[rank, : resident.size] = resident
        guests = away[resident.size :][:wanted]
        guests_RK[rank, rng.permutation(guests_RK.shape[1])[: guests.size]] = guests
    return guests_RK, home_E, nodes_R, resident_RK


@settings(max_examples=60, deadline=None)
@given(group=RELAYED_GROUPS, has_residents=st.booleans())
@example(group=(9, 1000, 3), has_residents=False)
def test_with_relays_every_guest_is_reached_once_and_every_remote_node_crossed_to_once(
    group: tuple[int, int, int], has_residents: bool
) -> None:
    guests_RK, home_E, nodes_R, resident_RK = relayed_placement(group)
    residents = resident_RK if has_residents else None
    moves = schedule_moves(guests_RK, home_E, relay_nodes_R=nodes_R, resident_RK=residents)
    has = {(int(home), expert) for expert, home in enumerate(home_E)}
    if has_residents:
        has |= {(rank, int(resident_RK[rank, slot])) for rank, slot in np.argwhere(resident_RK >= 0)}
    node_had_it = {(int(nodes_R[rank]), expert) for rank, expert in has}
    filled_RK, crossed = np.full_like(guests_RK, -1), []
    sources = {(move.source, move.expert) for move in moves}
    for move in moves:
        assert (move.source, move.expert) in has, f"the source has nothing to send: {move}"
        assert (move.rank, move.expert) not in has, f"reached twice: {move}"
        has.add((move.rank, move.expert))
        filled_RK[move.rank, move.slot] = move.expert
        assert (move.stage, move.home) == (int(move.source != move.home), home_E[move.expert])
        if nodes_R[move.source] != nodes_R[move.rank]:
            crossed.append((int(nodes_R[move.rank]), move.expert))
        assert move.is_relay == ((move.rank, move.expert) in sources)
        assert not (move.is_relay and move.stage), "at most two moves lead from home to a guest"
    np.testing.assert_array_equal(filled_RK, guests_RK)
    assert sorted(crossed) == sorted({(int(nodes_R[m.rank]), m.expert) for m in moves} - node_had_it)


def ends_of(rank: int, moves: list[Move], *, backward: bool) -> dict[tuple[int, int], list[tuple[str, Move]]]:
    """What one rank posts, by peer and stage, as it walks through the schedule out or back."""
    posted: dict[tuple[int, int], list[tuple[str, Move]]] = {}
    for move in gradient_order(moves) if backward else moves:
        stage = int(move.is_relay) if backward else move.stage
        if rank in (move.source, move.rank):
            peer = move.rank if move.source == rank else move.source
            kind = "send" if (move.source == rank) != backward else "receive"
            posted.setdefault((peer, stage), []).append((kind, move))
    return posted


@pytest.mark.parametrize("backward", [False, True], ids=["weights", "gradients"])
@settings(max_examples=30, deadline=None)
@given(group=RELAYED_GROUPS)
def test_with_relays_every_send_has_its_receive_in_the_same_place_of_its_stage(
    group: tuple[int, int, int], backward: bool
) -> None:
    guests_RK, home_E, nodes_R, _ = relayed_placement(group)
    made = [schedule_moves(guests_RK.copy(), home_E.copy(), relay_nodes_R=nodes_R) for _ in nodes_R]
    posted = [ends_of(rank, moves, backward=backward) for rank, moves in enumerate(made)]
    mirror = {"send": "receive", "receive": "send"}
    for rank, by_peer in enumerate(posted):
        for (peer, stage), ends in by_peer.items():
            assert posted[peer][rank, stage] == [(mirror[kind], move) for kind, move in ends]
        # One peer after the other within a stage, as in a tournament.
        order = [(stage, peer) for peer, stage in by_peer]
        assert [stage for stage, _ in order] == sorted(stage for stage, _ in order)


@settings(max_examples=40, deadline=None)
@given(group=RELAYED_GROUPS)
def test_a_relay_gets_all_gradients_of_its_node_before_it_sends_their_sum(group: tuple[int, int, int]) -> None:
    guests_RK, home_E, nodes_R, _ = relayed_placement(group)
    moves = schedule_moves(guests_RK, home_E, relay_nodes_R=nodes_R)
    copies: dict[tuple[int, int], int] = {}
    for move in gradient_order(moves):
        carried = copies.pop((move.rank, move.expert), 0) + 1
        copies[move.source, move.expert] = copies.get((move.source, move.expert), 0) + carried
    # Every copy's gradient is home, none on its way and none twice.
    assert copies == {
        (int(home_E[expert]), int(expert)): int((guests_RK == expert).sum())
        for expert in np.unique(guests_RK[guests_RK >= 0])
    }


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_relays_cost_what_the_planner_charges_for_them(seed: int) -> None:
    problem = random_problem(seed)
    relayed = replace(problem, topology=replace(problem.topology, has_relay=True), resident_RK=None)
    guests_RK, nodes_R = random_guests(seed, relayed), relayed.topology.nodes_R
    moves = schedule_moves(guests_RK, relayed.home_E, relay_nodes_R=nodes_R)
    cost_milli = sum(int(relayed.topology.cost_milli_RR[move.source, move.rank]) for move in moves)
    assert cost_milli == list_moves(relayed, guests_RK).cost_milli


def test_crossings_are_spread_over_the_ranks_of_a_node() -> None:
    # Two nodes of three; experts 0 to 2 are at home on rank 0. Rank 3 must take expert 2, so 0 and 1 avoid it.
    guests_RK = np.array([[-1] * 3, [-1] * 3, [-1] * 3, [0, 1, 2], [0, 1, -1], [0, 1, -1]])
    moves = schedule_moves(guests_RK, np.array([0, 0, 0]), relay_nodes_R=np.array([0, 0, 0, 1, 1, 1]))
    assert {move.expert: move.rank for move in moves if move.stage == 0} == {2: 3, 0: 4, 1: 5}


def test_a_guest_that_the_node_has_already_is_passed_on_without_a_crossing() -> None:
    guests_RK, resident_RK = np.array([[-1], [-1], [-1], [0]]), np.array([[-1], [-1], [0], [-1]])
    (move,) = schedule_moves(guests_RK, np.array([0]), relay_nodes_R=np.array([0, 0, 1, 1]), resident_RK=resident_RK)
    assert (move.source, move.rank, move.stage) == (2, 3, 1)


def test_an_empty_placement_moves_nothing() -> None:
    assert schedule_moves(np.full((3, 2), -1), np.array([0, 1, 2])) == []
    assert schedule_moves(np.empty((3, 0), dtype=np.int64), np.array([0, 1, 2])) == []


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), drift=st.sampled_from([0.0, 0.3, 0.8]))
def test_alignment_keeps_residents_in_place_and_loses_nobody(seed: int, drift: float) -> None:
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    resident_RK = random_guests(seed, problem)
    wanted_RK = random_guests(seed + 1, problem)
    # Some ranks want what they have, in another order.
    for rank in np.flatnonzero(rng.random(problem.num_ranks) >= drift):
        limit = problem.topology.slots_R[rank]
        wanted_RK[rank, :limit] = rng.permutation(resident_RK[rank, :limit])
    before = wanted_RK.copy(), resident_RK.copy()
    aligned_RK = align_guests(wanted_RK, resident_RK)
    np.testing.assert_array_equal(wanted_RK, before[0])
    np.testing.assert_array_equal(resident_RK, before[1])
    assert aligned_RK.shape == wanted_RK.shape
    for rank, slots in enumerate(problem.topology.slots_R.tolist()):
        wanted = sorted(wanted_RK[rank][wanted_RK[rank] >= 0].tolist())
        assert sorted(aligned_RK[rank][aligned_RK[rank] >= 0].tolist()) == wanted
        assert (aligned_RK[rank, slots:] == -1).all(), "a guest sits beyond the rank's slots"
        for slot, resident in enumerate(resident_RK[rank].tolist()):
            if resident in wanted:
                assert aligned_RK[rank, slot] == resident, "a resident guest has moved"


def test_alignment_by_hand() -> None:
    wanted_RK = np.array([[5, 7, 9], [4, -1, -1], [1, 2, 3]])
    resident_RK = np.array([[7, -1, 5], [-1, -1, 4], [-1, -1, -1]])
    expected_RK = np.array([[7, 9, 5], [-1, -1, 4], [1, 2, 3]])
    np.testing.assert_array_equal(align_guests(wanted_RK, resident_RK), expected_RK)


def test_guests_are_there_whose_own_bit_says_so() -> None:
    guests_RK = np.array([[5, 7, 9], [4, -1, 8], [1, 2, 3]])
    ready_bits_R = np.array([[0b101], [0b111], [0b010]])[:, 0]
    assert guests_there(guests_RK, ready_bits_R).tolist() == [[5, -1, 9], [4, -1, 8], [-1, 2, -1]]
    all_ready_R = np.array([[0b111], [0b101], [2**62 - 1]])[:, 0]
    assert guests_there(guests_RK, all_ready_R) is guests_RK


def test_the_last_of_62_slots_has_a_bit_too() -> None:
    guests_RK = np.arange(124).reshape(2, 62)
    there_RK = guests_there(guests_RK, np.array([[2**62 - 1], [2**61 - 1]])[:, 0])
    assert there_RK[0].tolist() == guests_RK[0].tolist()
    assert there_RK[1].tolist() == [*guests_RK[1, :-1].tolist(), -1]


def test_missing_guests_and_those_that_stay_make_up_the_placement() -> None:
    missing_RK, kept_RK = part_guests(np.array([[5, 7, -1], [4, -1, 8]]), np.array([[5, 8, 3], [-1, -1, 8]]))
    assert missing_RK.tolist() == [[-1, 7, -1], [4, -1, -1]]
    assert kept_RK.tolist() == [[5, -1, -1], [-1, -1, 8]]


def test_slots_that_hold_one_expert_twice_leave_a_newcomer_out():
    # No placement does so; a kernel that looked for a free slot beyond the last would write into other memory.
    assert align_guests(np.array([[5, 7]]), np.array([[5, 5]])).tolist() == [[5, 5]]

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taot_api import LayerSpec
from taot_api.trace import TraceHeader, TraceRecord
from taot_planning import LayerProblem, PlanningOptions, plan_layer, two_level_topology
from taot_replay import ReplayCase, make_cases, read_array_file, replay, with_nodes

HOMES = (np.array([0, 0, 1, 2, 3, 3]), np.array([3, 2, 1, 0]))
NODES = [0, 0, 1, 1]
OPTIONS = PlanningOptions(tolerance_ppm=20_000)


class Samples:
    """Four ranks on two nodes, two layers of different size, steps with two micro-batches."""

    def __init__(self, *, num_steps: int) -> None:
        self.header = TraceHeader(
            training_job="samples",
            topology=two_level_topology(num_ranks=4, ranks_per_node=2, slots=0, inter_cost=3),
            layers=tuple(
                LayerSpec(name=f"{index}", top_k=1, expert_size_bytes=0, home_E=home_E)
                for index, home_E in enumerate(HOMES)
            ),
        )
        rng = np.random.default_rng(3)
        self.records = [
            TraceRecord(
                step=2 * step,
                micro_batch=micro_batch,
                counts_L=tuple((rng.random((4, h.size)) ** 4 * 100).astype(np.int32) for h in HOMES),
            )
            for step in range(num_steps)
            for micro_batch in range(2)
        ]
        self.num_records = len(self.records)

    def __iter__(self):
        return iter(self.records)


Guests = list[tuple[int, int]]
"""(expert, rank) pairs."""


def planned_guests(record: TraceRecord, layer: int, case: ReplayCase, resident: Guests | None = None) -> Guests:
    topology = two_level_topology(num_ranks=4, ranks_per_node=2, slots=case.num_slots, inter_cost=3)
    resident_RK = None
    if resident:
        resident_RK = np.full((4, case.num_slots), -1)
        for rank in range(4):
            there = [expert for expert, other in resident if other == rank]
            resident_RK[rank, : len(there)] = there
    problem = LayerProblem(
        counts_RE=record.counts_L[layer].astype(int),
        home_E=HOMES[layer],
        topology=topology,
        resident_RK=resident_RK,
    )
    guests_RK = plan_layer(problem, algorithm=case.algorithm, options=OPTIONS).guests_RK
    return [(int(expert), rank) for (rank, _), expert in np.ndenumerate(guests_RK) if expert >= 0]


def least_maximum(counts_RE: np.ndarray, home_E: np.ndarray, guests: Guests) -> int:
    """The smallest maximum load by whole tokens, from HiGHS."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    copies = [(expert, int(home_E[expert])) for expert in range(home_E.size)] + guests
    of_expert = np.array([[copy[0] == e for copy in copies] + [False] for e in range(home_E.size)], dtype=float)
    on_rank = np.array([[copy[1] == r for copy in copies] + [False] for r in range(4)], dtype=float)
    on_rank[:, -1] = -1
    total_E = counts_RE.sum(axis=0)
    solved = milp(
        np.array([0.0] * len(copies) + [1.0]),
        integrality=np.ones(len(copies) + 1),
        bounds=Bounds(0, np.inf),
        constraints=[LinearConstraint(of_expert, total_E, total_E), LinearConstraint(on_rank, -np.inf, 0)],
    )
    return round(solved.fun)


class SlowStep:
    """One layer in one step, by the rules of the sources as they are told in the documentation."""

    def __init__(self, layer: int, case: ReplayCase, last: TraceRecord) -> None:
        self.layer, self.case = layer, case
        self.held = planned_guests(last, layer, case)
        self.promise = self.imbalance(last, self.held)
        self.slots: Guests = []
        self.moved: Guests = []

    def imbalance(self, record: TraceRecord, guests: Guests) -> float:
        counts_RE = record.counts_L[self.layer]
        return least_maximum(counts_RE, HOMES[self.layer], guests) / (counts_RE.sum() / 4) - 1

    def bring(self, guests: Guests) -> None:
        self.moved += [guest for guest in guests if guest not in self.slots]
        self.slots = guests

    def add(self, record: TraceRecord) -> float:
        if self.case.source == "inline":
            self.bring(planned_guests(record, self.layer, self.case, self.slots))
            return self.imbalance(record, self.slots)
        self.bring(self.held)
        if self.case.source == "ahead+inline" and self.imbalance(record, self.held) > self.promise + 0.05:
            self.held = planned_guests(record, self.layer, self.case, self.slots)
            self.promise = self.imbalance(record, self.held)
            self.bring(self.held)
        return self.imbalance(record, self.held)


@pytest.mark.parametrize("source", ["ahead", "ahead+inline", "inline"])
@pytest.mark.parametrize("num_slots", [1, 2])
def test_figures_agree_with_a_slow_computation(source: str, num_slots: int) -> None:
    samples = Samples(num_steps=4)
    case = ReplayCase(algorithm="taot", source=source, num_slots=num_slots)
    (got,) = replay(samples, [case], options=OPTIONS)
    imbalances, intra, inter = [], 0, 0
    for first in range(2, len(samples.records), 2):
        for layer, home_E in enumerate(HOMES):
            step = SlowStep(layer, case, samples.records[first - 1])
            imbalances += [step.add(record) for record in samples.records[first : first + 2]]
            for expert, rank in step.moved:
                same = NODES[home_E[expert]] == NODES[rank]
                intra, inter = intra + same, inter + (not same)
    layer_steps = 3 * len(HOMES)
    assert inter > 0
    assert (got.intra_guests, got.inter_guests) == (intra / layer_steps, inter / layer_steps)
    assert got.weighted_cost == pytest.approx((intra + 3 * inter) / layer_steps)
    assert np.mean(got.weighted_cost_by_step) == pytest.approx(got.weighted_cost)
    assert np.mean(got.imbalance_by_step) == pytest.approx(got.imbalance)
    assert np.mean(got.node_crossings_by_step) == pytest.approx(got.node_crossings)
    assert got.imbalance == pytest.approx(np.mean(imbalances))


def test_static_moves_nothing_and_crosses_as_homes_lie() -> None:
    samples = Samples(num_steps=3)
    (got,) = replay(samples, make_cases(algorithms=["static"], sources=["ahead"], slots=[1, 2]))
    crossings, imbalances = 0, []
    for record in samples.records[2:]:
        for counts_RE, home_E in zip(record.counts_L, HOMES, strict=True):
            loads = [0] * 4
            for (source, expert), tokens in np.ndenumerate(counts_RE):
                crossings += int(tokens) * (NODES[source] != NODES[home_E[expert]])
                loads[home_E[expert]] += int(tokens)
            imbalances.append(max(loads) / (sum(loads) / 4) - 1)
    assert (got.intra_guests, got.inter_guests, got.weighted_cost) == (0, 0, 0)
    assert got.node_crossings == crossings / 2
    assert got.imbalance == pytest.approx(np.mean(imbalances))


def test_inline_keeps_the_split_of_its_plan() -> None:
    samples = Samples(num_steps=2)
    (got,) = replay(samples, [ReplayCase(algorithm="taot", source="inline", num_slots=2)], options=OPTIONS)
    topology = two_level_topology(num_ranks=4, ranks_per_node=2, slots=2, inter_cost=3)
    crossings, imbalances = 0, []
    for record in samples.records[2:]:
        for counts_RE, home_E in zip(record.counts_L, HOMES, strict=True):
            problem = LayerProblem(counts_RE=counts_RE.astype(int), home_E=home_E, topology=topology)
            plan = plan_layer(problem, options=OPTIONS)
            at_home, loads = counts_RE.astype(int), [0] * 4
            for (source, rank, slot), tokens in np.ndenumerate(plan.quota_SRK):
                if tokens:
                    at_home[source, plan.guests_RK[rank, slot]] -= tokens
                    loads[rank] += int(tokens)
                    crossings += int(tokens) * (NODES[source] != NODES[rank])
            for (source, expert), tokens in np.ndenumerate(at_home):
                loads[home_E[expert]] += int(tokens)
                crossings += int(tokens) * (NODES[source] != NODES[home_E[expert]])
            imbalances.append(max(loads) / (sum(loads) / 4) - 1)
    assert got.node_crossings == crossings
    assert got.imbalance == pytest.approx(np.mean(imbalances))


def test_steady_routing_makes_ahead_as_good_as_inline(tmp_path: Path) -> None:
    one_LRE = np.random.default_rng(0).integers(0, 50, (2, 4, 8)) ** 2
    np.savez(tmp_path / "a.npz", x=np.stack([one_LRE] * 3), other=np.zeros(3), text=np.array(["a"]))
    recording = read_array_file(tmp_path / "a.npz", ranks_per_node=2)
    cases = [ReplayCase(algorithm="taot", source=source, num_slots=2) for source in ("ahead", "inline")]
    ahead, inline = replay(recording, cases)
    assert ahead.weighted_cost == inline.weighted_cost > 0
    assert ahead.imbalance <= inline.imbalance


def test_nodes_and_costs_can_be_replaced() -> None:
    header = Samples(num_steps=1).header
    assert with_nodes(header, ranks_per_node=None, inter_cost=None) is header
    dearer = with_nodes(header, ranks_per_node=None, inter_cost=7).topology
    assert dearer.nodes_R.tolist() == NODES
    assert dearer.cost_milli_RR.max() == 7000
    single = with_nodes(header, ranks_per_node=4, inter_cost=None).topology
    assert single.nodes_R.tolist() == [0] * 4


def test_cases_that_make_no_sense_are_refused() -> None:
    for arguments, message in (
        ({"algorithms": ["magic"]}, "unknown algorithm 'magic'"),
        ({"algorithms": []}, "algorithm: give one or more different entries, got none"),
        ({"sources": ["blocking"]}, "unknown source 'blocking': choose from ahead, ahead.inline, inline"),
        ({"slots": [1, 1]}, "slots: give one or more different entries, got 1, 1"),
        ({"slots": [-1]}, "slots must be >= 0"),
    ):
        with pytest.raises(ValueError, match=message):
            make_cases(**({"algorithms": ["taot"], "sources": ["ahead"], "slots": [1]} | arguments))
    with pytest.raises(ValueError, match="recent must be between 0 and 64, got -1"):
        replay(Samples(num_steps=2), [], num_recent=-1)
    with pytest.raises(ValueError, match="5 slots per rank are more than the 4 experts"):
        replay(Samples(num_steps=2), [ReplayCase(algorithm="taot", source="ahead", num_slots=5)])
    with pytest.raises(ValueError, match="at least two steps"):
        replay(Samples(num_steps=1), make_cases(algorithms=["static"], sources=["ahead"], slots=[1]))

"""Every way in which a request to open a session can be wrong."""

from __future__ import annotations

import numpy as np
import pytest
from routing_samples import make_spec

from taot_api import ContractError, Reason
from taot_api.codec import decode_session_spec, encode_session_spec, encode_tensor
from taot_api.v1 import planner_pb2 as pb
from taot_planning import PlanningOptions


def _request() -> pb.OpenSessionRequest:
    return encode_session_spec(make_spec(training_job="job"))


def _set_matrix(request, matrix):
    request.topology.cost_matrix_milli.CopyFrom(encode_tensor(np.array(matrix)))


def _ask_for_step_time(request):
    """With every bandwidth, and the rates of the first layer only."""
    request.options.objective = "step_time"
    request.layers[0].token_picoseconds = 1
    for level in request.topology.levels:
        level.bandwidth_bytes_per_second = 1


CASES = {
    "a job without a name": (
        lambda request: request.ClearField("training_job"),
        Reason.INVALID_NAME,
        "training_job",
        "1 to 128 characters",
    ),
    "a job name with a slash": (
        lambda request: setattr(request, "training_job", "a/b"),
        Reason.INVALID_NAME,
        "training_job",
        "got 'a/b'",
    ),
    "a group name with a newline": (
        lambda request: setattr(request, "group", "ep\n"),
        Reason.INVALID_NAME,
        "group",
        "1 to 128 characters",
    ),
    "an incarnation of zero": (
        lambda request: setattr(request, "incarnation", 0),
        Reason.INVALID_INCARNATION,
        "incarnation",
        "must be >= 1, got 0",
    ),
    "an expert without a home": (
        lambda request: request.layers[1].home_ranks.pop(),
        Reason.INVALID_LAYER,
        "layers[1].home_ranks",
        "one entry per expert (8), got 7",
    ),
    "a home outside the group": (
        lambda request: request.layers[1].home_ranks.__setitem__(3, 4),
        Reason.INVALID_LAYER,
        "layers[1].home_ranks",
        "expert 3 has no home: its home rank is 4, the ranks are 0 to 3",
    ),
    "a home of -1": (
        lambda request: request.layers[0].home_ranks.__setitem__(7, -1),
        Reason.INVALID_LAYER,
        "layers[0].home_ranks",
        "expert 7 has no home",
    ),
    "a layer without experts": (
        lambda request: request.layers[0].CopyFrom(pb.MoeLayer(name="empty", top_k=1)),
        Reason.INVALID_LAYER,
        "layers[0].home_ranks",
        "at least one expert",
    ),
    "a top_k above the experts": (
        lambda request: setattr(request.layers[0], "top_k", 9),
        Reason.INVALID_LAYER,
        "layers[0].top_k",
        "between 1 and the 8 experts, got 9",
    ),
    "a top_k of zero": (
        lambda request: setattr(request.layers[0], "top_k", 0),
        Reason.INVALID_LAYER,
        "layers[0].top_k",
        "got 0",
    ),
    "a negative expert size": (
        lambda request: setattr(request.layers[0], "expert_size_bytes", -1),
        Reason.INVALID_LAYER,
        "layers[0].expert_size_bytes",
        "got -1",
    ),
    "an expert size beyond all memory": (
        lambda request: setattr(request.layers[0], "expert_size_bytes", 2**63 - 1),
        Reason.INVALID_LAYER,
        "layers[0].expert_size_bytes",
        "2^40 bytes",
    ),
    "two layers of one name": (
        lambda request: setattr(request.layers[1], "name", "layers.0"),
        Reason.INVALID_LAYER,
        "layers[1].name",
        "'layers.0' is taken",
    ),
    "no ranks": (
        lambda request: request.topology.ClearField("ranks"),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "at least one rank",
    ),
    "no levels": (
        lambda request: request.topology.ClearField("levels"),
        Reason.INVALID_TOPOLOGY,
        "topology.ranks[0].domains",
        "one domain per level (0), got 2",
    ),
    "a rank without a place": (
        lambda request: request.topology.ranks[3].domains.pop(),
        Reason.INVALID_TOPOLOGY,
        "topology.ranks[3].domains",
        "one domain per level (2), got 1",
    ),
    "an outermost level that leaves ranks out": (
        lambda request: request.topology.ranks[3].domains.__setitem__(1, 1),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "domain 1 of level 'node' lies in two domains of level 'cluster'",
    ),
    "an outermost level in two parts": (
        lambda request: [rank.domains.__setitem__(1, rank.domains[0]) for rank in request.topology.ranks],
        Reason.INVALID_TOPOLOGY,
        "topology",
        "must hold every rank in one domain",
    ),
    "negative slots": (
        lambda request: setattr(request.topology.ranks[2], "slot_count", -1),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "slots must be >= 0, got -1 on rank 2",
    ),
    "an innermost cost that is not the unit": (
        lambda request: setattr(request.topology.levels[0], "transfer_cost_milli", 999),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "must cost 1000 thousandths, got 999",
    ),
    "a cost that falls outwards": (
        lambda request: setattr(request.topology.levels[1], "transfer_cost_milli", 999),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "must not fall",
    ),
    "a cost matrix of another size": (
        lambda request: _set_matrix(request, np.zeros((3, 3))),
        Reason.INVALID_TENSOR,
        "topology.cost_matrix_milli",
        "must be [4, 4], got [3, 3]",
    ),
    "a cost matrix with a free move": (
        lambda request: _set_matrix(request, np.zeros((4, 4))),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "between 1 and 2^31-1 thousandths, got 0",
    ),
    "an unknown algorithm": (
        lambda request: setattr(request.options, "algorithm", "magic"),
        Reason.UNKNOWN_ALGORITHM,
        "options.algorithm",
        "unknown algorithm 'magic': choose one of echo, eplb, eplb-global, llep",
    ),
    "a negative tolerance": (
        lambda request: setattr(request.options, "tolerance_ppm", -1),
        Reason.INVALID_OPTION,
        "options.tolerance_ppm",
        "got -1",
    ),
    "a threshold beyond its range": (
        lambda request: setattr(request.options, "min_imbalance_ppm", 100_000_001),
        Reason.INVALID_OPTION,
        "options.min_imbalance_ppm",
        "got 100000001",
    ),
    "a plan interval of zero": (
        lambda request: setattr(request.options, "plan_interval", 0),
        Reason.INVALID_OPTION,
        "options.plan_interval",
        "must be >= 1, got 0",
    ),
    "a token that takes longer than a second": (
        lambda request: setattr(request.layers[1], "token_picoseconds", 10**12 + 1),
        Reason.INVALID_LAYER,
        "layers[1].token_picoseconds",
        "or 0 when unknown, got 1000000000001",
    ),
    "a negative token time": (
        lambda request: setattr(request.layers[0], "token_picoseconds", -1),
        Reason.INVALID_LAYER,
        "layers[0].token_picoseconds",
        "got -1",
    ),
    "a rank that stands still": (
        lambda request: setattr(request.topology.ranks[2], "speed_milli", 0),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "speeds must be between 10 and 10000, got 0 on rank 2",
    ),
    "a negative token cap": (
        lambda request: setattr(request.topology.ranks[3], "token_cap", -1),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "got -1 on rank 3",
    ),
    "a token cap that could overflow": (
        lambda request: setattr(request.topology.ranks[3], "token_cap", 2**63 - 1),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "token caps must be between 0 and 4611686018427387904",
    ),
    "a link without bandwidth": (
        lambda request: setattr(request.topology.levels[1], "bandwidth_bytes_per_second", 0),
        Reason.INVALID_TOPOLOGY,
        "topology",
        "bandwidth of level 'cluster' must be 1 to 2^50 bytes per second, got 0",
    ),
    "an unknown objective": (
        lambda request: setattr(request.options, "objective", "speed"),
        Reason.INVALID_OPTION,
        "options.objective",
        "unknown objective 'speed': choose one of tolerance, mu, step_time",
    ),
    "a step time without bandwidths": (
        lambda request: setattr(request.options, "objective", "step_time"),
        Reason.INVALID_OPTION,
        "options.objective",
        "set topology.levels[0].bandwidth_bytes_per_second",
    ),
    "a step time without the rates of a layer": (
        _ask_for_step_time,
        Reason.INVALID_OPTION,
        "options.objective",
        "set layers[1].token_picoseconds",
    ),
    "a mu beyond its range": (
        lambda request: setattr(request.options, "mu_ppm", 100_000_001),
        Reason.INVALID_OPTION,
        "options.mu_ppm",
        "got 100000001",
    ),
    "guests of fewer than no tokens": (
        lambda request: setattr(request.options, "min_tokens_per_guest", -1),
        Reason.INVALID_OPTION,
        "options.min_tokens_per_guest",
        "got -1",
    ),
    "an unknown effort": (
        lambda request: setattr(request.options, "effort", 3),
        Reason.INVALID_OPTION,
        "options.effort",
        "offers the efforts 1 (fast), 2 (balanced), got 3",
    ),
    "too many recent reports": (
        lambda request: setattr(request.options, "recent_report_count", 65),
        Reason.INVALID_OPTION,
        "options.recent_report_count",
        "between 0 and 64, got 65",
    ),
    "fewer than no recent reports": (
        lambda request: setattr(request.options, "recent_report_count", -1),
        Reason.INVALID_OPTION,
        "options.recent_report_count",
        "got -1",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_session_is_refused_with_the_field_and_what_was_got(name):
    change, reason, field, complaint = CASES[name]
    request = _request()
    decode_session_spec(request)
    change(request)
    with pytest.raises(ContractError) as caught:
        decode_session_spec(request)
    assert caught.value.reason is reason
    assert caught.value.field == field
    assert complaint in str(caught.value)


def test_an_effort_that_takes_minutes_is_not_planned_with_by_the_service():
    options = PlanningOptions()
    object.__setattr__(options, "effort", "exact")
    with pytest.raises(ContractError, match="does not plan with 'exact': choose one of fast, balanced") as caught:
        make_spec(options=options)
    assert (caught.value.reason, caught.value.field) == (Reason.INVALID_OPTION, "options.effort")

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
from routing_samples import make_spec

from taot_api import ContractError, Reason
from taot_api.codec import encode_session_spec
from taot_api.v1 import planner_pb2 as pb
from taot_service.config import ServiceConfig
from taot_service.limits import check_limits
from taot_service.settings import Bounds, settings_of


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host", ""),
        ("grpc_port", -1),
        ("http_port", 65536),
        ("lease_seconds", 0.0),
        ("lease_seconds", float("nan")),
        ("drain_seconds", float("inf")),
        ("exit_when_idle", -1.0),
        ("exit_when_idle", float("nan")),
        ("exit_when_unused", -1.0),
        ("solver_threads", 0),
        ("max_message_bytes", 0),
        ("max_sessions", 0),
        ("max_ranks", 0),
        ("max_layers", 0),
        ("max_experts", 0),
        ("max_slots", 0),
        ("max_layer_counts", 0),
        ("max_plan_entries", 0),
        ("max_labelled_groups", -1),
        ("max_layer_series", -1),
    ],
)
def test_a_wrong_setting_is_refused_with_its_flag(field, value):
    with pytest.raises(ValueError, match=f"^--{field.replace('_', '-')} must"):
        ServiceConfig(**{field: value})


def test_two_servers_cannot_have_one_port():
    with pytest.raises(ValueError, match="must differ, got 8080 for both"):
        ServiceConfig(grpc_port=8080, http_port=8080)
    ServiceConfig(grpc_port=0, http_port=0)


@pytest.mark.parametrize(
    ("limits", "field", "flag"),
    [
        ({"max_ranks": 3}, "topology.ranks", "--max-ranks"),
        ({"max_slots": 1}, "topology.ranks[0].slot_count", "--max-slots"),
        ({"max_layers": 1}, "layers", "--max-layers"),
        ({"max_experts": 8}, "layers[1].expert_count", "--max-experts"),
        ({"max_layer_counts": 35}, "layers[1].expert_count", "--max-layer-counts"),
        ({"max_plan_entries": 63}, "layers", "--max-plan-entries"),
    ],
)
def test_a_session_beyond_a_limit_is_refused_with_the_flag_that_raises_it(limits, field, flag):
    request = encode_session_spec(make_spec(experts_L=(8, 9)))
    least = {"max_ranks": 4, "max_slots": 2, "max_layers": 2, "max_experts": 9, "max_layer_counts": 36}
    check_limits(request, ServiceConfig(**least, max_plan_entries=64))
    with pytest.raises(ContractError, match=flag) as caught:
        check_limits(request, dataclasses.replace(ServiceConfig(), **limits))
    assert caught.value.reason is Reason.LIMIT_EXCEEDED
    assert caught.value.field == field


def sizes_of(*, num_ranks: int, num_layers: int, num_experts: int, num_slots: int) -> pb.OpenSessionRequest:
    """A request of which only the sizes are filled in."""
    request = pb.OpenSessionRequest(layers=[pb.MoeLayer(expert_count=num_experts)] * num_layers)
    request.topology.ranks.extend([pb.Topology.Rank(slot_count=num_slots)] * num_ranks)
    return request


@pytest.mark.parametrize(
    ("num_ranks", "num_layers", "num_experts", "num_slots"),
    [(1024, 2, 1024, 2), (256, 48, 256, 4), (512, 32, 512, 2), (64, 61, 384, 8)],
)
def test_the_limits_allow_the_sizes_that_are_trained(num_ranks, num_layers, num_experts, num_slots):
    request = sizes_of(num_ranks=num_ranks, num_layers=num_layers, num_experts=num_experts, num_slots=num_slots)
    check_limits(request, ServiceConfig())


@pytest.mark.parametrize(
    ("num_ranks", "num_experts", "num_slots", "flag"),
    [(1024, 4096, 4, "--max-layer-counts"), (1024, 1024, 64, "--max-plan-entries")],
)
def test_the_limits_together_allow_no_layer_for_which_others_wait_long(num_ranks, num_experts, num_slots, flag):
    request = sizes_of(num_ranks=num_ranks, num_layers=1, num_experts=num_experts, num_slots=num_slots)
    with pytest.raises(ContractError, match=flag):
        check_limits(request, ServiceConfig())


def test_every_setting_says_what_it_means_and_none_holds_a_secret():
    for setting in settings_of(ServiceConfig):
        assert setting.doc.endswith("."), f"{setting.name}: write a sentence under the field"
        # Settings are shown: a secret must be in a file of its own, named by a setting.
        if re.search("token|secret|password|key", setting.name):
            assert setting.kind is Path, setting.name


def test_bounds_say_what_they_allow():
    assert str(Bounds(least=1)) == ">= 1"
    assert str(Bounds(above=0, most=5)) == "above 0 and <= 5"
    assert str(Bounds(least=0, most=5)) == "between 0 and 5"
    assert [value for value in (-1, 0, 5, 6, math.inf, math.nan) if Bounds(least=0, most=5).allow(value)] == [0, 5]
    assert [value for value in (0, 0.1, math.inf, math.nan) if Bounds(above=0).allow(value)] == [0.1]

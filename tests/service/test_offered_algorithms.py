"""Which algorithms sessions may ask for, and for how large layers: a planner is shared."""

from __future__ import annotations

import sys
from dataclasses import replace

import grpc
import pytest
from planner_client import refusal
from routing_samples import make_spec

from taot_planning import ALGORITHMS, PlanningOptions
from taot_service.config import ServiceConfig


def test_an_algorithm_that_is_not_offered_is_refused_at_the_door(client):
    seen = refusal(lambda: client.open(make_spec(algorithm="eplb-global")))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ALGORITHM_UNAVAILABLE")
    assert (seen.info.metadata["field"], seen.info.metadata["algorithm"]) == ("options.algorithm", "eplb-global")
    assert "this planner offers echo, eplb, llep, llep-exact, static, taot, taot-paper, " in seen.message
    assert "start it with --algorithms" in seen.message
    for algorithm in ServiceConfig().offered_algorithms:
        client.open(make_spec(algorithm=algorithm))


@pytest.mark.parametrize("wanted", [{"algorithm": "echo"}, {"options": PlanningOptions(objective="mu")}])
def test_a_group_whose_layers_would_hold_the_solver_for_long_is_refused(client, wanted):
    sizes = {"experts_L": (256,), "top_k": 1}
    client.open(make_spec(num_ranks=128, **sizes, **wanted))
    seen = refusal(lambda: client.open(make_spec(num_ranks=256, **sizes, **wanted)))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "LIMIT_EXCEEDED")
    assert seen.info.metadata["field"] == "topology.ranks"
    assert (seen.info.metadata["got"], seen.info.metadata["flag"]) == ("256", "--max-slow-ranks")
    for algorithm in ("taot", "static"):
        client.open(make_spec(num_ranks=256, **sizes, algorithm=algorithm))


def test_an_algorithm_without_its_package_is_refused_at_the_door(client, planner, monkeypatch):
    offers_all = replace(planner.planner.config, algorithms=",".join(ALGORITHMS))
    monkeypatch.setattr(planner.planner, "config", offers_all)
    spec = make_spec(algorithm="lplb")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "scipy", None)
        seen = refusal(lambda: client.open(spec))
        client.open(make_spec(algorithm="taot"))
    assert (seen.code, seen.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ALGORITHM_UNAVAILABLE")
    assert (seen.info.metadata["field"], seen.info.metadata["package"]) == ("options.algorithm", "scipy")
    assert "pip install 'taot-planner[exact]'" in seen.message
    client.open(spec)

from __future__ import annotations

import dataclasses

import pytest
from routing_samples import make_spec
from typer.testing import CliRunner

from taot_api import ContractError, Reason
from taot_service.config import ServiceConfig
from taot_service.limits import check_limits


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
        ("solver_threads", 0),
        ("max_message_bytes", 0),
        ("max_sessions", 0),
        ("max_ranks", 0),
        ("max_layers", 0),
        ("max_experts", 0),
        ("max_slots", 0),
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
        ({"max_plan_entries": 63}, "layers", "--max-plan-entries"),
    ],
)
def test_a_session_beyond_a_limit_is_refused_with_the_flag_that_raises_it(limits, field, flag):
    spec = make_spec(experts_L=(8, 9))
    check_limits(spec, ServiceConfig(max_ranks=4, max_slots=2, max_layers=2, max_experts=9, max_plan_entries=64))
    with pytest.raises(ContractError, match=flag) as caught:
        check_limits(spec, dataclasses.replace(ServiceConfig(), **limits))
    assert caught.value.reason is Reason.LIMIT_EXCEEDED
    assert caught.value.field == field


def test_every_setting_is_a_flag_and_an_environment_variable():
    import typer

    from taot_cli.serve import serve

    app = typer.Typer(add_completion=False)
    app.command()(serve)
    command = typer.main.get_command(app)
    flags = {option.name: option for option in command.params if option.name != "help"}
    assert set(flags) == {field.name for field in dataclasses.fields(ServiceConfig)}
    for name, option in flags.items():
        assert option.opts == ["--" + name.replace("_", "-")]
        assert option.envvar == f"TAOT_{name.upper()}"
        assert option.default == getattr(ServiceConfig, name)
    result = CliRunner().invoke(app, [], env={"TAOT_SOLVER_THREADS": "0"})
    assert result.exit_code == 2
    assert result.stderr == "taot serve: --solver-threads must be >= 1, got 0\n"

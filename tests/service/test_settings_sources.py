"""Where settings come from, and what is said of wrong ones."""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from taot_service.config import ServiceConfig
from taot_service.settings import Bounds, check_settings, settings_of, show_value
from taot_service.settings_sources import (
    GivenSetting,
    merge_settings,
    misspelt_variables,
    read_settings_file,
)


def read(tmp_path: Path, text: str) -> dict[str, GivenSetting]:
    path = tmp_path / "planner.toml"
    path.write_text(text)
    return read_settings_file(path)


def test_a_file_is_read_as_the_types_of_its_settings(tmp_path):
    given = read(tmp_path, 'host = "::1"\nmax_ranks = 2_048\nlease_seconds = 30\nports_file = "ports.json"')
    assert {name: setting.value for name, setting in given.items()} == {
        "host": "::1",
        "max_ranks": 2048,
        "lease_seconds": 30.0,
        "ports_file": Path("ports.json"),
    }
    assert isinstance(given["lease_seconds"].value, float)
    assert given["host"].source == f"{tmp_path}/planner.toml: host"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_rank = 8", "planner.toml: max_rank is no setting: did you mean max_ranks?"),
        ("grpc-port = 8", "planner.toml: grpc-port is no setting: did you mean grpc_port?"),
        ("banana = 8", "planner.toml: banana is no setting"),
        ("[limits]\nmax_ranks = 8", "planner.toml: limits is no setting"),
        ('max_ranks = "8"', "planner.toml: max_ranks must be a whole number, got '8'"),
        ("max_ranks = 8.0", "planner.toml: max_ranks must be a whole number, got 8.0"),
        ("max_ranks = true", "planner.toml: max_ranks must be a whole number, got True"),
        ("drain_seconds = true", "planner.toml: drain_seconds must be a number, got True"),
        ("host = 8", "planner.toml: host must be a string, got 8"),
        ("ports_file = []", "planner.toml: ports_file must be a string, got []"),
        ("max_ranks = ", "planner.toml is no TOML file: "),
        ("max_ranks = 1\nmax_ranks = 2", "planner.toml is no TOML file: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, said):
    with pytest.raises(ValueError, match="planner.toml") as caught:
        read(tmp_path, text)
    message = str(caught.value).removeprefix(f"{tmp_path}/")
    assert message.startswith(said) if said.endswith(": ") else message == said


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match="cannot read .*missing.toml: No such file or directory"):
        read_settings_file(tmp_path / "missing.toml")
    with pytest.raises(ValueError, match="cannot read .*: Is a directory"):
        read_settings_file(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="binary.toml is no TOML file"):
        read_settings_file(tmp_path / "binary.toml")


def test_later_places_overrule_earlier_ones_and_each_value_knows_its_place():
    in_file = {name: GivenSetting(value=1, source=f"file: {name}") for name in ("max_ranks", "max_slots", "max_layers")}
    in_environment = {name: GivenSetting(value=2, source=name.upper()) for name in ("max_ranks", "max_slots")}
    effective = merge_settings(in_file, in_environment, {"max_ranks": GivenSetting(value=3, source="--max-ranks")})
    assert effective.config == ServiceConfig(max_ranks=3, max_slots=2, max_layers=1)
    changed = {name: source for name, source in effective.sources.items() if source != "default"}
    assert changed == {"max_ranks": "--max-ranks", "max_slots": "MAX_SLOTS", "max_layers": "file: max_layers"}
    assert list(effective.sources) == [field.name for field in dataclasses.fields(ServiceConfig)]


def test_a_value_out_of_bounds_is_refused_with_its_place_unless_it_is_overruled():
    wrong = {"max_ranks": GivenSetting(value=0, source="planner.toml: max_ranks")}
    with pytest.raises(ValueError, match="^planner.toml: max_ranks must be >= 1, got 0$"):
        merge_settings(wrong, {})
    assert merge_settings(wrong, {"max_ranks": GivenSetting(value=1, source="--max-ranks")}).config.max_ranks == 1
    with pytest.raises(ValueError, match="must differ, got 8080 for both"):
        merge_settings({"grpc_port": GivenSetting(value=8080, source="TAOT_GRPC_PORT")})


def test_variables_are_doubted_only_where_they_look_like_a_setting():
    right = [setting.variable for setting in settings_of(ServiceConfig)]
    foreign = ["TAOT_DISABLE", "TAOT_CONFIG", "TAOT_PLANNER_PORT", "TAOT_PLANNER_SERVICE_HOST", "TAOT_SCREENSHOTS"]
    assert misspelt_variables([*right, *foreign, "PATH", "MAX_RANK"]) == []
    assert misspelt_variables(["TAOT_MAX_RANK", "TAOT_GRPCPORT"]) == [
        "TAOT_GRPCPORT is no setting and is ignored: did you mean TAOT_GRPC_PORT?",
        "TAOT_MAX_RANK is no setting and is ignored: did you mean TAOT_MAX_RANKS?",
    ]


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """All kinds of settings."""

    is_new: bool = False
    """Whether
    it is new."""

    colour: Colour = Colour.RED
    """Which."""

    wait_seconds: Annotated[float, Bounds(above=0)] | None = None

    def __post_init__(self) -> None:
        check_settings(self)


def test_fields_are_settings_of_every_kind():
    is_new, colour, wait = settings_of(Sample)
    assert (is_new.kind, is_new.default, is_new.doc, is_new.is_optional) == (bool, False, "Whether it is new.", False)
    assert (is_new.flag, is_new.variable) == ("--is-new", "TAOT_IS_NEW")
    assert (colour.kind, show_value(colour.default)) == (Colour, "red")
    assert (wait.kind, wait.is_optional, wait.bounds, wait.doc) == (float, True, Bounds(above=0), "")
    Sample(wait_seconds=1.0)
    with pytest.raises(ValueError, match="^--wait-seconds must be above 0, got 0.0$"):
        Sample(wait_seconds=0.0)

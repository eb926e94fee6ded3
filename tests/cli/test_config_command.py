"""Flags of the settings, `taot config show`, and the guide that lists them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from taot_cli.__main__ import app
from taot_planning import ALGORITHMS
from taot_service.config import ServiceConfig
from taot_service.settings import Setting, settings_of, show_value

GUIDE = Path(__file__).parents[2] / "docs" / "configuration.md"


def taot(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb", **environment})


def shown(*words: str, **environment: str) -> dict[str, dict[str, object]]:
    result = taot("config", "show", "--json", *words, **environment)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_flags_overrule_the_environment_which_overrules_the_file(tmp_path):
    path = tmp_path / "planner.toml"
    path.write_text("max_ranks = 1\nmax_slots = 1\nmax_layers = 1")
    settings = shown("--config", str(path), "--max-ranks", "3", TAOT_MAX_RANKS="2", TAOT_MAX_SLOTS="2")
    assert settings["max_ranks"] == {"value": 3, "source": "--max-ranks"}
    assert settings["max_slots"] == {"value": 2, "source": "TAOT_MAX_SLOTS"}
    assert settings["max_layers"] == {"value": 1, "source": f"{path}: max_layers"}
    assert settings["max_experts"] == {"value": 4096, "source": "default"}
    assert shown(TAOT_CONFIG=str(path))["max_ranks"]["value"] == 1


@pytest.mark.parametrize("name", ["TAOT_CONFIG", *(setting.variable for setting in settings_of(ServiceConfig))])
def test_a_variable_that_is_set_to_nothing_is_refused(name):
    result = taot("config", "show", **{name: ""})
    assert (result.exit_code, name in result.stderr) == (2, True)
    result = taot("serve", "--grpc-port", "70000", **{name: ""})
    assert (result.exit_code, name in result.stderr) == (2, True)


def test_every_setting_is_a_flag_and_a_variable():
    settings = settings_of(ServiceConfig)
    assert list(shown()) == [setting.name for setting in settings]
    for setting in settings:
        value = str(other_value(setting))
        by_flag = shown(*([setting.flag] if setting.kind is bool else [setting.flag, value]))[setting.name]
        by_variable = shown(**{setting.variable: value})[setting.name]
        assert by_flag == {"value": show_value(other_value(setting)), "source": setting.flag}
        assert by_variable == {"value": show_value(other_value(setting)), "source": setting.variable}


def other_value(setting: Setting) -> object:
    """A value that is right, and not the default."""
    if setting.kind is bool:
        return not setting.default
    if setting.name == "algorithms":
        return "static"
    if setting.kind in (str, Path):
        return setting.kind("other")
    if setting.kind in (int, float):
        return setting.kind((setting.default or 0) + 1)
    return next(each for each in setting.kind if each is not setting.default).value


def test_what_people_read_is_a_row_for_each_setting():
    result = taot("config", "show", "--max-ranks", "77")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["Setting", "Value", "Source"]
    assert ["max_ranks", "77", "--max-ranks"] in rows
    assert ["exit_when_idle", "-", "default"] in rows
    assert len(rows) == 1 + len(settings_of(ServiceConfig))


@pytest.mark.parametrize("command", [("serve",), ("config", "show")])
@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (["--solver-threads", "0"], {}, "--solver-threads must be >= 1, got 0"),
        ([], {"TAOT_SOLVER_THREADS": "0"}, "TAOT_SOLVER_THREADS must be >= 1, got 0"),
        (
            ["--algorithms", "taot,magic"],
            {},
            "--algorithms must be names with commas between them, got 'magic': choose"
            " from " + ", ".join(sorted(ALGORITHMS)),
        ),
        (["--config", "/nowhere.toml"], {}, "cannot read /nowhere.toml: No such file or directory"),
    ],
)
def test_wrong_settings_end_a_command_with_one_line(command, flags, environment, said):
    result = taot(*command, *flags, **environment)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"taot {' '.join(command)}: {said}\n"


def test_a_misspelt_variable_is_named_and_ignored():
    result = taot("config", "show", TAOT_MAX_RANK="8")
    assert result.exit_code == 0
    assert result.stderr == (
        "taot config show: TAOT_MAX_RANK is no setting and is ignored: did you mean TAOT_MAX_RANKS?\n"
    )


def test_help_tells_everything_of_a_setting():
    text = " ".join(re.sub("[│╭╮╰╯─]", " ", taot("serve", "--help").output).split())
    for setting in settings_of(ServiceConfig):
        assert f" {setting.flag} " in text
        assert f"[env var: {setting.variable}]" in text
        assert setting.doc in text, setting.name
    assert "[default: 50051]" in text
    assert "[env var: TAOT_CONFIG]" in text


def guide_row(setting: Setting) -> str:
    default = "" if setting.default is None else f"`{show_value(setting.default)}`"
    return f"| `{setting.name}` | {default} | {setting.doc} |"


def test_the_guide_lists_the_settings_as_they_are():
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    right = [guide_row(setting) for setting in settings_of(ServiceConfig)]
    assert rows == right, "the table of docs/configuration.md must be:\n" + "\n".join(right)


def test_the_file_of_the_guide_is_right(tmp_path):
    path = tmp_path / "planner.toml"
    (example,) = re.findall(r"^```toml\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    path.write_text(example)
    settings = shown("--config", str(path))
    assert sum(setting["source"] != "default" for setting in settings.values()) == example.count(" = ") > 2

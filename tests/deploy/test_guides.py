"""Every command of the guides is run, or checked where it needs a cluster, a registry or a container engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from deploy_tools import ROOT, run_tool
from running_planner import planner_process
from whole_run import run_whole

GUIDES = ("deploy.md", "connect.md", "upgrade.md")
BOUND_SECONDS = 240


class Command(NamedTuple):
    guide: str
    line: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line)


def blocks(guide: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs" / guide).read_text(), re.DOTALL | re.MULTILINE)


COMMANDS = [Command(guide, line) for guide in GUIDES for block in blocks(guide, "sh") for line in block.splitlines()]


def starting(*words: str) -> list[Command]:
    return [command for command in COMMANDS if command.words[: len(words)] == list(words)]


RUN = [*starting("taot"), *starting("curl"), *starting("torchrun")]
CHECKED = [*starting("pip", "install"), *starting("docker"), *starting("helm"), *starting("kubectl")]


def test_every_command_is_run_or_checked():
    assert set(COMMANDS) == {*RUN, *CHECKED}
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide):
    for target in re.findall(r"\]\(([^)#:]+)[^)]*\)", (ROOT / "docs" / guide).read_text()):
        assert (ROOT / "docs" / target).exists(), target


def test_extras_exist():
    declared = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1].split("\n[project")[0]
    for command in starting("pip", "install"):
        for extras in re.findall(r"\[(.*)\]", command.words[-1]):
            for extra in extras.split(","):
                assert re.search(rf"^{extra} = \[", declared, re.MULTILINE), command


@pytest.mark.deploy
@pytest.mark.parametrize("command", starting("helm"), ids=lambda command: command.line[:60])
def test_helm_renders_what_the_guide_installs(command):
    _, verb, *rest = command.words
    assert verb in ("install", "upgrade")
    said = run_tool("helm", "template", *(word for word in rest if word != "--reuse-values"))
    assert "kind: Deployment" in said
    if "metrics.monitor" in command.line:
        assert all(f"kind: {kind}" in said for kind in ("ServiceMonitor", "PrometheusRule", "ConfigMap"))


def test_kubectl_is_given_what_exists():
    for command in starting("kubectl"):
        if command.words[1] == "apply":
            assert (ROOT / command.words[-1]).exists(), command
        else:
            # The chart's names with the release name of the guide; test_chart.py renders them.
            assert re.search(r"(service|deployment)/taot-planner( |$)", command.line), command


@pytest.mark.deploy
def test_compose_takes_the_file_of_the_guide():
    (command,) = starting("docker", "compose")
    flags = command.words[2:-2]
    assert command.words[-2:] == ["up", "--build"]
    run_tool("docker-compose", *flags, "config", "--quiet")


def test_docker_is_given_what_the_image_has():
    dockerfile = (ROOT / "Dockerfile").read_text()
    builds = starting("docker", "build")
    for command in builds:
        assert command.words[-1] == "."
        assert all(f"id={name}," in dockerfile for name in re.findall(r"id=([\w-]+),", command.line))
    (run,) = starting("docker", "run")
    assert run.words[-1] in builds[0].words
    exposed = re.search(r"^EXPOSE (.*)$", dockerfile, re.MULTILINE)[1].split()
    assert re.findall(r"127\.0\.0\.1:(\d+):\1", run.line) == exposed


@pytest.fixture(scope="module")
def planner():
    """`taot serve`, as every guide starts it, on ports of its own."""
    assert {command.line for command in starting("taot", "serve")} == {"taot serve"}
    with planner_process() as running:
        yield running


def shell(command: str, planner, folder: Path) -> str:
    """Runs a line of a guide with this Python, against the planner of the test."""
    for port, real in (("50051", planner.grpc_port), ("8080", planner.http_port)):
        command = command.replace(f"127.0.0.1:{port}", f"127.0.0.1:{real}")
    folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    roots = os.pathsep.join(str(ROOT / name) for name in ("proto", "service", "client"))
    done = run_whole(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": folders, "PYTHONPATH": roots, "OMP_NUM_THREADS": "1", "no_proxy": "127.0.0.1"},
        seconds=BOUND_SECONDS,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(300)  # processes that load all kernels, on a machine that is shared
@pytest.mark.slow
def test_the_example_of_the_guide_is_trained_with_a_plan_and_shows_itself(planner, tmp_path):
    example, own = starting("torchrun")
    # An editable install has no shared files: the example is where the wheel takes it from.
    installed = re.search(r'"\$\(.*\)/share/taot-planner/(\S+)"', example.line)
    shared = (ROOT / "pyproject.toml").read_text()
    assert f'"examples/{installed[1]}" = "share/taot-planner/{installed[1]}"' in shared
    said = shell(example.line.replace(installed[0], str(ROOT / "examples" / installed[1])), planner, tmp_path)
    last = re.findall(r"^step +\d+ .* (\w+)$", said, re.MULTILINE)
    assert len(last) == 12
    assert "plan" in last
    for command in starting("curl"):
        seen = shell(command.line, planner, tmp_path)
        if command.line.endswith("/metrics"):
            assert "taot_sessions" in seen
    sessions = shell(starting("curl")[1].line, planner, tmp_path)
    assert json.loads(sessions)["release"]
    assert own.words[-1] == "train.py"


@pytest.mark.timeout(300)  # processes that load all kernels, on a machine that is shared
@pytest.mark.slow
def test_the_loop_of_the_guide_carries_out_plans(planner, tmp_path):
    (script,) = blocks("connect.md", "python")
    (tmp_path / "train.py").write_text(script.replace("127.0.0.1:50051", planner.address))
    said = shell(starting("torchrun")[1].line, planner, tmp_path)
    modes = [line.split()[1] for line in said.splitlines() if re.match(r"\d+ ", line)]
    assert len(modes) == 20
    assert "plan" in modes


def test_taot_has_the_commands_of_the_guides():
    for command in starting("taot"):
        with contextlib.suppress(IndexError):
            name = command.words[1]
            said = subprocess.run(
                [sys.executable, "-m", "taot_cli", *([] if name.startswith("-") else [name]), "--help"],
                capture_output=True,
                text=True,
                timeout=BOUND_SECONDS,
                check=True,
            )
            assert "Usage" in said.stdout

from __future__ import annotations

import json

import pytest
from deploy_tools import ROOT, run_tool

pytestmark = pytest.mark.deploy


def test_hadolint_has_nothing_to_say():
    run_tool("hadolint", "Dockerfile")


def test_the_compose_file_is_understood_and_everything_it_mounts_is_there():
    said = run_tool("docker-compose", "--file", "deploy/compose.yaml", "config", "--format", "json")
    services = json.loads(said)["services"]
    assert set(services) == {"planner", "trainer", "prometheus", "grafana"}
    for name, service in services.items():
        # Nothing is open to other machines.
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", [])), name
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert (ROOT / mount["source"]).is_dir(), mount["source"]
    for name in ("planner", "trainer"):
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]


def test_the_image_gets_what_the_package_is_built_from_and_nothing_else():
    ignored, *kept = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignored == "*"
    copied = {
        source
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == {line.removeprefix("!") for line in kept if line.startswith("!")}

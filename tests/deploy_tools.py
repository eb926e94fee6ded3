"""The tools that judge what is in `deploy/`, and the Kubernetes objects in it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/taot-planner"
MANIFESTS = ROOT / "deploy/kubernetes"
NAMESPACE = "training"

Document = dict[str, Any]


def tool(name: str) -> str:
    """The path of a tool. Only `make test-deploy` says where they are; there a missing one is an error."""
    folder = os.environ.get("TAOT_DEPLOY_TOOLS")
    if folder is None:
        pytest.skip(f"{name} comes with `make test-deploy`")
    path = Path(folder) / name
    assert path.exists(), f"{path} is missing"
    return str(path)


def run_tool(name: str, *arguments: str, is_failure_expected: bool = False) -> str:
    """What the tool prints; fails the test unless its exit code is as expected."""
    command = [tool(name), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    said = f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    assert (done.returncode != 0) == is_failure_expected, said
    return said if is_failure_expected else done.stdout


def render(*flags: str) -> list[Document]:
    """The objects that the chart makes."""
    text = run_tool("helm", "template", "taot-planner", str(CHART), "--namespace", NAMESPACE, *flags)
    return [document for document in yaml.safe_load_all(text) if document]


def read_manifest(name: str) -> list[Document]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def of_kind(documents: Sequence[Document], kind: str) -> Document:
    """The one object of a kind."""
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def with_plain_kinds(documents: Sequence[Document]) -> list[Document]:
    """Objects that Kubernetes itself knows: for those of operators, the Jobs and Pods that these make of them."""
    plain: list[Document] = []
    for document in documents:
        metadata = document["metadata"]
        if document["kind"] == "JobSet":
            for each in document["spec"]["replicatedJobs"]:
                plain.append(_named("batch/v1", "Job", f"{metadata['name']}-{each['name']}", each["template"]))
        elif document["kind"] == "PyTorchJob":
            for role, each in document["spec"]["pytorchReplicaSpecs"].items():
                pod = _named("v1", "Pod", f"{metadata['name']}-{role.lower()}", each["template"])
                plain.append(pod | {"spec": pod["spec"] | {"restartPolicy": each["restartPolicy"]}})
        elif not document["apiVersion"].startswith("monitoring.coreos.com/"):
            plain.append(document)
    return plain


def _named(version: str, kind: str, name: str, template: Document) -> Document:
    metadata = template.get("metadata", {}) | {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": template["spec"]}

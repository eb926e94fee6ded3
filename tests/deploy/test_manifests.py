from __future__ import annotations

import json

import pytest
import yaml
from deploy_tools import MANIFESTS, of_kind, read_manifest, render, run_tool, with_plain_kinds

pytestmark = pytest.mark.deploy

VERSIONS = ("1.29.0", "1.37.0")
"""The oldest with native sidecars, and the newest that the schemas know."""

FILES = tuple(sorted(path.name for path in MANIFESTS.glob("*.yaml")))


def write(folder, name, documents):
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return str(path)


@pytest.fixture
def plain_files(tmp_path):
    """Everything that is shipped, as objects that Kubernetes itself knows."""
    rendered = {"chart": render("--set", "dashboards.enabled=true")}
    shipped = rendered | {name.removesuffix(".yaml"): read_manifest(name) for name in FILES}
    return [write(tmp_path, name, with_plain_kinds(documents)) for name, documents in shipped.items()]


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_valid(version, plain_files):
    run_tool("kubernetes-validate", "--strict", "-k", version, *plain_files)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_misspelt_field_is_found(version, tmp_path):
    documents = with_plain_kinds(read_manifest("sidecar-jobset.yaml"))
    documents[0]["spec"]["template"]["spec"]["initContainers"][0]["restartPolicies"] = "Always"
    said = run_tool(
        "kubernetes-validate", "--strict", "-k", version, write(tmp_path, "job", documents), is_failure_expected=True
    )
    assert "restartPolicies" in said


def test_checkov_has_nothing_to_say_but_what_is_skipped_for_a_reason(plain_files, tmp_path):
    said = run_tool(
        "checkov", "--directory", str(tmp_path), "--framework", "kubernetes", "--skip-download", "--output", "json",
        "--soft-fail", "--compact",
    )  # fmt: skip
    results = json.loads(said)["results"]
    assert not [(each["check_id"], each["check_name"], each["resource"]) for each in results["failed_checks"]]
    skipped = {each["check_id"] for each in results["skipped_checks"]}
    assert skipped == {"CKV_K8S_43", "CKV_K8S_15", "CKV_K8S_8", "CKV_K8S_9"}
    assert all(each["check_result"]["suppress_comment"] for each in results["skipped_checks"])
    assert len(results["passed_checks"]) > 100


def test_the_stand_alone_manifest_is_what_the_chart_renders():
    rendered, written = render(), read_manifest("standalone-deployment.yaml")
    assert len(written) == len(rendered)
    for document in written:
        other = of_kind(rendered, document["kind"])
        assert document["metadata"]["name"] == other["metadata"]["name"]
        assert without_labels_of_helm(document) == without_labels_of_helm(other)


def without_labels_of_helm(document):
    spec = json.loads(json.dumps(document["spec"]))
    for owner in (spec, spec.get("template", {})):
        labels = owner.get("metadata", {}).get("labels", {})
        for name in ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"):
            labels.pop(name, None)
    return {"type": "ClusterIP", **spec} if document["kind"] == "Service" else spec


def sidecar_pods(name):
    """Every pod template of a sidecar manifest."""
    for document in with_plain_kinds(read_manifest(name)):
        if document["kind"] == "Job":
            yield document["spec"]["template"]["spec"]
        elif document["kind"] == "Pod":
            yield document["spec"]


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("sidecar-")])
def test_a_sidecar_starts_before_training_and_does_not_keep_the_job_from_ending(name):
    first, *others = sidecar_pods(name)
    (sidecar,) = first["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    # What is slow must not hold training up: ranks plan by themselves until the planner is ready.
    assert sidecar["startupProbe"]["httpGet"]["path"] == "/livez"
    drain = next(float(each["value"]) for each in sidecar["env"] if each["name"] == "TAOT_DRAIN_SECONDS")
    assert first["terminationGracePeriodSeconds"] > drain
    assert others
    assert not any("initContainers" in pod for pod in others)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("sidecar-")])
def test_a_sidecar_is_the_planner_of_the_chart(name):
    (sidecar,) = next(iter(sidecar_pods(name)))["initContainers"]
    planner = of_kind(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    same = {"image", "args", "ports", "startupProbe", "livenessProbe", "readinessProbe", "resources", "securityContext"}
    for field in same:
        assert sidecar[field] == planner[field], field


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("sidecar-")])
def test_every_pod_asks_the_planner_of_the_first(name):
    document = read_manifest(name)[0]
    job = document["metadata"]["name"]
    address = {
        "JobSet": f"{job}-leader-0-0.{document['spec'].get('network', {}).get('subdomain')}:50051",
        "PyTorchJob": f"{job}-master-0:50051",
    }[document["kind"]]
    for pod in sidecar_pods(name):
        (trainer,) = pod["containers"]
        assert f"--planner={address}" in " ".join(trainer["command"])

"""The chart on a real API server: install, upgrade, uninstall; and what its service account may do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from streamhold_dev import binaries, processes
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.waiting import eventually_sync
from streamhold_operator.api import KINDS
from support.chart_values import CHART
from support.crd_values import BASES, an_object

RELEASE, SYSTEM = "streamhold", "streamhold-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
PLURALS = [f"{model.PLURAL}.streamhold.dev" for model in KINDS.values()]
ALLOWED = [
    *((verb, plural) for plural in PLURALS for verb in ("get", "list", "watch")),
    *(("patch", plural) for plural in ("streamtopics.streamhold.dev", "coordinationclients.streamhold.dev")),
    *((verb, "secrets") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    ("create", "events"),
]
DENIED = [
    *((verb, plural) for plural in PLURALS for verb in ("create", "update", "delete", "deletecollection")),
    *(("patch", plural) for plural in ("redisconnections.streamhold.dev", "leasepolicies.streamhold.dev")),
    ("update", "secrets"),
    ("deletecollection", "secrets"),
    ("get", "configmaps"),
    ("get", "pods"),
    ("get", "events"),
    ("create", "serviceaccounts/token"),
    ("create", "rolebindings.rbac.authorization.k8s.io"),
    ("get", "customresourcedefinitions.apiextensions.k8s.io"),
    ("patch", "namespaces"),
    ("impersonate", "users"),
]


@pytest.fixture
def plane(own_control_plane: Callable[[], ControlPlane]) -> ControlPlane:
    """A control plane of the test's own: the chart's definitions and roles are cluster-wide."""
    return own_control_plane()


def install(plane: ControlPlane, values: dict[str, object] | None = None, verb: str = "install") -> str:
    return plane.helm(
        verb, RELEASE, CHART, "--namespace", SYSTEM, "--create-namespace", "--values", "-",
        input=yaml.safe_dump(values or {}),
    )  # fmt: skip


def may(plane: ControlPlane, verb: str, resource: str, namespace: str) -> bool:
    kind, _, subresource = resource.partition("/")
    words = ["--subresource", subresource] if subresource else []
    answer = plane.kubectl(
        "auth", "can-i", verb, kind, *words, "--namespace", namespace, "--as", ACCOUNT, check=False
    )  # fmt: skip
    return answer.strip() == "yes"


def wait_for_rights(plane: ControlPlane, namespace: str) -> None:
    """Wait until the account may do all of `ALLOWED`: the API server takes a moment to see new roles and kinds."""
    missing = list(ALLOWED)

    def none_is_missing() -> bool:
        missing[:] = [right for right in missing if not may(plane, *right, namespace=namespace)]
        assert missing == []
        return True

    eventually_sync(none_is_missing, timeout=30, message=f"the account lacks rights in {namespace}")


def test_installed_cluster_wide_the_account_may_do_what_the_operator_does_and_nothing_else(plane: ControlPlane) -> None:
    said = install(plane)
    assert "STATUS: deployed" in said
    assert "kubectl get streamhold" in said
    wait_for_rights(plane, "default")
    assert [right for right in DENIED if may(plane, *right, namespace="default")] == []
    assert all(may(plane, "patch", f"{plural}/status", namespace="default") for plural in PLURALS)
    assert all(may(plane, verb, "namespaces", namespace="") for verb in ("get", "list", "watch"))
    deployment = plane.get("deployment", RELEASE, SYSTEM)
    assert deployment["spec"]["template"]["spec"]["serviceAccountName"] == RELEASE


def test_installed_for_namespaces_the_account_may_touch_secrets_and_events_there_only(plane: ControlPlane) -> None:
    for namespace in ("shop", "other"):
        plane.kubectl("create", "namespace", namespace)
    install(plane, {"namespaces": ["shop"]})
    wait_for_rights(plane, "shop")
    on_kinds = [right for right in ALLOWED if right[1] in PLURALS]
    assert [right for right in ALLOWED if may(plane, *right, namespace="other")] == on_kinds
    assert [right for right in DENIED if may(plane, *right, namespace="shop")] == []
    assert all(may(plane, verb, "namespaces", namespace="") for verb in ("get", "list", "watch"))


def test_uninstalling_keeps_definitions_and_objects_and_a_new_install_takes_them_over(plane: ControlPlane) -> None:
    install(plane)
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{plural}" for plural in PLURALS))
    plane.apply([an_object(kind, specs[0], kind.lower()) for kind, specs in BASES.items()], namespace="default")
    before = _uids(plane)
    assert len(before) == len(PLURALS)
    plane.helm("uninstall", RELEASE, "--namespace", SYSTEM)
    assert _uids(plane) == before
    install(plane)
    install(plane, {"operator": {"workers": 2}}, verb="upgrade")
    plane.helm("rollback", RELEASE, "1", "--namespace", SYSTEM)
    assert _uids(plane) == before


def test_case_o02_after_an_uninstall_the_commands_of_the_readme_let_objects_and_namespaces_go(
    plane: ControlPlane,
) -> None:
    install(plane)
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{plural}" for plural in PLURALS))
    plane.kubectl("create", "namespace", "shop")
    held = [an_object(kind, BASES[kind][0], kind.lower()) for kind in ("CoordinationClient", "StreamTopic")]
    for one in held:
        one["metadata"]["finalizers"] = ["streamhold.dev/cleanup"]
    plane.apply(held, namespace="shop")
    plane.helm("uninstall", RELEASE, "--namespace", SYSTEM)
    plane.kubectl("delete", "namespace", "shop", "--wait=false")
    commands = (CHART / "README.md").read_text().split("<!-- release -->\n```sh\n")[1].split("```")[0]
    path = f"{binaries.need('kubectl').parent}:/usr/bin:/bin"
    subprocess.run(["sh", "-ec", commands], check=True, env={"PATH": path, **plane.environment()}, timeout=30)
    plane.kubectl("wait", "--for=delete", "namespace/shop", "--timeout=60s")


def test_without_keep_uninstalling_removes_the_definitions(plane: ControlPlane) -> None:
    said = install(plane, {"crds": {"keep": False}})
    assert "crds.keep is false" in said
    # A definition that is deleted before it was established is finished with a growing delay, of minutes at last.
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{plural}" for plural in PLURALS))
    plane.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    assert plane.kubectl("get", "crd", "--output", "name") == ""


def test_case_O24_without_an_operator_good_objects_are_taken_and_bad_ones_refused(
    plane: ControlPlane, tmp_path: Path
) -> None:
    install(plane, {"replicaCount": 0})
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{plural}" for plural in PLURALS))
    plane.apply(an_object("LeasePolicy", BASES["LeasePolicy"][0]), namespace="default")
    with pytest.raises(processes.CommandFailed) as refused:
        plane.apply(an_object("LeasePolicy", {"connectionRef": {"name": "a"}, "ttl": "1d"}), namespace="default")
    assert "spec.ttl" in refused.value.stderr


def _uids(plane: ControlPlane) -> set[str]:
    found = json.loads(plane.kubectl("get", "streamhold", "--namespace", "default", "--output", "json"))
    return {item["metadata"]["uid"] for item in found["items"]}

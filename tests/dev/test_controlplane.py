"""The control plane that tests and the demo use is a real one: RBAC, garbage collection, tokens, an audit log."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from streamhold_dev.audit import WRITES, AuditEntry
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.processes import CommandFailed, Process, StartError
from streamhold_dev.waiting import eventually_sync


def config_map(name: str, **metadata: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}


def service_account(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


def test_server_and_kubectl_know_each_others_versions(control_plane: ControlPlane) -> None:
    said = control_plane.kubectl("version")
    assert "Server Version: v1." in said


def test_helm_reaches_the_server_and_nothing_of_the_users(control_plane: ControlPlane, namespace: str) -> None:
    assert control_plane.helm("list", "--namespace", namespace, "--output", "json").strip() == "[]"
    assert str(control_plane.folder) in control_plane.helm("env", "HELM_CONFIG_HOME")


def test_a_service_account_has_no_rights_until_rbac_gives_them(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    control_plane.apply(service_account("worker"), namespace=namespace)
    kubeconfig = control_plane.kubeconfig_for(namespace, "worker", tmp_path / "kubeconfig")
    as_worker = ["--kubeconfig", kubeconfig, "get", "configmaps", "--namespace", namespace]
    who = f"system:serviceaccount:{namespace}:worker"

    assert who in control_plane.kubectl("--kubeconfig", kubeconfig, "auth", "whoami")
    with pytest.raises(CommandFailed, match="forbidden"):
        control_plane.kubectl(*as_worker)

    control_plane.kubectl(
        "create", "rolebinding", "w", "--clusterrole=view", f"--serviceaccount={namespace}:worker", "-n", namespace
    )
    eventually_sync(lambda: "kube-root-ca.crt" in control_plane.kubectl(*as_worker, check=False))


def test_the_audit_log_tells_who_was_refused_and_who_wrote_what(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    control_plane.apply(service_account("worker"), namespace=namespace)
    kubeconfig = control_plane.kubeconfig_for(namespace, "worker", tmp_path / "kubeconfig")
    before = control_plane.audit_log.position()

    control_plane.apply(config_map("mine"), namespace=namespace)
    control_plane.kubectl("--kubeconfig", kubeconfig, "delete", "configmap", "mine", "-n", namespace, check=False)

    [write] = control_plane.audit(user="admin", verbs=WRITES, since=before, namespace=namespace)
    assert (write.resource, write.name, write.code) == ("configmaps", "mine", 201)
    refused = control_plane.audit(user=f"system:serviceaccount:{namespace}:worker", since=before, code=403)
    assert [(entry.verb, entry.name, entry.denied_by_rbac) for entry in refused] == [("delete", "mine", True)]
    assert control_plane.audit(since=write.at, namespace=namespace)[0] == write


def test_what_admission_refuses_is_no_missing_right(control_plane: ControlPlane) -> None:
    namespace = f"ending-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", namespace)
    control_plane.apply(config_map("held", finalizers=["example.com/held"]), namespace=namespace)
    control_plane.kubectl("delete", "namespace", namespace, "--wait=false")
    before = control_plane.audit_log.position()

    def refused() -> list[AuditEntry]:
        control_plane.kubectl("create", "configmap", "late", "-n", namespace, check=False)
        control_plane.kubectl("delete", "configmap", "late", "-n", namespace, "--ignore-not-found", check=False)
        return control_plane.audit(since=before, namespace=namespace, code=403)

    entry = eventually_sync(refused, message="the namespace that is being deleted takes new objects")[0]
    control_plane.kubectl("patch", "configmap", "held", "-n", namespace, "-p", '{"metadata":{"finalizers":[]}}')
    assert not entry.denied_by_rbac


def test_what_an_object_owns_is_collected_with_it(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(config_map("owner"), namespace=namespace)
    uid = control_plane.get("configmap", "owner", namespace)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    control_plane.apply(config_map("owned", ownerReferences=[reference]), namespace=namespace)

    control_plane.kubectl("delete", "configmap", "owner", "-n", namespace)

    names = ("get", "configmaps", "-n", namespace, "-o", "name")
    eventually_sync(lambda: "configmap/owned" not in control_plane.kubectl(*names), timeout=20)


def test_a_deleted_namespace_goes_with_its_objects(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply([config_map("a"), config_map("b")], namespace=namespace)

    control_plane.kubectl("delete", "namespace", namespace, "--timeout=30s")

    with pytest.raises(CommandFailed, match="not found"):
        control_plane.get("namespace", namespace)


def test_a_deployment_gets_a_pod_that_stays_pending(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("create", "deployment", "idle", "--image=none", "-n", namespace)

    phases = ("get", "pods", "-n", namespace, "-o", "jsonpath={.items[*].status.phase}")
    assert eventually_sync(lambda: control_plane.kubectl(*phases)) == "Pending"


def test_an_object_the_server_refuses_ends_in_its_words(control_plane: ControlPlane, namespace: str) -> None:
    with pytest.raises(CommandFailed, match=r"metadata\.name: Invalid value") as refusal:
        control_plane.apply(config_map("Not A Name"), namespace=namespace)
    assert refusal.value.code == 1


def test_a_namespace_that_yaml_reads_as_a_boolean_can_be_used(control_plane: ControlPlane, tmp_path: Path) -> None:
    control_plane.kubectl("create", "namespace", "y")
    try:
        eventually_sync(lambda: control_plane.kubectl("get", "sa", "default", "-n", "y", "-o", "name", check=False))
        kubeconfig = control_plane.kubeconfig_for("y", "default", tmp_path / "kubeconfig")
        assert "system:serviceaccount:y:default" in control_plane.kubectl("--kubeconfig", kubeconfig, "auth", "whoami")
    finally:
        control_plane.kubectl("delete", "namespace", "y", "--wait=false")


def test_another_process_can_use_it_and_end_it(own_control_plane: Callable[[], ControlPlane]) -> None:
    plane = own_control_plane()
    other = ControlPlane.attach(plane.folder)
    assert other.server == plane.server
    assert "default" in other.kubectl("get", "namespaces")

    other.stop()

    assert not plane.alive
    assert not plane.folder.exists()
    with pytest.raises(StartError, match="no control plane was started"):
        ControlPlane.attach(plane.folder)


def test_it_goes_when_its_owner_is_killed() -> None:
    program = """
        import time
        from streamhold_dev.controlplane import ControlPlane
        plane = ControlPlane.start()
        print(plane.folder, *[f"{one.name}:{one.pid}" for one in plane._processes], flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder, *started = owner.stdout.readline().split()
        servers = [Process.of(name, int(pid)) for name, pid in (one.split(":") for one in started)]
        assert [server.name for server in servers] == ["etcd", "kube-apiserver", "kube-controller-manager"]
        os.kill(owner.pid, signal.SIGKILL)

    eventually_sync(lambda: not any(server.alive for server in servers), message="servers outlived their owner")
    eventually_sync(lambda: not Path(folder).exists(), message="their folder outlived its owner")

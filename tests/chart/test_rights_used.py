"""The operator under the chart's own account: it is refused nothing, and has no right that it does not use."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from streamhold_dev import ports, processes
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync
from streamhold_operator.api import API_VERSION
from support.chart_values import CHART
from support.rendered import grants

RELEASE, SYSTEM = "streamhold", "streamhold-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
# Used when the watch streams missed something, which a run without disturbance does not show.
ON_A_MISSED_CHANGE = {
    ("get", f"{plural}.streamhold.dev")
    for plural in ("redisconnections", "streamtopics", "leasepolicies", "coordinationclients")
}


def objects(redis: RedisServer, prefix: str, namespace: str) -> list[dict[str, Any]]:
    def one(kind: str, name: str, **spec: Any) -> dict[str, Any]:
        metadata = {"name": name, "namespace": namespace}
        return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}

    reference = {"name": "main"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "redis-admin", "namespace": namespace},
            "stringData": {"username": redis.admin_username, "password": redis.password},
        },
        one(
            "RedisConnection",
            "main",
            endpoints=[f"{redis.host}:{redis.port}"],
            adminSecretRef={"name": "redis-admin"},
            keyPrefix=f"{prefix}:{{namespace}}",
            allowedNamespaces={"from": "Selector", "selector": {"matchLabels": {"team": "a"}}},
        ),
        one("StreamTopic", "orders", connectionRef=reference, groups=[{"name": "billing"}], deletionPolicy="Delete"),
        one("LeasePolicy", "jobs", connectionRef=reference),
        one(
            "CoordinationClient",
            "checkout",
            connectionRef=reference,
            topics=[{"name": "orders", "access": ["Publish"]}],
            leases=[{"name": "jobs"}],
        ),
    ]


@contextmanager
def running(plane: ControlPlane, folder: Path, *flags: str) -> Iterator[processes.Server]:
    """The operator as a local process with the rights of the chart's account."""
    kubeconfig = plane.kubeconfig_for(SYSTEM, RELEASE, folder / "operator.kubeconfig")
    port = ports.free_port()
    command = [
        sys.executable, "-m", "streamhold_operator", "--kubeconfig", str(kubeconfig), "--bind-address", ports.HOST,
        "--liveness-port", str(port), "--metrics-port", "0", "--resync-interval", "1",
        "--compare-interval", "1", *flags,
    ]  # fmt: skip
    server = processes.Server("operator", command, folder / "operator.log")

    def ready() -> bool:
        assert server.alive, server.tail()
        try:
            with urlopen(f"http://{ports.HOST}:{port}/readyz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    try:
        eventually_sync(ready, timeout=30, message="the operator is not ready")
        yield server
    finally:
        server.end()


@pytest.mark.parametrize("namespaces", [[], ["shop"]], ids=["cluster-wide", "one namespace"])
def test_the_operator_is_refused_nothing_and_uses_every_right(
    namespaces: list[str],
    own_control_plane: Callable[[], ControlPlane],
    redis_server: RedisServer,
    key_prefix: str,
    tmp_path: Path,
) -> None:
    plane = own_control_plane()
    for name in ("shop", "other"):
        plane.kubectl("create", "namespace", name)
        plane.kubectl("label", "namespace", name, "team=a")
    plane.helm(
        "install", RELEASE, CHART, "--namespace", SYSTEM, "--create-namespace", "--values", "-",
        input=yaml.safe_dump({"namespaces": namespaces}),
    )  # fmt: skip
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    where = f"--namespaces={','.join(namespaces)}"
    with running(plane, tmp_path, where) as operator:
        wanted = objects(redis_server, key_prefix, "shop")
        plane.apply(wanted)
        kinds = "redisconnections,streamtopics,leasepolicies,coordinationclients"
        plane.kubectl("wait", "--for=condition=Ready", "--timeout=30s", "--namespace", "shop", kinds, "--all")
        secret = ["secret", "checkout-streamhold", "--namespace", "shop"]
        assert plane.kubectl("get", *secret, "--output", "name")
        patch = json.dumps({"spec": {"secretName": "renamed"}})
        plane.kubectl("patch", "cclient", "checkout", "--namespace", "shop", "--type=merge", "--patch", patch)
        plane.kubectl("wait", "--for=delete", *secret, "--timeout=30s")
        plane.kubectl("delete", kinds, "--all", "--namespace", "shop", "--timeout=30s")
        assert operator.alive, operator.tail()
    entries = plane.audit(user=ACCOUNT)
    assert [str(entry) for entry in entries if entry.code == 401 or entry.denied_by_rbac] == []
    used = {(entry.verb, f"{entry.resource}.{entry.group}".rstrip(".")) for entry in entries if entry.resource}
    granted = {right for kind in ("clusterroles", "roles") for right in _granted(plane, kind)}
    # The first server-side apply of a Secret creates it, which the API server logs as the patch that it is.
    assert granted - used - ON_A_MISSED_CHANGE - {("create", "secrets")} == set()


def _granted(plane: ControlPlane, kind: str) -> set[tuple[str, str]]:
    listed = yaml.safe_load(
        plane.kubectl(
            "get", kind, "--all-namespaces", "--selector", f"app.kubernetes.io/instance={RELEASE}", "--output", "yaml"
        )
    )
    return {right for role in listed["items"] for right in grants(role)}

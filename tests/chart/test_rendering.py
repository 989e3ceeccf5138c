"""The chart, rendered: what its values do, what it refuses, and what it grants."""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any

import pytest
import yaml

from streamhold_dev import binaries, processes
from streamhold_operator.api import GROUP, KINDS
from streamhold_operator.settings import parse_settings
from support.chart_values import CHART, documented, leaves, readme
from support.rendered import Refused, container, grants, of_kind, render, the

KINDS_BY_PLURAL = [f"{model.PLURAL}.{GROUP}" for model in KINDS.values()]
ON_KINDS = {
    *((verb, kind) for kind in KINDS_BY_PLURAL for verb in ("get", "list", "watch")),
    *(("patch", kind.replace(".", "/status.", 1)) for kind in KINDS_BY_PLURAL),
    ("patch", "streamtopics.streamhold.dev"),
    ("patch", "coordinationclients.streamhold.dev"),
}
IN_NAMESPACES = {
    *((verb, "secrets") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    ("create", "events"),
}
IN_CLUSTER = {(verb, "namespaces") for verb in ("get", "list", "watch")}

COMBINATIONS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "namespaces": {"namespaces": ["shop", "123"]},
    "crds elsewhere": {"crds": {"enabled": False}},
    "crds not kept": {"crds": {"keep": False}},
    "own account and roles": {"serviceAccount": {"create": False, "name": "mine"}, "rbac": {"create": False}},
    "image by digest": {
        "image": {"digest": "sha256:" + "0" * 64, "pullPolicy": "Never"},
        "imagePullSecrets": [{"name": "a"}],
    },
    "no metrics": {"operator": {"metricsPort": 0}},
    "every optional part": {
        "operator": {
            "clusterId": "a:",
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "workers": 1,
        },
        "serviceAccount": {"annotations": {"a": "b"}},
        "podLabels": {"team": "a", "app.kubernetes.io/instance": "not this"},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "fullnameOverride": "123",
        "replicaCount": 0,
    },
}


@pytest.mark.parametrize("values", COMBINATIONS.values(), ids=COMBINATIONS)
def test_every_combination_renders_to_whole_objects_that_carry_the_charts_labels(values: dict[str, Any]) -> None:
    for thing in render(values):
        assert thing["apiVersion"]
        assert isinstance(thing["metadata"]["name"], str)
        assert thing["metadata"]["labels"]["app.kubernetes.io/name"] == "streamhold"
        assert isinstance(thing["metadata"].get("namespace", ""), str)
    deployment = the(render(values), "Deployment")
    selector = deployment["spec"]["selector"]["matchLabels"].items()
    assert selector <= deployment["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("values", COMBINATIONS.values(), ids=COMBINATIONS)
def test_lint_has_nothing_to_say(values: dict[str, Any]) -> None:
    said = processes.run(
        [binaries.need("helm"), "lint", "--strict", "--quiet", CHART, "--values", "-"], input=yaml.safe_dump(values)
    )
    assert "WARNING" not in said
    assert "ERROR" not in said


@pytest.mark.parametrize("values", COMBINATIONS.values(), ids=COMBINATIONS)
def test_the_operator_understands_its_arguments(values: dict[str, Any]) -> None:
    objects = render(values)
    settings = parse_settings(container(objects)["args"], environment={})
    asked = values.get("operator", {})
    assert settings.namespaces == tuple(values.get("namespaces", ()))
    assert (settings.cluster_id, settings.workers) == (asked.get("clusterId", ""), asked.get("workers", 16))
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert ports == {
        "health": settings.liveness_port,
        **({"metrics": settings.metrics_port} if settings.metrics_port else {}),
    }


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_the_crds_are_there_and_kept_as_the_values_say(enabled: bool, keep: bool) -> None:
    definitions = of_kind(render({"crds": {"enabled": enabled, "keep": keep}}), "CustomResourceDefinition")
    assert {one["metadata"]["name"] for one in definitions} == (set(KINDS_BY_PLURAL) if enabled else set())
    for one in definitions:
        expected = {"helm.sh/resource-policy": "keep"} if keep else None
        assert one["metadata"].get("annotations") == expected


def test_by_default_the_crds_are_installed_and_kept() -> None:
    definitions = of_kind(render(), "CustomResourceDefinition")
    assert len(definitions) == 4
    assert all(one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep" for one in definitions)


def test_the_rights_are_exactly_those_of_the_calls_that_the_operator_makes() -> None:
    objects = render()
    assert grants(the(objects, "ClusterRole")) == ON_KINDS | IN_NAMESPACES | IN_CLUSTER
    assert of_kind(objects, "Role") == []
    account = {"kind": "ServiceAccount", "name": "sh-streamhold", "namespace": "system"}
    assert the(objects, "ClusterRoleBinding")["subjects"] == [account]


def test_with_a_list_of_namespaces_secrets_are_read_nowhere_else() -> None:
    objects = render({"namespaces": ["shop", "billing"]})
    assert grants(the(objects, "ClusterRole")) == ON_KINDS | IN_CLUSTER
    roles, bindings = of_kind(objects, "Role"), of_kind(objects, "RoleBinding")
    assert [role["metadata"]["namespace"] for role in roles] == ["shop", "billing"]
    assert [binding["metadata"]["namespace"] for binding in bindings] == ["shop", "billing"]
    assert [grants(role) for role in roles] == [IN_NAMESPACES, IN_NAMESPACES]
    for binding in bindings:
        assert binding["roleRef"]["name"] == roles[0]["metadata"]["name"]
        assert binding["subjects"][0]["namespace"] == "system"


@pytest.mark.parametrize("values", COMBINATIONS.values(), ids=COMBINATIONS)
def test_no_right_is_a_wildcard(values: dict[str, Any]) -> None:
    objects = render(values)
    for role in (*of_kind(objects, "ClusterRole"), *of_kind(objects, "Role")):
        assert not any("*" in word for right in grants(role) for word in right)
        assert not any(key in rule for rule in role["rules"] for key in ("nonResourceURLs",))


def test_the_pod_runs_without_root_rights_or_a_writable_file_system() -> None:
    pod = the(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(render())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}}]


def test_the_probes_ask_the_liveness_port() -> None:
    probed = container(render({"operator": {"livenessPort": 9000}}))
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert probed[probe]["httpGet"] == {"path": path, "port": "health"}
    assert {"name": "health", "containerPort": 9000} in probed["ports"]


def test_two_releases_of_one_name_in_two_namespaces_share_nothing_cluster_wide() -> None:
    def names(namespace: str) -> set[str]:
        objects = render({"crds": {"enabled": False}}, namespace=namespace)
        return {one["metadata"]["name"] for one in objects if one["kind"].startswith("ClusterRole")}

    assert names("a") & names("b") == set()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"replicaCount": 2}, "replicaCount is 2: it must be 0 or 1"),
        ({"serviceAccount": {"create": False}}, "name the service account the operator shall run under"),
        ({"operator": {"metricsPort": 8080}}, "are both 8080: choose two ports"),
        ({"operator": {"extraEnv": [{"name": "STREAMHOLD_WORKERS"}]}}, "operator.extraEnv sets STREAMHOLD_WORKERS"),
        ({"operatr": {}}, "additional properties 'operatr' not allowed"),
        ({"operator": {"loglevel": "info"}}, "additional properties 'loglevel' not allowed"),
        ({"crds": {"kept": True}}, "additional properties 'kept' not allowed"),
        ({"crds": {"keep": "yes"}}, "at '/crds/keep': got string, want boolean"),
        ({"image": {"pullPolicy": "always"}}, "at '/image/pullPolicy'"),
        ({"image": {"digest": "0123"}}, "at '/image/digest'"),
        ({"namespaces": "shop"}, "at '/namespaces': got string, want array"),
        ({"namespaces": ["shop", "shop"]}, "at '/namespaces'"),
        ({"namespaces": ["*"]}, "at '/namespaces/0'"),
        ({"operator": {"resyncInterval": 90}}, "at '/operator/resyncInterval': maximum: got 90, want 60"),
        ({"operator": {"clusterId": "a/b"}}, "at '/operator/clusterId'"),
        ({"rbac": {"enabled": True}}, "additional properties 'enabled' not allowed"),
        ({"serviceAccount": {"names": "a"}}, "additional properties 'names' not allowed"),
        ({"podLabels": {"a": 1}}, "at '/podLabels/a'"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_values_that_cannot_work_are_refused_with_a_sentence(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Refused) as refused:
        render(values)
    assert complaint in str(refused.value)


def test_the_schema_knows_exactly_the_values_there_are() -> None:
    def known(schema: dict[str, Any], path: str) -> set[str]:
        members = schema.get("properties")
        if members is None or schema["type"] != "object":
            return {path}
        return set().union(*(known(child, f"{path}.{name}".lstrip(".")) for name, child in members.items()))

    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    open_maps = ("podSecurityContext", "securityContext", "resources")
    there = {leaf.split(".")[0] if leaf.split(".")[0] in open_maps else leaf for leaf in leaves(values)}
    assert known(schema, "") - {"global"} == there


def test_every_value_is_explained_and_the_readme_lists_them() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    explained = [path for path, _, _ in documented()]
    assert [leaf for leaf in leaves(values) if not leaf.startswith(tuple(explained))] == []
    assert (CHART / "README.md").read_text() == readme(), "PYTHONPATH=tests .venv/bin/python -m support.chart_values"


def test_the_chart_has_the_version_of_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version("streamhold-operator") == version("streamhold")

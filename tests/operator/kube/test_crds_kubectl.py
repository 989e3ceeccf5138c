"""What a user of kubectl sees: the category, the columns, an empty diff, and the words of a refusal."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamhold_dev import processes
from streamhold_dev.controlplane import ControlPlane
from streamhold_operator.api import KINDS
from streamhold_operator.api.conditions import Reason, build, timestamp
from streamhold_operator.api.schema import RESOURCES, Resource
from support.crd_values import BASES, an_object

pytestmark = pytest.mark.usefixtures("crds")

CONDITIONS = [
    {
        "type": "Ready",
        "status": "False",
        "reason": "Unreachable",
        "message": "10.0.0.7:6379 does not answer",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    },
    {
        "type": "Reconciling",
        "status": "True",
        "reason": "Unreachable",
        "message": "10.0.0.7:6379 does not answer",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    },
]
STATUS: dict[str, dict[str, Any]] = {
    "RedisConnection": {"server": {"product": "Valkey", "version": "9.1.2"}, "nodes": 1, "capabilities": ["acl"]},
    "StreamTopic": {"effectiveName": "orders", "streamKey": "streamhold:shop:orders", "groups": ["billing"]},
    "LeasePolicy": {"keyPrefix": "streamhold:shop:lease:jobs/"},
    "CoordinationClient": {"binding": {"name": "checkout-streamhold"}, "username": "shop.checkout"},
}
ROWS = {
    "RedisConnection": ["redis:6379", "Valkey", "9.1.2"],
    "StreamTopic": ["main", "orders"],
    "LeasePolicy": ["main", "streamhold:shop:lease:jobs/"],
    "CoordinationClient": ["main", "shop.checkout", "checkout-streamhold"],
}


def test_the_category_lists_the_four_kinds_with_their_columns(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply([an_object(kind, specs[0], kind.lower()) for kind, specs in BASES.items()], namespace=namespace)
    for kind, status in STATUS.items():
        control_plane.kubectl(
            "patch", KINDS[kind].PLURAL, kind.lower(), "--namespace", namespace, "--subresource=status", "--type=merge",
            "--patch", json.dumps({"status": {**status, "conditions": CONDITIONS}}),
        )  # fmt: skip
    table = control_plane.kubectl("get", "streamhold", "--namespace", namespace).splitlines()
    wide = control_plane.kubectl("get", "streamhold", "--namespace", namespace, "--output", "wide")
    for kind, cells in ROWS.items():
        row = next(line.split() for line in table if line.startswith(f"{kind.lower()}.streamhold.dev/"))
        assert row[1:-1] == [*cells, "False", "Unreachable"]
    assert wide.count("10.0.0.7:6379 does not answer") == len(ROWS)
    assert "does not answer" not in "\n".join(table)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.model.KIND)
def test_the_short_name_works(resource: Resource, control_plane: ControlPlane, namespace: str) -> None:
    kind = resource.model.KIND
    control_plane.apply(an_object(kind, BASES[kind][0]), namespace=namespace)
    listed = control_plane.kubectl("get", resource.short, "--namespace", namespace, "--output", "name")
    assert listed.strip() == f"{kind.lower()}.streamhold.dev/probe"


@pytest.mark.parametrize("kind", list(BASES))
def test_case_O22_a_diff_right_after_apply_is_empty(
    kind: str, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text(
        yaml.safe_dump_all([an_object(kind, spec, f"probe-{number}") for number, spec in enumerate(BASES[kind])])
    )
    control_plane.kubectl("apply", "--namespace", namespace, "--filename", manifest)
    assert control_plane.kubectl("diff", "--namespace", namespace, "--filename", manifest) == ""
    listed = json.loads(control_plane.kubectl("get", KINDS[kind].PLURAL, "--namespace", namespace, "--output", "json"))
    stored = {item["metadata"]["name"]: item["spec"] for item in listed["items"]}
    assert stored == {f"probe-{number}": spec for number, spec in enumerate(BASES[kind])}


@pytest.mark.parametrize("kind", list(BASES))
def test_the_models_read_and_write_what_the_api_server_stores(
    kind: str, control_plane: ControlPlane, namespace: str
) -> None:
    for spec in BASES[kind]:
        control_plane.apply(an_object(kind, spec), namespace=namespace)
        raw = control_plane.get(KINDS[kind].PLURAL, "probe", namespace)
        read = KINDS[kind].parse(raw)
        assert (read.metadata.name, read.metadata.namespace) == ("probe", namespace)
        assert read.metadata.uid == raw["metadata"]["uid"]
        written = {**read.to_dict(), "apiVersion": raw["apiVersion"], "kind": kind, "metadata": {"name": "again"}}
        control_plane.kubectl(
            "apply", "--server-side", "--dry-run=server", "--namespace", namespace, "--filename", "-",
            input=json.dumps(written),
        )  # fmt: skip
        control_plane.kubectl("delete", KINDS[kind].PLURAL, "probe", "--namespace", namespace)


def test_the_api_server_takes_every_reason_as_a_condition(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.apply(an_object("LeasePolicy", BASES["LeasePolicy"][0]), namespace=namespace)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for reason in Reason:
        conditions = build((), reason, "x" * 100_000, generation=1, now=now)
        status = {"conditions": [condition.to_dict() for condition in conditions]}
        control_plane.kubectl(
            "patch", "lpol", "probe", "--namespace", namespace, "--subresource=status", "--type=merge",
            "--dry-run=server", "--patch", json.dumps({"status": status}),
        )  # fmt: skip
        assert {condition.last_transition_time for condition in conditions} == {timestamp(now)}


def test_a_refused_manifest_names_the_object_the_field_and_what_is_allowed(
    control_plane: ControlPlane, namespace: str
) -> None:
    with pytest.raises(processes.CommandFailed) as refused:
        control_plane.apply(
            an_object("StreamTopic", {"connectionRef": {"name": "main"}, "idleTtl": "soon"}), namespace=namespace
        )
    assert 'The StreamTopic "probe" is invalid: spec.idleTtl' in refused.value.stderr
    assert "must be 0s (never) or a duration from 1s to 87600h" in refused.value.stderr

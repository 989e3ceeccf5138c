"""What README and docs show works: their Python blocks run against a real server, their manifests are applied."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import yaml

import streamhold
from streamhold_dev import folders, reference
from streamhold_dev.controlplane import ControlPlane
from streamhold_dev.redisserver import RedisServer
from streamhold_operator.adapters.redis import AdminTarget, RedisAdmin
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.actions import CreateGroup
from streamhold_operator.domain.connection import Endpoint

pytestmark = pytest.mark.anyio

DOCUMENTS = [
    folders.REPOSITORY / "README.md",
    folders.REPOSITORY / "library" / "README.md",
    *sorted((folders.REPOSITORY / "docs").rglob("*.md")),
]
TOPICS = ("orders", "receipts")
LEASES = ("reports/", "jobs/")


class Billed(Exception):
    """Raised by the stand-in for the reader's own code: the endless loops of the documents end with it."""


def blocks(language: str) -> list[Any]:
    """All fenced blocks in a language, each with the document and line it starts at as its id."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text()
        for match in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            where = f"{document.relative_to(folders.REPOSITORY)}:{line}"
            found.append(pytest.param(textwrap.dedent(match[1]), id=where))
    return found


@pytest.fixture
def binding(tmp_path: Path, redis_server: RedisServer, key_prefix: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A binding folder as the operator would fill it, for the admin of the tests' server."""
    folder = tmp_path / "binding"
    folder.mkdir()
    topic = {
        "prefix": key_prefix,
        "family": False,
        "access": ["Publish", "Consume", "Manage"],
        "maxLength": 1000,
        "idleTtlMs": 0,
        "reclaimIntervalMs": 1000,
        "reclaimMinIdleMs": 3000,
        "maxDeliveryAttempts": 5,
        "inFlightTimeoutMs": 0,
        "deadLetter": {"enabled": False, "maxLength": 1000},
        "groups": [],
    }
    lease = {
        "prefix": key_prefix,
        "ttlMs": 5000,
        "renewIntervalMs": 1000,
        "lockDelayMs": 0,
        "fencing": True,
        "maxHoldMs": 0,
    }
    document = {
        "version": 1,
        "client": {"namespace": "docs", "name": "reader"},
        "connection": {
            "topology": "Standalone",
            "endpoints": [f"{redis_server.host}:{redis_server.port}"],
            "database": 0,
            "tls": None,
        },
        "topics": [{"name": name, "topic": name, **topic} for name in TOPICS],
        "leases": [{"name": keys, "keys": keys, **lease} for keys in LEASES],
    }
    entries = {
        "type": "redis",
        "provider": "streamhold",
        "host": redis_server.host,
        "port": str(redis_server.port),
        "database": "0",
        "uri": redis_server.url(),
        "username": redis_server.admin_username,
        "password": redis_server.password or "",
        "streamhold.json": json.dumps(document),
    }
    for name, value in entries.items():
        (folder / name).write_text(value)
    monkeypatch.setenv("STREAMHOLD_BINDING", str(folder))
    return folder


@pytest.mark.parametrize("code", blocks("python"))
async def test_a_python_block_of_the_documents_runs(code: str, binding: Path) -> None:
    billed: list[Any] = []

    async def bill(event: Any) -> None:
        billed.append(event)
        raise Billed

    async def work(*_: Any, **__: Any) -> None:
        return None

    if "asyncio.run(" in code:  # a whole program
        await anyio.to_thread.run_sync(exec, compile(code, "document", "exec"), {})
        return
    names: dict[str, Any] = {"streamhold": streamhold, "bill": bill, "write_report": work}
    body = textwrap.indent(code, "    ")
    exec(compile(f"async def block():\n{body}", "document", "exec"), names)
    try:
        await names["block"]()
    except Billed:
        assert billed[0]["data"] == {"id": 7}
    assert billed or "bill(" not in code


@pytest.mark.parametrize("manifest", blocks("yaml"))
def test_a_manifest_of_the_documents_is_accepted(
    manifest: str, control_plane: ControlPlane, crds: None, namespace: str
) -> None:
    whole = [one for one in yaml.safe_load_all(manifest) if "kind" in one]
    for one in whole:
        control_plane.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", input=yaml.safe_dump(one))
    assert whole or "containers:" in manifest


def test_every_reason_is_explained() -> None:
    explained = (folders.REPOSITORY / "docs" / "reference" / "conditions.md").read_text()
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in explained] == []


async def test_the_redis_user_of_the_guide_has_the_rights_that_the_operator_needs(
    any_redis_server: RedisServer, key_prefix: str
) -> None:
    guide = (folders.REPOSITORY / "docs" / "guide" / "getting-started.md").read_text()
    found = re.search(r"^ACL SETUSER streamhold (.*)$", guide, re.MULTILINE)
    assert found is not None
    any_redis_server.cli("ACL", "SETUSER", "guide-admin", *found[1].split())
    login = {"username": "guide-admin", "password": "secret"}
    admin = RedisAdmin(AdminTarget(endpoint=Endpoint(any_redis_server.host, any_redis_server.port), **login), timeout=5)
    try:
        facts = await admin.probe()
        assert facts.missing_rights == ()
        key = f"streamhold:{key_prefix}:orders"
        made = await admin.apply([CreateGroup(key=key, group="billing", start="0", idle_ttl_ms=1000)])
        assert [result.failure for result in made] == [None]
    finally:
        await admin.aclose()
        any_redis_server.cli("ACL", "DELUSER", "guide-admin")


def test_the_reference_of_the_resources_is_what_the_definitions_say() -> None:
    assert reference.PAGE.read_text() == reference.page(), "stale: run `make crds`"

"""The binding Secret: what a pod needs to use its topics and leases, as `streamhold.connect()` reads it.

Equal input gives equal bytes, so that a Secret is written only when something changed. Entries are never renamed
during the life of a client, and readers ignore members that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from streamhold_operator.api.v1alpha1.coordinationclient import Access
from streamhold_operator.api.v1alpha1.redisconnection import Topology
from streamhold_operator.domain.connection import Endpoint
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant

__all__ = ["SECRET_TYPE", "BindingConnection", "binding_data", "binding_labels"]

SECRET_TYPE = "servicebinding.io/redis"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingConnection:
    """The connection as pods see it."""

    endpoints: tuple[Endpoint, ...]
    topology: Topology = Topology.STANDALONE
    database: int = 0
    tls: bool = False
    server_name: str | None = None
    """The name in the server's certificate, where it is not the host."""
    ca: bytes | None = None
    """CA certificates in PEM; only with TLS."""


def binding_labels(client: str) -> dict[str, str]:
    """Return the labels that the Secret always carries."""
    return {"app.kubernetes.io/managed-by": "streamhold", "streamhold.dev/client": client}


def binding_data(
    *,
    namespace: str,
    client: str,
    username: str,
    password: str,
    connection: BindingConnection,
    topics: Sequence[TopicGrant],
    leases: Sequence[LeaseGrant],
) -> dict[str, bytes]:
    """Return the entries of the Secret."""
    first = connection.endpoints[0]
    scheme = "rediss" if connection.tls else "redis"
    host = f"[{first.host}]" if ":" in first.host else first.host
    login = f"{quote(username, safe='')}:{quote(password, safe='')}"
    entries: dict[str, bytes] = {
        "type": b"redis",
        "provider": b"streamhold",
        "host": first.host.encode(),
        "port": str(first.port).encode(),
        "uri": f"{scheme}://{login}@{host}:{first.port}/{connection.database}".encode(),
        "username": username.encode(),
        "password": password.encode(),
        "database": str(connection.database).encode(),
        "streamhold.json": _document(namespace, client, connection, topics, leases),
    }
    if connection.tls and connection.ca is not None:
        entries["ca.crt"] = connection.ca
    return entries


def _document(
    namespace: str,
    client: str,
    connection: BindingConnection,
    topics: Sequence[TopicGrant],
    leases: Sequence[LeaseGrant],
) -> bytes:
    document = {
        "version": VERSION,
        "client": {"namespace": namespace, "name": client},
        "connection": {
            "topology": connection.topology.value,
            "endpoints": [str(endpoint) for endpoint in connection.endpoints],
            "database": connection.database,
            "tls": {"serverName": connection.server_name} if connection.tls else None,
        },
        "topics": sorted((_topic(topic, namespace) for topic in topics), key=_by_name),
        "leases": sorted((_lease(lease, namespace) for lease in leases), key=_by_name),
    }
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False).encode() + b"\n"


def _by_name(entry: Mapping[str, object]) -> tuple[str, bool]:
    return (str(entry["name"]), bool(entry.get("family")))


def _topic(topic: TopicGrant, namespace: str) -> dict[str, object]:
    spec = topic.spec
    return {
        "name": topic.name_for(namespace),
        "topic": topic.topic,
        "prefix": topic.prefix,
        "family": topic.family,
        "access": [access.value for access in Access if access in topic.access],
        "maxLength": spec.max_length,
        "idleTtlMs": spec.idle_ttl_ms,
        "reclaimIntervalMs": spec.reclaim.interval_ms,
        "reclaimMinIdleMs": spec.reclaim.min_idle_ms,
        "maxDeliveryAttempts": spec.max_delivery_attempts,
        "inFlightTimeoutMs": spec.in_flight_timeout_ms,
        "deadLetter": {"enabled": spec.dead_letter.enabled, "maxLength": spec.dead_letter.max_length},
        "groups": [
            {"name": group.name, "startFrom": group.start_from.value}
            for group in sorted(spec.groups, key=lambda group: group.name)
        ],
    }


def _lease(lease: LeaseGrant, namespace: str) -> dict[str, object]:
    spec = lease.spec
    return {
        "name": lease.name_for(namespace),
        "keys": lease.keys,
        "prefix": lease.prefix,
        "ttlMs": spec.ttl_ms,
        "renewIntervalMs": spec.renew_interval_ms,
        "lockDelayMs": spec.lock_delay_ms,
        "fencing": spec.fencing,
        "maxHoldMs": spec.max_hold_ms,
    }

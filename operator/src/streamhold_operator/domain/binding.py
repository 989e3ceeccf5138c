"""The binding Secret: what a pod needs to use its topics and leases, as `streamhold.connect()` reads it.

Equal input gives equal bytes, so that a Secret is written only when something changed. Entries are never renamed
during the life of a client, and readers ignore members that they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from streamhold_operator.domain.connection import Endpoint, Topology
from streamhold_operator.domain.grants import Group, LeaseGrant, TopicGrant

__all__ = ["SECRET_TYPE", "BindingConnection", "binding_data", "binding_labels", "default_secret_name"]

SECRET_TYPE = "servicebinding.io/redis"
VERSION = 1
_ACCESS_ORDER = ("Publish", "Consume", "Manage")


@dataclass(frozen=True, slots=True, kw_only=True)
class BindingConnection:
    """The connection as pods see it."""

    endpoints: tuple[Endpoint, ...]
    topology: Topology = "Standalone"
    database: int = 0
    tls: bool = False
    server_name: str | None = None
    """The name in the server's certificate, where it is not the host."""
    ca: bytes | None = None
    """CA certificates in PEM; only with TLS."""


def default_secret_name(client: str) -> str:
    """Return the name of a client's Secret where the spec names none."""
    return f"{client}-streamhold"


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
            "topology": connection.topology,
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
    settings = topic.settings
    return {
        "name": topic.name_for(namespace),
        "topic": topic.topic,
        "prefix": topic.prefix,
        "family": topic.family,
        "access": [access for access in _ACCESS_ORDER if access in topic.access],
        "maxLength": settings.max_length,
        "idleTtlMs": settings.idle_ttl_ms,
        "reclaimIntervalMs": settings.reclaim_interval_ms,
        "reclaimMinIdleMs": settings.reclaim_min_idle_ms,
        "maxDeliveryAttempts": settings.max_delivery_attempts,
        "inFlightTimeoutMs": settings.in_flight_timeout_ms,
        "deadLetter": {"enabled": settings.dead_letter.enabled, "maxLength": settings.dead_letter.max_length},
        "groups": [{"name": group.name, "startFrom": group.start_from} for group in _groups(topic)],
    }


def _groups(topic: TopicGrant) -> list[Group]:
    return sorted(topic.groups, key=lambda group: group.name)


def _lease(lease: LeaseGrant, namespace: str) -> dict[str, object]:
    settings = lease.settings
    renew = settings.renew_interval_ms
    return {
        "name": lease.name_for(namespace),
        "keys": lease.keys,
        "prefix": lease.prefix,
        "ttlMs": settings.ttl_ms,
        "renewIntervalMs": max(1, settings.ttl_ms // 3) if renew is None else renew,
        "lockDelayMs": settings.lock_delay_ms,
        "fencing": settings.fencing,
        "maxHoldMs": settings.max_hold_ms,
    }

"""The binding Secret, byte by byte."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from streamhold_operator.domain.binding import SECRET_TYPE, BindingConnection, binding_data, binding_labels
from streamhold_operator.domain.connection import Endpoint
from support.operator_objects import lease_grant, topic_grant

LOCAL = BindingConnection(endpoints=(Endpoint("127.0.0.1", 6379),))


def data(connection: BindingConnection = LOCAL, **rest: Any) -> dict[str, bytes]:
    settings: dict[str, Any] = {
        "namespace": "shop",
        "client": "checkout",
        "username": "shop.checkout",
        "password": "secret",
        "topics": [],
        "leases": [],
        **rest,
    }
    return binding_data(connection=connection, **settings)


def test_the_well_known_entries_are_there() -> None:
    entries = data()
    document = entries.pop("streamhold.json")
    assert entries == {
        "type": b"redis",
        "provider": b"streamhold",
        "host": b"127.0.0.1",
        "port": b"6379",
        "uri": b"redis://shop.checkout:secret@127.0.0.1:6379/0",
        "username": b"shop.checkout",
        "password": b"secret",
        "database": b"0",
    }
    assert json.loads(document) == {
        "version": 1,
        "client": {"namespace": "shop", "name": "checkout"},
        "connection": {"topology": "Standalone", "endpoints": ["127.0.0.1:6379"], "database": 0, "tls": None},
        "topics": [],
        "leases": [],
    }
    assert SECRET_TYPE == "servicebinding.io/redis"
    assert binding_labels("checkout") == {
        "app.kubernetes.io/managed-by": "streamhold",
        "streamhold.dev/client": "checkout",
    }


def test_tls_adds_the_authority_and_changes_the_scheme() -> None:
    tls = BindingConnection(
        endpoints=(Endpoint("::1", 6380),), database=2, tls=True, server_name="redis.example.com", ca=b"PEM"
    )
    entries = data(tls)
    assert entries["uri"] == b"rediss://shop.checkout:secret@[::1]:6380/2"
    assert entries["ca.crt"] == b"PEM"
    connection = json.loads(entries["streamhold.json"])["connection"]
    assert connection["tls"] == {"serverName": "redis.example.com"}
    assert connection["endpoints"] == ["[::1]:6380"]
    system = BindingConnection(endpoints=(Endpoint("h", 1),), tls=True)
    assert "ca.crt" not in data(system)
    assert json.loads(data(system)["streamhold.json"])["connection"]["tls"] == {"serverName": None}


def test_topics_and_leases_carry_their_settings_in_milliseconds() -> None:
    topics = [
        topic_grant("run.", "Consume", family=True, namespace="agents", prefix="streamhold:agents"),
        topic_grant(
            "orders",
            "Consume",
            "Publish",
            groups=("billing",),
            latest=("audit",),
            maxLength=7,
            idleTtl="1h",
            reclaim={"interval": "10s", "minIdle": "20s"},
            maxDeliveryAttempts=3,
            inFlightTimeout="90s",
            deadLetter={"enabled": True, "maxLength": 9},
        ),
    ]
    leases = [
        lease_grant("jobs/", ttl="10s", lockDelay="1s", fencing=False, maxHold="1h"),
        lease_grant("a/", namespace="b"),
    ]
    document = json.loads(data(topics=topics, leases=leases)["streamhold.json"])
    assert [topic["name"] for topic in document["topics"]] == ["agents/run.", "orders"]
    assert document["topics"][1] == {
        "name": "orders",
        "topic": "orders",
        "prefix": "streamhold:shop",
        "family": False,
        "access": ["Publish", "Consume"],
        "maxLength": 7,
        "idleTtlMs": 3_600_000,
        "reclaimIntervalMs": 10_000,
        "reclaimMinIdleMs": 20_000,
        "maxDeliveryAttempts": 3,
        "inFlightTimeoutMs": 90_000,
        "deadLetter": {"enabled": True, "maxLength": 9},
        "groups": [{"name": "audit", "startFrom": "Latest"}, {"name": "billing", "startFrom": "Earliest"}],
    }
    assert document["topics"][0]["family"] is True
    assert document["topics"][0]["topic"] == "run."
    assert [lease["name"] for lease in document["leases"]] == ["b/a/", "jobs/"]
    assert document["leases"][1] == {
        "name": "jobs/",
        "keys": "jobs/",
        "prefix": "streamhold:shop",
        "ttlMs": 10_000,
        "renewIntervalMs": 3_333,
        "lockDelayMs": 1_000,
        "fencing": False,
        "maxHoldMs": 3_600_000,
    }


def test_the_order_of_grants_makes_no_difference() -> None:
    topics = [topic_grant(name, "Publish") for name in ("a", "b", "c")]
    leases = [lease_grant(name) for name in ("x/", "y/")]
    assert data(topics=topics, leases=leases) == data(topics=topics[::-1], leases=leases[::-1])


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_login_survives_the_uri(username: str, password: str) -> None:
    uri = data(username=username, password=password)["uri"].decode()
    parts = urlsplit(uri)
    assert (parts.hostname, parts.port, parts.path) == ("127.0.0.1", 6379, "/0")
    assert unquote(parts.username or "") == username
    assert unquote(parts.password or "") == password

"""The models: defaults, effective values, who is allowed, and reading of what is not as it should be."""

from __future__ import annotations

import pytest

from streamhold_operator.api import InvalidObject, parse
from streamhold_operator.api.base import AllowedNamespaces, ConnectionRef
from streamhold_operator.api.v1alpha1.coordinationclient import CoordinationClientSpec, Rotation
from streamhold_operator.api.v1alpha1.leasepolicy import LeasePolicySpec
from streamhold_operator.api.v1alpha1.redisconnection import RedisConnectionSpec
from streamhold_operator.api.v1alpha1.streamtopic import StreamTopicSpec

REF = ConnectionRef(name="main")


def test_the_defaults_are_those_of_the_reference() -> None:
    topic = StreamTopicSpec(connection_ref=REF)
    assert (topic.max_length, topic.idle_ttl_ms, topic.max_delivery_attempts) == (10000, 0, 5)
    assert (topic.reclaim.interval_ms, topic.reclaim.min_idle_ms, topic.in_flight_timeout_ms) == (30_000, 60_000, 0)
    assert (topic.dead_letter.enabled, topic.dead_letter.max_length, topic.groups) == (False, 10000, ())
    lease = LeasePolicySpec(connection_ref=REF)
    assert (lease.ttl_ms, lease.renew_interval_ms, lease.lock_delay_ms, lease.max_hold_ms) == (15_000, 5_000, 0, 0)
    assert lease.fencing
    connection = RedisConnectionSpec(endpoints=("redis:6379",))
    assert (connection.topology, connection.access, connection.database) == ("Standalone", "Managed", 0)
    assert connection.unreachable_deletion.after_ms == 600_000


def test_effective_names_come_from_the_spec_else_from_the_object() -> None:
    assert StreamTopicSpec(connection_ref=REF).effective_topic("orders") == "orders"
    assert StreamTopicSpec(connection_ref=REF, topic="a").effective_topic("orders") == "a"
    family = StreamTopicSpec(connection_ref=REF, topic_prefix="agent.run.")
    assert (family.is_family, family.effective_topic("orders")) == (True, "agent.run.")
    assert LeasePolicySpec(connection_ref=REF).effective_keys("jobs") == "jobs/"
    assert LeasePolicySpec(connection_ref=REF, keys="a:").effective_keys("jobs") == "a:"
    client = CoordinationClientSpec(connection_ref=REF)
    assert client.effective_username("shop", "checkout") == "shop.checkout"
    assert client.effective_secret_name("checkout") == "checkout-streamhold"
    named = CoordinationClientSpec(connection_ref=REF, username="u", secret_name="s")
    assert (named.effective_username("shop", "checkout"), named.effective_secret_name("checkout")) == ("u", "s")


@pytest.mark.parametrize(
    ("written", "effective"),
    [(None, "streamhold:shop"), ("mastra:topic", "mastra:topic"), ("{namespace}:{namespace}", "shop:shop")],
)
def test_the_key_prefix_is_that_of_the_object_that_uses_the_connection(written: str | None, effective: str) -> None:
    spec = RedisConnectionSpec(endpoints=("redis:6379",), key_prefix=written)
    assert spec.effective_key_prefix("shop") == effective


@pytest.mark.parametrize(
    ("every", "overlap", "milliseconds"), [("24h", None, 3_600_000), ("1m", None, 30_000), ("1h", "5s", 5_000)]
)
def test_the_overlap_of_a_rotation_is_shorter_than_its_period(
    every: str, overlap: str | None, milliseconds: int
) -> None:
    assert Rotation(every=every, overlap=overlap).overlap_ms == milliseconds


SELECTOR_CASES = [
    ({}, {}, False),
    ({"from": "All"}, {}, True),
    ({"from": "Same"}, {"team": "a"}, False),
    ({"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}, {"team": "a"}, True),
    ({"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}, {"team": "b"}, False),
    ({"from": "Selector", "selector": {"matchLabels": {"team": "a", "x": "y"}}}, {"team": "a"}, False),
    *(
        (
            {"from": "Selector", "selector": {"matchExpressions": [{"key": "team", "operator": operator, **values}]}},
            labels,
            allowed,
        )
        for operator, values, labels, allowed in [
            ("In", {"values": ["a", "b"]}, {"team": "b"}, True),
            ("In", {"values": ["a", "b"]}, {"team": "c"}, False),
            ("In", {"values": ["a"]}, {}, False),
            ("NotIn", {"values": ["a"]}, {"team": "a"}, False),
            ("NotIn", {"values": ["a"]}, {}, True),
            ("Exists", {}, {"team": ""}, True),
            ("Exists", {}, {}, False),
            ("DoesNotExist", {}, {}, True),
            ("DoesNotExist", {}, {"team": ""}, False),
        ]
    ),
]


@pytest.mark.parametrize(("written", "labels", "allowed"), SELECTOR_CASES)
def test_another_namespace_is_allowed_by_all_or_by_its_labels(
    written: dict[str, object], labels: dict[str, str], allowed: bool
) -> None:
    rule = AllowedNamespaces.model_validate(written)
    assert rule.allows("shop", "other", labels) is allowed
    assert rule.allows("shop", "shop", labels) is True


def test_an_object_that_the_models_cannot_read_names_itself_and_the_field() -> None:
    raw = {
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {"connectionRef": {"name": "a"}, "maxLength": -1},
    }
    with pytest.raises(InvalidObject) as unreadable:
        parse("StreamTopic", raw)
    assert "StreamTopic shop/orders cannot be read: spec.maxLength" in str(unreadable.value)
    assert (unreadable.value.kind, unreadable.value.namespace, unreadable.value.name) == (
        "StreamTopic",
        "shop",
        "orders",
    )


def test_unknown_members_of_a_newer_version_are_ignored_and_objects_cannot_be_changed() -> None:
    raw = {"metadata": {"name": "jobs"}, "spec": {"connectionRef": {"name": "a", "new": 1}, "new": {}}, "new": 1}
    policy = parse("LeasePolicy", raw)
    assert policy.metadata.name == "jobs"
    with pytest.raises(ValueError, match="frozen"):
        policy.metadata = policy.metadata

"""Builders of API objects and grants for tests of the operator."""

from __future__ import annotations

import itertools
from typing import Any

from streamhold_operator.api.v1alpha1.coordinationclient import Access, CoordinationClient
from streamhold_operator.api.v1alpha1.leasepolicy import LeasePolicy
from streamhold_operator.api.v1alpha1.streamtopic import StreamTopic
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant

CLUSTER = "11111111-2222-3333-4444-555555555555"
"""A cluster's id."""
_numbers = itertools.count(1)


def metadata(
    name: str, *, namespace: str = "shop", uid: str | None = None, created: str | None = None
) -> dict[str, Any]:
    """Metadata as the API server fills it; later objects are younger."""
    number = next(_numbers)
    return {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"00000000-0000-0000-0000-{number:012d}",
        "creationTimestamp": created or f"2026-01-01T00:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "generation": 1,
    }


def a_topic(
    name: str = "orders", *, groups: tuple[str, ...] = (), latest: tuple[str, ...] = (), **rest: Any
) -> StreamTopic:
    """A StreamTopic; what is not metadata goes to its spec."""
    about = {option: rest.pop(option) for option in ("namespace", "uid", "created") if option in rest}
    declared = [{"name": group} for group in groups] + [{"name": group, "startFrom": "Latest"} for group in latest]
    spec = {"connectionRef": {"name": "main"}, "groups": declared, **rest}
    return StreamTopic.parse({"metadata": metadata(name, **about), "spec": spec})


def a_policy(name: str = "jobs", **rest: Any) -> LeasePolicy:
    """A LeasePolicy; what is not metadata goes to its spec."""
    about = {option: rest.pop(option) for option in ("namespace", "uid", "created") if option in rest}
    return LeasePolicy.parse({"metadata": metadata(name, **about), "spec": {"connectionRef": {"name": "main"}, **rest}})


def a_client(name: str = "checkout", *, provisioned: bool = False, **rest: Any) -> CoordinationClient:
    """A CoordinationClient; what is not metadata goes to its spec."""
    about = {option: rest.pop(option) for option in ("namespace", "uid", "created") if option in rest}
    raw = {"metadata": metadata(name, **about), "spec": {"connectionRef": {"name": "main"}, **rest}}
    client = CoordinationClient.parse(raw)
    if not provisioned:
        return client
    username = client.spec.effective_username(client.metadata.namespace, name)
    return CoordinationClient.parse({**raw, "status": {"username": username}})


def topic_grant(
    topic: str, *access: str, prefix: str = "streamhold:shop", family: bool = False, **rest: Any
) -> TopicGrant:
    """A grant of one topic, or of all that start like this."""
    name = {"topicPrefix": topic} if family else {"topic": topic}
    made = a_topic("topic", **name, **rest)
    return TopicGrant.of(made, prefix=prefix, access=frozenset(Access(one) for one in access))


def lease_grant(keys: str, *, prefix: str = "streamhold:shop", **rest: Any) -> LeaseGrant:
    """A grant of a family of leases."""
    return LeaseGrant.of(a_policy("policy", keys=keys, **rest), prefix=prefix)

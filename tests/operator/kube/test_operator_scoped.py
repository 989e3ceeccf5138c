"""Serving a list of namespaces: the chart grants rights only there, and the operator needs no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync
from support.operator_world import World, a_client, a_connection, a_login, a_policy, a_topic


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(
        tmp_path_factory.mktemp("world"), "--compare-interval", "1", scope=("team-a", "team-b", "team-c", "team-d")
    )
    yield made
    # With team-c goes what grants rights in it; that a Secret there cannot be read any more must stop nothing.
    refused = [entry for entry in made.forbidden() if entry.namespace != "team-c"]
    made.close()
    assert not refused, f"the chart's rights do not suffice: {[str(entry) for entry in refused]}"


def test_only_the_listed_namespaces_are_served_and_their_rights_suffice(
    world: World, redis_server: RedisServer
) -> None:
    outside = world.namespace()
    for namespace in (outside, "team-a", "team-b"):
        world.create(namespace, a_login(redis_server), a_connection(redis_server), a_topic("orders"), a_policy("jobs"))
        world.create(namespace, a_client("app", {"orders": ["Publish"]}, leases=[{"name": "jobs"}]))
    for namespace in ("team-a", "team-b"):
        for kind, name in (("RedisConnection", "main"), ("StreamTopic", "orders"), ("LeasePolicy", "jobs")):
            world.wait_ready(kind, namespace, name)
        world.wait_ready("CoordinationClient", namespace, "app")
        world.delete("CoordinationClient", namespace, "app")
        world.wait_gone("CoordinationClient", namespace, "app")
    untouched = world.get("StreamTopic", outside, "orders")
    assert untouched is not None
    assert "status" not in untouched
    assert not world.operator.server.tail(200).count("Traceback")


def test_a_served_namespace_that_goes_away_ends_it_in_order_and_the_others_are_served_by_the_next(
    world: World, redis_server: RedisServer
) -> None:
    world.create("team-c", a_login(redis_server), a_connection(redis_server))
    world.create("team-c", a_topic("orders", deletionPolicy="Delete"), a_client("app", {"orders": ["Publish"]}))
    world.wait_ready("CoordinationClient", "team-c", "app")
    world.delete("Namespace", "", "team-c")
    world.wait_gone("Namespace", "", "team-c", timeout=60)
    eventually_sync(lambda: not world.operator.server.alive, message="it goes on with a namespace that is gone")
    assert world.operator.server.wait(1) == 0
    world.start_operator()
    world.create("team-d", a_login(redis_server), a_connection(redis_server))
    world.create("team-d", a_topic("orders"), a_client("app", {"orders": ["Publish"]}))
    world.wait_ready("CoordinationClient", "team-d", "app")

"""The operator as a process: silent when idle and after a restart, quick to end, honest on its endpoints."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync
from support.operator_world import (
    ACCOUNT,
    SYSTEM,
    USER,
    OperatorProcess,
    World,
    a_client,
    a_connection,
    a_login,
    a_policy,
    a_topic,
    lets_in,
)

WRITING = frozenset(
    {
        *("set", "del", "unlink", "hset", "hdel", "xadd", "xtrim", "xdel", "pexpire", "eval", "evalsha", "flushall"),
        *("xgroup|create", "xgroup|destroy", "acl|setuser", "acl|deluser", "acl|save"),
    }
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "--resync-interval", "2", "--compare-interval", "3")
    yield made
    refused = made.forbidden()
    made.close()
    assert not refused, f"the chart's rights do not suffice: {[str(entry) for entry in refused]}"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password="admin-of-the-process-tests") as started:
        yield started


@pytest.fixture(scope="module")
def namespace(world: World, server: RedisServer) -> Iterator[str]:
    """A namespace with 50 objects, all Ready; shared, so tests change objects of their own only."""
    name = world.namespace()
    topics = [f"topic-{number}" for number in range(30)]
    world.create(
        name,
        a_login(server),
        a_connection(server),
        *[a_topic(topic, groups=[{"name": "g"}], idleTtl="1h" if topic.endswith("3") else "0s") for topic in topics],
        *[a_policy(f"policy-{number}") for number in range(9)],
        *[a_client(f"client-{number}", {topics[number]: ["Publish", "Consume"]}) for number in range(10)],
    )
    world.wait_ready("RedisConnection", name, "main")
    kinds = [("StreamTopic", "topic", 30), ("LeasePolicy", "policy", 9), ("CoordinationClient", "client", 10)]
    for kind, prefix, count in kinds:
        for number in range(count):
            world.wait_ready(kind, name, f"{prefix}-{number}")
    yield name
    world.delete("Namespace", "", name)
    world.wait_gone("Namespace", "", name, timeout=60)


def redis_writes(server: RedisServer) -> dict[str, int]:
    """How often each writing command was called."""
    stats = server.cli("INFO", "commandstats")
    named = {name.removeprefix("cmdstat_"): int(values["calls"]) for name, values in stats.items()}
    return {name: calls for name, calls in named.items() if name in WRITING}


def assert_silent(world: World, server: RedisServer, seconds: float) -> None:
    """Nothing is written for a while, at the API server or in Redis; things are read, or it would prove nothing."""
    before, since = redis_writes(server), world.plane.audit_log.position()
    reads = int(server.cli("INFO", "commandstats")["cmdstat_hgetall"]["calls"])
    time.sleep(seconds)
    assert [str(entry) for entry in world.writes(since)] == []
    assert redis_writes(server) == before
    assert int(server.cli("INFO", "commandstats")["cmdstat_hgetall"]["calls"]) > reads
    assert world.plane.audit(user=USER, since=since)


def test_idle_with_fifty_objects_nothing_is_written(world: World, server: RedisServer, namespace: str) -> None:
    assert_silent(world, server, 15)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_case_o14_idle_for_two_minutes_nothing_is_written(world: World, server: RedisServer, namespace: str) -> None:
    assert_silent(world, server, 120)


def test_a_restart_writes_nothing_and_ends_in_time(world: World, server: RedisServer, namespace: str) -> None:
    since, before = world.plane.audit_log.position(), redis_writes(server)
    seconds, code = world.operator.stop(signal.SIGTERM)
    assert (seconds < 5, code) == (True, 0), (seconds, code)
    world.start_operator()
    checked = 'streamhold_reconciles_total{kind="CoordinationClient",result="done"}'
    eventually_sync(lambda: checked in world.operator.page("/metrics")[1], message="no client was looked at")
    assert_silent(world, server, 5)
    assert [str(entry) for entry in world.writes(since)] == []
    assert redis_writes(server) == before


def test_it_ends_in_time_while_redis_hangs(world: World, server: RedisServer, namespace: str) -> None:
    server.pause()
    try:
        world.patch("StreamTopic", namespace, "topic-2", {"spec": {"groups": [{"name": "g"}, {"name": "h"}]}})
        time.sleep(1)
        seconds, code = world.operator.stop(signal.SIGINT)
    finally:
        server.resume()
    assert (seconds < 5, code) == (True, 0), (seconds, code)
    world.start_operator()
    world.wait_ready("StreamTopic", namespace, "topic-2")


def test_what_was_deleted_while_it_was_away_is_cleaned_up(world: World, server: RedisServer, namespace: str) -> None:
    secret = world.secret(namespace, "client-9-streamhold")
    assert secret is not None
    uid = world.wait_ready("StreamTopic", namespace, "topic-29")["metadata"]["uid"]
    world.operator.stop()
    world.delete("StreamTopic", namespace, "topic-29")
    world.delete("CoordinationClient", namespace, "client-9")
    assert lets_in(secret)
    world.start_operator()
    world.wait_gone("CoordinationClient", namespace, "client-9")
    assert not lets_in(secret)

    def unclaimed() -> bool:
        return not any(field.endswith(uid) for field in server.cli("HGETALL", "streamhold:owners"))

    eventually_sync(unclaimed, message="the claim of the deleted topic stayed")


def test_the_user_of_a_client_that_was_released_by_force_is_removed(
    world: World, server: RedisServer, namespace: str
) -> None:
    secret = world.secret(namespace, "client-8-streamhold")
    assert secret is not None
    world.operator.stop()
    world.delete("CoordinationClient", namespace, "client-8")
    world.patch("CoordinationClient", namespace, "client-8", {"metadata": {"finalizers": []}})
    assert lets_in(secret)
    world.start_operator()
    eventually_sync(lambda: not lets_in(secret), message="the user of a client that is gone still works")


def test_a_token_that_is_accepted_no_more_is_read_anew(world: World, namespace: str) -> None:
    place = ("--namespace", SYSTEM)
    account = world.plane.get("serviceaccount", ACCOUNT, SYSTEM)
    world.plane.kubectl("delete", "serviceaccount", ACCOUNT, *place)  # and with it all its tokens
    kept = {name: account["metadata"][name] for name in ("name", "labels", "annotations")}
    world.plane.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": kept}, namespace=SYSTEM)
    since = world.plane.audit_log.position()
    world.create(namespace, a_topic("with-a-new-token"))
    eventually_sync(lambda: world.plane.audit(since=since, code=401), message="the old token is still accepted")
    world.plane.kubeconfig_for(SYSTEM, ACCOUNT, world.kubeconfig)
    world.wait_ready("StreamTopic", namespace, "with-a-new-token", timeout=30)
    assert world.operator.server.alive


def test_the_endpoints_tell_health_and_metrics(world: World, namespace: str) -> None:
    assert world.operator.page("/healthz") == (200, "ok\n")
    assert world.operator.page("/readyz") == (200, "ok\n")
    assert world.operator.page("/other")[0] == 404
    metrics = world.operator.page("/metrics")[1]
    for name in ("streamhold_reconciles_total", "streamhold_queue_depth", "streamhold_connection_up"):
        assert name in metrics


def test_it_waits_for_the_api_server_and_still_ends_at_once(world: World) -> None:
    world.operator.stop()
    config = world.kubeconfig.read_text()
    elsewhere = world.kubeconfig.with_name("elsewhere.kubeconfig")
    elsewhere.write_text(config.replace(world.plane.server, "https://127.0.0.1:1"))
    lost = OperatorProcess(elsewhere, world.folder)
    eventually_sync(lambda: lost.page("/healthz")[0] == 200, timeout=20, message="no liveness while waiting")
    assert lost.page("/readyz")[0] == 503
    seconds, code = lost.stop()
    assert (seconds < 5, code) == (True, 0), (seconds, code)
    assert "cannot be used yet" in lost.log.read_text()
    world.start_operator()

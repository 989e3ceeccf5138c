"""What stands in the way is told by its reason and passes when it is put right; deletion ends whatever is missing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest

from streamhold_dev.ports import free_port
from streamhold_dev.redisserver import RedisServer
from streamhold_dev.waiting import eventually_sync
from support.operator_world import (
    World,
    a_client,
    a_connection,
    a_login,
    a_policy,
    a_secret,
    a_topic,
    condition,
    lets_in,
    older_than_the_next,
)

RESYNC = 2.0
PASSWORD = "admin-of-the-fault-tests"

OwnRedis = Callable[..., RedisServer]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "--resync-interval", str(RESYNC), "--compare-interval", "3")
    yield made
    log = made.operator.log.read_text()
    refused = made.forbidden()
    made.close()
    assert not refused, f"the chart's rights do not suffice: {[str(entry) for entry in refused]}"
    assert "Traceback" not in log, log


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD) as started:
        yield started


@pytest.fixture
def namespace(world: World) -> Iterator[str]:
    name = world.namespace()
    yield name
    world.delete("Namespace", "", name)


def connected(world: World, namespace: str, server: RedisServer, **spec: object) -> None:
    world.create(namespace, a_login(server), a_connection(server, **spec))
    world.wait_ready("RedisConnection", namespace, "main")


def with_a_client(world: World, namespace: str) -> dict[str, str]:
    world.create(namespace, a_topic("orders", groups=[{"name": "billing"}]), a_client("app", {"orders": ["Publish"]}))
    world.wait_ready("CoordinationClient", namespace, "app")
    found = world.secret(namespace, "app-streamhold")
    assert found is not None
    return found


# ---- reasons


def test_case_o21_each_fault_of_a_connection_has_its_own_reason_and_passes(
    world: World, server: RedisServer, namespace: str
) -> None:
    weak = f"{namespace}-weak"
    server.cli("ACL", "SETUSER", weak, "on", ">weak-password", "~*", "+ping", "+info")
    login = {"usernameKey": "username"}
    world.create(
        namespace,
        a_login(server),
        a_secret("wrong", username="default", password="not-the-password"),
        a_secret("weak", username=weak, password="weak-password"),
        a_secret("empty", other="entry"),
        a_connection(server, "wrong", adminSecretRef={"name": "wrong", **login}),
        a_connection(server, "weak", adminSecretRef={"name": "weak", **login}),
        a_connection(server, "empty", adminSecretRef={"name": "empty"}),
        a_connection(server, "missing", adminSecretRef={"name": "missing"}),
        a_connection(f"127.0.0.1:{free_port()}", "closed"),
        a_connection("no-such-host.invalid:6379", "unknown"),
    )
    reasons = {
        "wrong": "AuthFailed",
        "weak": "MissingRights",
        "empty": "SecretInvalid",
        "missing": "SecretNotFound",
        "closed": "Unreachable",
        "unknown": "Unreachable",
    }
    for name, reason in reasons.items():
        told = world.wait_condition("RedisConnection", namespace, name, reason)
        assert len(told["message"]) > 40, told
        world.wait_event(namespace, name, reason)
    world.create(namespace, a_secret("missing", username="default", password=PASSWORD))
    world.patch("Secret", namespace, "wrong", {"stringData": {"password": PASSWORD}})
    world.patch("Secret", namespace, "empty", {"stringData": {"username": "default", "password": PASSWORD}})
    server.cli("ACL", "SETUSER", weak, "+@all", "allchannels")
    for name in ("wrong", "weak", "empty", "missing"):
        world.wait_ready("RedisConnection", namespace, name, timeout=8 * RESYNC)


def test_a_lasting_fault_is_retried_with_backoff_and_told_once(world: World, namespace: str) -> None:
    world.create(namespace, a_secret("redis-admin", password="x"), a_connection(f"127.0.0.1:{free_port()}"))
    world.wait_condition("RedisConnection", namespace, "main", "Unreachable")
    world.wait_event(namespace, "main", "Unreachable")  # comes right after
    since = world.plane.audit_log.position()
    before = _failures(world)
    time.sleep(5)
    assert [str(entry) for entry in world.writes(since) if entry.namespace == namespace] == []
    assert _failures(world) - before < 12
    world.wait_reasons(namespace, "main", ["Unreachable"])


def _failures(world: World) -> float:
    lines = world.operator.page("/metrics")[1].splitlines()
    wanted = 'streamhold_reconciles_total{kind="RedisConnection",result="failed"}'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


def test_users_of_a_missing_connection_say_so_and_recover_when_it_comes(
    world: World, server: RedisServer, namespace: str
) -> None:
    world.create(namespace, a_topic("orders"), a_policy("jobs"), a_client("app", {"orders": ["Publish"]}))
    for kind, name in (("StreamTopic", "orders"), ("LeasePolicy", "jobs"), ("CoordinationClient", "app")):
        told = world.wait_condition(kind, namespace, name, "ConnectionNotFound")
        assert f"{namespace}/main" in told["message"]
    connected(world, namespace, server)
    for kind, name in (("StreamTopic", "orders"), ("LeasePolicy", "jobs"), ("CoordinationClient", "app")):
        world.wait_ready(kind, namespace, name)


def test_case_o13_a_wrong_password_at_an_open_server_is_refused_with_a_warning(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    server = own_redis(password=PASSWORD, default_user_open=True)
    world.create(
        namespace,
        a_secret("redis-admin", username="default", password="wrong"),
        a_connection(server),
        a_topic("orders", groups=[{"name": "g"}]),
    )
    world.wait_condition("RedisConnection", namespace, "main", "AuthFailed")
    assert "default user" in world.wait_event(namespace, "main", "Warning")["message"]
    world.wait_condition("StreamTopic", namespace, "orders", "ConnectionNotReady")
    assert server.cli("DBSIZE") == 0


def test_case_o21_a_hundred_objects_at_once_all_get_a_status(world: World, server: RedisServer, namespace: str) -> None:
    world.create(namespace, a_login(server), a_connection(server))
    world.create(namespace, *[a_topic(f"topic-{number}") for number in range(100)])
    for number in range(100):
        world.wait_ready("StreamTopic", namespace, f"topic-{number}")


def test_a_redis_that_hangs_does_not_delay_the_users_of_another(
    world: World, server: RedisServer, namespace: str, own_redis: OwnRedis
) -> None:
    frozen = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    world.create(namespace, a_login(frozen, "frozen-admin"))
    world.create(namespace, a_connection(frozen, "frozen", adminSecretRef={"name": "frozen-admin"}))
    world.wait_ready("RedisConnection", namespace, "frozen")
    frozen.pause()
    try:
        reference = {"name": "frozen"}
        world.create(namespace, *[a_topic(f"stuck-{number}", connectionRef=reference) for number in range(40)])
        for number in range(5):
            started = time.monotonic()
            world.create(namespace, a_topic(f"quick-{number}"))
            world.wait_ready("StreamTopic", namespace, f"quick-{number}", timeout=5)
            assert time.monotonic() - started < 3
        world.wait_condition("RedisConnection", namespace, "frozen", "Unreachable", timeout=20)
        world.wait_condition("StreamTopic", namespace, "stuck-39", "ConnectionNotReady", timeout=20)
    finally:
        frozen.resume()
    world.wait_ready("StreamTopic", namespace, "stuck-39", timeout=20)


# ---- drift


def test_case_o06_what_is_destroyed_by_hand_is_back_after_a_resync_and_told_once(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    login = with_a_client(world, namespace)
    key = f"streamhold:{namespace}:orders"

    def provisioned() -> bool:
        if not server.cli("EXISTS", key) or len(server.cli("XINFO", "GROUPS", key)) != 1 or not lets_in(login):
            return False
        return "nopass" not in server.cli("ACL", "GETUSER", f"{namespace}.app")["flags"]

    def repairs(name: str) -> int:
        return len([event for event in world.events(namespace, name) if event["reason"] == "Repaired"])

    destructions: list[Callable[[], object]] = [
        lambda: server.cli("XGROUP", "DESTROY", key, "billing"),
        lambda: server.cli("ACL", "DELUSER", f"{namespace}.app"),
        lambda: server.cli("ACL", "SETUSER", f"{namespace}.app", "nopass", "+@all", "~*"),
        lambda: server.cli("FLUSHALL"),
        server.restart,
    ]
    for destroy in destructions:
        destroy()
        eventually_sync(provisioned, timeout=15, message="not repaired", interval=0.2)
    eventually_sync(lambda: repairs("orders") == 3, message="one event for each loss of the group")
    eventually_sync(lambda: repairs("app") == 3, message="one event for each loss of the user")
    assert world.get("StreamTopic", namespace, "orders") is not None


def test_case_o10_a_rotated_admin_password_reconnects_the_operator(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    with_a_client(world, namespace)
    server.cli("ACL", "SETUSER", "default", ">the-next-password", f"<{PASSWORD}")
    server.password = "the-next-password"
    world.patch("Secret", namespace, "redis-admin", {"stringData": {"password": "the-next-password"}})
    server.cli("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    world.create(namespace, a_topic("after"))
    world.wait_ready("StreamTopic", namespace, "after", timeout=20)
    world.wait_ready("RedisConnection", namespace, "main")


# ---- deletion


def test_case_o19_a_client_that_never_got_ready_can_be_deleted(world: World, namespace: str) -> None:
    world.create(namespace, a_secret("redis-admin", password="x"), a_connection(f"127.0.0.1:{free_port()}"))
    world.create(namespace, a_topic("orders"), a_client("app", {"orders": ["Publish"]}))
    world.wait_condition("CoordinationClient", namespace, "app", "ConnectionNotReady")
    world.delete("CoordinationClient", namespace, "app")
    world.wait_gone("CoordinationClient", namespace, "app", timeout=5)


@pytest.mark.parametrize("missing", ["connection", "secret"])
def test_without_its_connection_or_secret_a_client_is_released_at_once(
    world: World, server: RedisServer, namespace: str, missing: str
) -> None:
    connected(world, namespace, server)
    login = with_a_client(world, namespace)
    if missing == "connection":
        world.delete("RedisConnection", namespace, "main")
    else:
        world.delete("Secret", namespace, "redis-admin")
        world.wait_condition("RedisConnection", namespace, "main", "SecretNotFound")
    world.delete("CoordinationClient", namespace, "app")
    world.wait_gone("CoordinationClient", namespace, "app", timeout=10)
    assert not lets_in(login), "the operator was still logged in: it could have removed the user"


def test_a_client_is_released_when_redis_stays_away_and_that_is_told(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server, unreachableDeletion={"after": "3s"})
    with_a_client(world, namespace)
    server.kill()
    world.wait_condition("RedisConnection", namespace, "main", "Unreachable")
    world.delete("CoordinationClient", namespace, "app")
    world.wait_gone("CoordinationClient", namespace, "app", timeout=15)
    assert f"{namespace}.app" in world.wait_event(namespace, "app", "Orphaned")["message"]


def test_with_block_a_client_waits_for_redis_and_says_so(world: World, namespace: str, own_redis: OwnRedis) -> None:
    server = own_redis(password=PASSWORD, aclfile=True)
    connected(world, namespace, server, unreachableDeletion={"after": "0s", "then": "Block"})
    login = with_a_client(world, namespace)
    server.kill()
    world.wait_condition("RedisConnection", namespace, "main", "Unreachable")
    world.delete("CoordinationClient", namespace, "app")

    def told() -> bool:
        found = world.get("CoordinationClient", namespace, "app")
        assert found is not None
        ready = condition(found)
        return ready is not None and "Being deleted" in ready["message"]

    eventually_sync(told, message="the wait is not told")
    server.start()
    world.wait_gone("CoordinationClient", namespace, "app", timeout=15)
    assert not lets_in(login)


@pytest.mark.parametrize("first", ["nothing", "secret", "connection", "redis"])
def test_case_o01_a_namespace_with_everything_in_it_goes_away(
    world: World, namespace: str, own_redis: OwnRedis, first: str
) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    topics = [a_topic(f"topic-{number}", deletionPolicy="Delete") for number in range(10)]
    clients = [a_client(f"client-{number}", {f"topic-{number}": ["Publish"]}) for number in range(10)]
    world.create(namespace, *topics, *clients)
    for number in range(10):
        world.wait_ready("CoordinationClient", namespace, f"client-{number}")
    if first == "secret":
        world.delete("Secret", namespace, "redis-admin")
    elif first == "connection":
        world.delete("RedisConnection", namespace, "main")
    elif first == "redis":
        server.kill()
    world.delete("Namespace", "", namespace)
    world.wait_gone("Namespace", "", namespace, timeout=60)
    if first != "redis":
        assert [user for user in server.cli("ACL", "USERS") if user.startswith(f"{namespace}.")] == []


def test_a_full_server_still_lets_what_is_deleted_go(world: World, namespace: str, own_redis: OwnRedis) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    login = with_a_client(world, namespace)
    world.create(namespace, a_topic("big", deletionPolicy="Delete"))
    world.wait_ready("StreamTopic", namespace, "big")
    server.cli("XADD", f"streamhold:{namespace}:big", "*", "event", "{}")
    server.cli("CONFIG", "SET", "maxmemory", "1")
    told = world.wait_condition("RedisConnection", namespace, "main", "ServerRefused")["message"]
    assert "raise maxmemory" in told
    world.delete("StreamTopic", namespace, "big")
    world.delete("CoordinationClient", namespace, "app")
    world.wait_gone("StreamTopic", namespace, "big")
    world.wait_gone("CoordinationClient", namespace, "app")
    assert not lets_in(login)
    assert server.cli("EXISTS", f"streamhold:{namespace}:big") == 0


def test_a_connection_that_moves_to_another_server_says_what_stays_behind(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    old, new = own_redis(password=PASSWORD), own_redis(password=PASSWORD)
    connected(world, namespace, old)
    with_a_client(world, namespace)
    world.patch("RedisConnection", namespace, "main", {"spec": {"endpoints": [f"127.0.0.1:{new.port}"]}})
    eventually_sync(lambda: f"{namespace}.app" in new.cli("ACL", "USERS"), message="the user is not at the new server")
    told = world.wait_event(namespace, "main", "Warning")["message"]
    assert f"127.0.0.1:{old.port}/0" in told
    assert "1 ACL user stay" in told
    world.wait_ready("CoordinationClient", namespace, "app")
    assert len([event for event in world.events(namespace, "main") if event["reason"] == "Warning"]) == 1


def test_a_new_key_prefix_is_no_repair(world: World, namespace: str, server: RedisServer) -> None:
    connected(world, namespace, server)
    with_a_client(world, namespace)
    world.delete("RedisConnection", namespace, "main")
    for kind, name in (("StreamTopic", "orders"), ("CoordinationClient", "app")):
        world.wait_condition(kind, namespace, name, "ConnectionNotFound")
    world.create(namespace, a_connection(server, keyPrefix=f"{namespace}-other"))
    for kind, name in (("StreamTopic", "orders"), ("CoordinationClient", "app")):
        world.wait_ready(kind, namespace, name)
        assert [event["message"] for event in world.events(namespace, name) if event["reason"] == "Repaired"] == []
    assert server.cli("XINFO", "GROUPS", f"{namespace}-other:orders")


def test_after_a_flush_the_younger_of_two_claims_is_not_ready_even_for_a_moment(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    world.create(namespace, a_topic("z", topic="same", groups=[{"name": "of-the-older"}]))
    older_than_the_next(world.wait_ready("StreamTopic", namespace, "z"))
    world.create(
        namespace,
        a_topic("a", topic="same", groups=[{"name": "of-the-younger"}]),
        *[a_topic(f"m{number}", groups=[{"name": "g"}]) for number in range(40)],
    )
    world.wait_condition("StreamTopic", namespace, "a", "Conflict")
    for number in range(40):
        world.wait_ready("StreamTopic", namespace, f"m{number}")

    def owned_and_provisioned() -> bool:
        return server.cli("EXISTS", *[f"streamhold:{namespace}:m{number}" for number in range(40)]) == 40

    for restart in (False, False, True):
        since = world.plane.audit_log.position()
        if restart:
            world.operator.stop(signal.SIGKILL)
        server.cli("FLUSHALL")
        if restart:
            world.start_operator()
        eventually_sync(owned_and_provisioned, timeout=20, message="not everything is back")
        eventually_sync(lambda: server.cli("EXISTS", f"streamhold:{namespace}:same"), message="the topic is not back")
        groups = [group["name"] for group in server.cli("XINFO", "GROUPS", f"streamhold:{namespace}:same")]
        assert groups == ["of-the-older"]
        assert [str(entry) for entry in world.writes(since) if entry.resource == "streamtopics/status"] == []


def test_a_connection_may_be_changed_while_its_clients_are_worked_on(
    world: World, namespace: str, server: RedisServer
) -> None:
    connected(world, namespace, server)
    clients = [a_client(f"app-{number}") for number in range(20)]
    for number, client in enumerate(clients):
        world.create(namespace, client)
        change = {"metadata": {"annotations": {"streamhold.dev/reconcile": str(number)}}}
        world.patch("RedisConnection", namespace, "main", change)
    for number in range(20):
        world.wait_ready("CoordinationClient", namespace, f"app-{number}")
    assert "Traceback" not in world.operator.log.read_text()


def test_a_client_whose_connection_comes_back_is_ready_without_a_word_on_its_topics(
    world: World, namespace: str, own_redis: OwnRedis
) -> None:
    server = own_redis(password=PASSWORD)
    connected(world, namespace, server)
    topics = [f"topic-{number}" for number in range(10)]
    world.create(namespace, *map(a_topic, topics), a_client("app", {topic: ["Publish"] for topic in topics}))
    world.wait_ready("CoordinationClient", namespace, "app")
    for _ in range(2):
        world.patch("RedisConnection", namespace, "main", {"spec": {"suspend": True}})
        for kind, name in [("CoordinationClient", "app"), *(("StreamTopic", topic) for topic in topics)]:
            world.wait_condition(kind, namespace, name, "ConnectionNotReady")
        world.patch("RedisConnection", namespace, "main", {"spec": {"suspend": False}})
        world.wait_ready("CoordinationClient", namespace, "app")
    world.wait_reasons(namespace, "app", ["Ready", *["ConnectionNotReady", "Ready"] * 2])

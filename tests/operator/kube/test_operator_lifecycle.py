"""The operator under the chart's rights, on a real API server and a real Valkey: declare, use, change, delete."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import redis

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
    an_object,
    condition,
    lets_in,
    log_in,
    older_than_the_next,
)

RESYNC = 2.0


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
    with RedisServer(password="admin-of-the-lifecycle-tests") as started:
        yield started


@pytest.fixture
def namespace(world: World, server: RedisServer) -> Iterator[str]:
    """A namespace with a working connection `main`."""
    name = world.namespace()
    world.create(name, a_login(server), a_connection(server))
    yield name
    world.delete("Namespace", "", name)


def declared(world: World, namespace: str) -> None:
    """One object of each kind, all Ready."""
    world.create(
        namespace,
        a_topic("orders", groups=[{"name": "billing"}]),
        a_policy("jobs"),
        a_client("shop", {"orders": ["Publish", "Consume"]}, leases=[{"name": "jobs"}]),
    )
    kinds = ("RedisConnection", "StreamTopic", "LeasePolicy", "CoordinationClient")
    for kind, name in zip(kinds, ("main", "orders", "jobs", "shop"), strict=True):
        world.wait_ready(kind, namespace, name)


def binding(world: World, namespace: str, name: str) -> dict[str, str]:
    found = world.secret(namespace, f"{name}-streamhold")
    assert found is not None
    return found


def test_each_kind_becomes_ready_and_says_where_things_are(world: World, server: RedisServer, namespace: str) -> None:
    declared(world, namespace)
    connection = world.wait_ready("RedisConnection", namespace, "main")
    assert connection["status"]["server"]["product"] == "Valkey"
    topic = world.wait_ready("StreamTopic", namespace, "orders")
    assert topic["status"]["streamKey"] == f"streamhold:{namespace}:orders"
    assert topic["status"]["groups"] == ["billing"]
    assert "finalizers" not in topic["metadata"]
    assert [group["name"] for group in server.cli("XINFO", "GROUPS", f"streamhold:{namespace}:orders")] == ["billing"]
    client = world.wait_ready("CoordinationClient", namespace, "shop")
    assert client["status"]["binding"] == {"name": "shop-streamhold"}
    assert client["metadata"]["finalizers"] == ["streamhold.dev/cleanup"]
    assert condition(client, "Stalled") is None
    assert condition(client, "Reconciling") is None


def test_each_object_gets_one_status_write_and_a_topic_that_gets_ready_at_once_no_event(
    world: World, namespace: str
) -> None:
    world.wait_ready("RedisConnection", namespace, "main")
    since = world.plane.audit_log.position()
    declared(world, namespace)
    writes = [entry for entry in world.writes(since) if entry.namespace == namespace]
    for resource in ("streamtopics/status", "leasepolicies/status", "coordinationclients/status", "secrets"):
        assert len([entry for entry in writes if entry.resource == resource]) == 1, [str(entry) for entry in writes]
    assert [entry.name for entry in writes if entry.resource == "streamtopics"] == []
    assert world.events(namespace, "orders") == []
    world.wait_reasons(namespace, "shop", ["Ready"])


def test_the_binding_secret_logs_in_and_grants_exactly_what_was_asked_for(world: World, namespace: str) -> None:
    declared(world, namespace)
    world.create(namespace, a_topic("receipts"), a_client("reader", {"receipts": ["Consume"]}))
    world.wait_ready("CoordinationClient", namespace, "reader")
    shop, reader = binding(world, namespace, "shop"), binding(world, namespace, "reader")
    prefix = f"streamhold:{namespace}"
    with log_in(shop) as client:
        assert client.xadd(f"{prefix}:orders", {"event": "{}"})
        assert client.set(f"{prefix}:lease:jobs/nightly", "me", px=1000)
        for refused in (f"{prefix}:receipts", "streamhold:owners", f"{prefix}:other"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.xadd(refused, {"event": "{}"})
    with log_in(reader) as client:
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.xadd(f"{prefix}:orders", {"event": "{}"})
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.execute_command("ACL", "LIST")
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.set(f"{prefix}:lease:jobs/nightly", "me", px=1000)
    document = json.loads(shop["streamhold.json"])
    assert [topic["name"] for topic in document["topics"]] == ["orders"]
    assert document["topics"][0]["groups"] == [{"name": "billing", "startFrom": "Earliest"}]
    assert document["leases"][0]["keys"] == "jobs/"


def test_changed_settings_reach_the_binding_and_withdrawn_rights_are_gone(world: World, namespace: str) -> None:
    declared(world, namespace)
    before = binding(world, namespace, "shop")
    world.patch("StreamTopic", namespace, "orders", {"spec": {"maxLength": 77}})

    def updated() -> bool:
        document = json.loads(binding(world, namespace, "shop")["streamhold.json"])
        return document["topics"][0]["maxLength"] == 77

    eventually_sync(updated, message="the new maxLength did not reach the binding")
    world.patch("CoordinationClient", namespace, "shop", {"spec": {"topics": [], "leases": []}})

    def refused() -> bool:
        with log_in(before) as client:
            try:
                client.xadd(f"streamhold:{namespace}:orders", {"event": "{}"})
            except redis.exceptions.NoPermissionError:
                return True
        return False

    eventually_sync(refused, message="the right to publish was not withdrawn")
    assert binding(world, namespace, "shop")["password"] == before["password"]


@pytest.mark.parametrize("obstacle", ["a suspended topic", "no password Secret", "a foreign Secret"])
def test_withdrawn_rights_are_gone_whatever_else_is_wrong_with_the_client(
    world: World, server: RedisServer, namespace: str, obstacle: str
) -> None:
    rest = {"passwordSecretRef": {"name": "own"}} if obstacle == "no password Secret" else {}
    world.create(namespace, a_secret("own", password="a-password-of-our-own"), a_topic("kept"), a_topic("withdrawn"))
    world.create(namespace, a_client("app", {"kept": ["Publish"], "withdrawn": ["Publish"]}, **rest))
    world.wait_ready("CoordinationClient", namespace, "app")
    login = binding(world, namespace, "app")
    granted, change = [{"name": "kept", "access": ["Publish"]}], {}
    if obstacle == "a suspended topic":
        world.create(namespace, a_topic("new", suspend=True))
        granted.append({"name": "new", "access": ["Publish"]})
        reason = "TopicNotReady"
    elif obstacle == "no password Secret":
        world.delete("Secret", namespace, "own")
        reason = "SecretNotFound"
    else:
        world.create(namespace, a_secret("foreign", precious="yes"))
        change["secretName"] = "foreign"
        reason = "Conflict"
    world.patch("CoordinationClient", namespace, "app", {"spec": {"topics": granted, **change}})
    world.wait_condition("CoordinationClient", namespace, "app", reason)
    with log_in(login) as client:
        assert client.xadd(f"streamhold:{namespace}:kept", {"event": "{}"})
        with pytest.raises(redis.exceptions.NoPermissionError):
            client.xadd(f"streamhold:{namespace}:withdrawn", {"event": "{}"})
    found = world.get("CoordinationClient", namespace, "app")
    assert found is not None
    assert found["status"]["binding"] == {"name": "app-streamhold"}


def test_a_deleted_client_leaves_no_user_no_secret_and_no_claim(
    world: World, server: RedisServer, namespace: str
) -> None:
    declared(world, namespace)
    shop = binding(world, namespace, "shop")
    uid = world.wait_ready("CoordinationClient", namespace, "shop")["metadata"]["uid"]
    world.delete("CoordinationClient", namespace, "shop")
    world.wait_gone("CoordinationClient", namespace, "shop")
    assert not lets_in(shop)
    assert not [field for field in server.cli("HGETALL", "streamhold:owners") if field.endswith(uid)]
    world.wait_gone("Secret", namespace, "shop-streamhold")


def test_a_deleted_topic_keeps_its_stream_by_default_and_takes_it_along_on_request(
    world: World, server: RedisServer, namespace: str
) -> None:
    world.create(
        namespace,
        a_topic("kept", groups=[{"name": "g"}]),
        a_topic("dropped", groups=[{"name": "g"}], deletionPolicy="Delete"),
        a_topic("spared", groups=[{"name": "g"}], deletionPolicy="Delete"),
    )
    for name in ("kept", "dropped", "spared"):
        world.wait_ready("StreamTopic", namespace, name)
    world.patch("StreamTopic", namespace, "spared", {"spec": {"deletionPolicy": "Retain"}})

    def released() -> bool:
        found = world.get("StreamTopic", namespace, "spared")
        assert found is not None
        return "finalizers" not in found["metadata"]

    eventually_sync(released, message="the finalizer stayed after Retain")
    for name in ("kept", "dropped", "spared"):
        world.delete("StreamTopic", namespace, name)
        world.wait_gone("StreamTopic", namespace, name)
    there = [server.cli("EXISTS", f"streamhold:{namespace}:{name}") for name in ("kept", "dropped", "spared")]
    assert there == [1, 0, 1]

    def unclaimed() -> bool:
        return not any(namespace in value for value in server.cli("HGETALL", "streamhold:owners").values())

    eventually_sync(unclaimed, timeout=4 * RESYNC, message="claims of deleted topics stayed")


def test_case_o07_of_two_topics_with_one_key_the_older_wins_until_it_goes(
    world: World, server: RedisServer, namespace: str
) -> None:
    world.create(namespace, a_topic("first", topic="same"))
    older_than_the_next(world.wait_ready("StreamTopic", namespace, "first"))
    world.create(namespace, a_topic("second", topic="same"))
    older_than_the_next(world.get("StreamTopic", namespace, "second"))
    world.create(namespace, a_topic("family", topicPrefix="sa"))
    refused = world.wait_condition("StreamTopic", namespace, "second", "Conflict")
    assert f"StreamTopic {namespace}/first" in refused["message"]
    world.wait_condition("StreamTopic", namespace, "family", "Conflict")
    found = world.get("StreamTopic", namespace, "second")
    assert found is not None
    assert condition(found, "Stalled") is not None
    server.cli("XADD", f"streamhold:{namespace}:same", "*", "event", "{}")
    world.delete("StreamTopic", namespace, "first")
    world.wait_ready("StreamTopic", namespace, "second")
    assert server.cli("XLEN", f"streamhold:{namespace}:same") == 1
    assert world.operator.page("/healthz")[0] == 200


def test_a_key_of_another_type_is_told_left_alone_and_provisioned_once_it_is_gone(
    world: World, server: RedisServer, namespace: str
) -> None:
    key = f"streamhold:{namespace}:taken"
    server.cli("SET", key, "precious")
    world.create(namespace, a_topic("taken", groups=[{"name": "g"}]))
    refused = world.wait_condition("StreamTopic", namespace, "taken", "WrongType")
    assert key in refused["message"]
    assert server.cli("GET", key) == "precious"
    server.cli("DEL", key)
    world.wait_ready("StreamTopic", namespace, "taken")


def test_a_foreign_user_and_a_foreign_secret_are_never_touched(
    world: World, server: RedisServer, namespace: str
) -> None:
    server.cli("ACL", "SETUSER", f"{namespace}.taken", "on", ">theirs", "~theirs", "+get")
    before = server.cli("ACL", "GETUSER", f"{namespace}.taken")
    world.create(namespace, a_secret("mine-streamhold", precious="yes"), a_client("taken"), a_client("mine"))
    assert f"{namespace}.taken" in world.wait_condition("CoordinationClient", namespace, "taken", "Conflict")["message"]
    told = world.wait_condition("CoordinationClient", namespace, "mine", "Conflict")["message"]
    assert "mine-streamhold" in told
    assert server.cli("ACL", "GETUSER", f"{namespace}.taken") == before
    assert world.secret(namespace, "mine-streamhold") == {"precious": "yes"}
    world.delete("CoordinationClient", namespace, "taken")
    world.wait_gone("CoordinationClient", namespace, "taken")
    assert server.cli("ACL", "GETUSER", f"{namespace}.taken") == before
    world.delete("Secret", namespace, "mine-streamhold")
    world.patch(
        "CoordinationClient", namespace, "mine", {"metadata": {"annotations": {"streamhold.dev/reconcile": "1"}}}
    )
    world.wait_ready("CoordinationClient", namespace, "mine")


def test_a_binding_secret_deleted_by_hand_comes_back_with_a_new_password(world: World, namespace: str) -> None:
    declared(world, namespace)
    before = binding(world, namespace, "shop")
    world.delete("Secret", namespace, "shop-streamhold")
    eventually_sync(lambda: world.secret(namespace, "shop-streamhold"), message="the Secret did not come back")
    after = binding(world, namespace, "shop")
    assert after["password"] != before["password"]
    assert lets_in(after)
    assert not lets_in(before)
    assert "shop-streamhold" in world.wait_event(namespace, "shop", "Repaired")["message"]


def test_an_edited_binding_secret_is_put_right(world: World, namespace: str) -> None:
    declared(world, namespace)
    before = binding(world, namespace, "shop")
    world.patch("Secret", namespace, "shop-streamhold", {"stringData": {"host": "elsewhere"}})
    eventually_sync(lambda: binding(world, namespace, "shop") == before, message="the Secret was not put right")


def test_a_binding_secret_that_was_edited_beyond_its_entries_is_put_right_or_the_edit_is_named(
    world: World, namespace: str
) -> None:
    declared(world, namespace)
    before = binding(world, namespace, "shop")
    place = ("Secret", namespace, "shop-streamhold")
    world.patch(*place, {"metadata": {"ownerReferences": None}})

    def owned() -> bool:
        found = world.get(*place)
        return found is not None and bool(found["metadata"].get("ownerReferences"))

    eventually_sync(owned, message="the Secret did not get its owner back")
    assert binding(world, namespace, "shop") == before
    world.patch(*place, {"data": {"password": "//4="}})  # no text

    def replaced() -> bool:
        found = world.get(*place)
        return found is not None and found["data"]["password"] != "//4="

    eventually_sync(replaced, message="the password was not replaced")
    assert lets_in(binding(world, namespace, "shop"))
    world.patch(*place, {"immutable": True})
    world.patch("CoordinationClient", namespace, "shop", {"spec": {"leases": []}})
    assert "immutable" in world.wait_condition("CoordinationClient", namespace, "shop", "Conflict")["message"]
    world.delete(*place)
    world.wait_ready("CoordinationClient", namespace, "shop")


def test_a_connection_that_becomes_shared_takes_users_away_and_gives_them_new_passwords_afterwards(
    world: World, server: RedisServer, namespace: str
) -> None:
    world.create(namespace, a_client("app"))
    world.wait_ready("CoordinationClient", namespace, "app")
    own = binding(world, namespace, "app")
    shared = {"access": "Shared", "sharedSecretRef": {"name": "redis-admin"}}
    world.patch("RedisConnection", namespace, "main", {"spec": shared})
    eventually_sync(lambda: binding(world, namespace, "app")["username"] == "default", message="not shared")
    eventually_sync(lambda: not lets_in(own), message="the user of before still logs in")
    world.patch("RedisConnection", namespace, "main", {"spec": {"access": "Managed", "sharedSecretRef": None}})
    eventually_sync(lambda: binding(world, namespace, "app")["username"] == own["username"], message="still shared")
    again = binding(world, namespace, "app")
    assert lets_in(again)
    assert again["password"] not in (own["password"], server.password)


def test_the_secret_follows_its_template_and_its_new_name(world: World, namespace: str) -> None:
    template = {"labels": {"team": "billing"}, "annotations": {"example.com/reload": "yes"}}
    world.create(namespace, a_client("app", secretTemplate=template))
    world.wait_ready("CoordinationClient", namespace, "app")
    made = world.get("Secret", namespace, "app-streamhold")
    assert made is not None
    assert made["metadata"]["labels"]["team"] == "billing"
    assert made["type"] == "servicebinding.io/redis"
    before = binding(world, namespace, "app")
    change = {"spec": {"secretName": "renamed", "secretTemplate": {"labels": {"team": None}}}}
    world.patch("CoordinationClient", namespace, "app", change)
    eventually_sync(lambda: world.secret(namespace, "renamed"), message="the renamed Secret is not there")
    renamed = world.secret(namespace, "renamed")
    assert renamed is not None
    assert renamed["password"] == before["password"]
    world.wait_gone("Secret", namespace, "app-streamhold")


def test_an_imported_password_is_used_and_its_change_keeps_the_old_one_for_a_while(
    world: World, namespace: str
) -> None:
    world.create(namespace, a_secret("own", password="first-password"))
    world.create(namespace, a_client("app", passwordSecretRef={"name": "own"}))
    world.wait_ready("CoordinationClient", namespace, "app")
    before = binding(world, namespace, "app")
    assert before["password"] == "first-password"
    world.patch("Secret", namespace, "own", {"stringData": {"password": "second-password"}})

    def changed() -> bool:
        return binding(world, namespace, "app")["password"] == "second-password"

    eventually_sync(changed, timeout=10 * RESYNC, message="the imported password did not change")
    assert lets_in(binding(world, namespace, "app"))
    assert lets_in(before), "pods that have not seen the new password are cut off"


def test_a_password_is_rotated_and_the_old_one_works_through_the_overlap(world: World, namespace: str) -> None:
    world.create(namespace, a_client("app", rotation={"every": "1h", "overlap": "10m"}))
    world.wait_ready("CoordinationClient", namespace, "app")
    before = binding(world, namespace, "app")
    long_ago = {"metadata": {"annotations": {"streamhold.dev/password-set-at": "2020-01-01T00:00:00Z"}}}
    world.patch("Secret", namespace, "app-streamhold", long_ago)

    def rotated() -> bool:
        return binding(world, namespace, "app")["password"] != before["password"]

    eventually_sync(rotated, message="the password was not rotated")
    assert lets_in(binding(world, namespace, "app"))
    assert lets_in(before)


def test_with_shared_access_clients_get_the_shared_login_and_no_user_is_made(
    world: World, server: RedisServer, namespace: str
) -> None:
    everyone = f"{namespace}-everyone"
    server.cli("ACL", "SETUSER", everyone, "on", ">shared-password", "~*", "&*", "+@all", "-@admin", "-acl")
    server.cli("ACL", "SETUSER", everyone, "+acl|whoami")
    world.create(
        namespace,
        a_secret("shared", username=everyone, password="shared-password"),
        an_object(
            "RedisConnection",
            "managed-service",
            {
                "endpoints": [f"{server.host}:{server.port}"],
                "access": "Shared",
                "sharedSecretRef": {"name": "shared"},
                "keyPrefix": f"shared:{namespace}",
            },
        ),
        a_topic("offers", connectionRef={"name": "managed-service"}, groups=[{"name": "g"}]),
        a_client("app", {"offers": ["Publish"]}, connectionRef={"name": "managed-service"}),
    )
    client = world.wait_ready("CoordinationClient", namespace, "app")
    assert client["status"]["username"] == everyone
    assert "finalizers" not in client["metadata"]
    login = binding(world, namespace, "app")
    assert (login["username"], login["password"]) == (everyone, "shared-password")
    assert lets_in(login)
    assert f"{namespace}.app" not in server.cli("ACL", "USERS")


def test_suspended_objects_change_nothing_in_redis_until_they_are_resumed(
    world: World, server: RedisServer, namespace: str
) -> None:
    declared(world, namespace)
    for kind, name in (("StreamTopic", "orders"), ("CoordinationClient", "shop")):
        world.patch(kind, namespace, name, {"spec": {"suspend": True}})
        world.wait_condition(kind, namespace, name, "Suspended")
    world.patch("StreamTopic", namespace, "orders", {"spec": {"groups": [{"name": "billing"}, {"name": "audit"}]}})
    world.patch("CoordinationClient", namespace, "shop", {"spec": {"topics": []}})
    world.wait_condition("StreamTopic", namespace, "orders", "Suspended")
    world.wait_condition("CoordinationClient", namespace, "shop", "Suspended")
    assert [group["name"] for group in server.cli("XINFO", "GROUPS", f"streamhold:{namespace}:orders")] == ["billing"]
    with log_in(binding(world, namespace, "shop")) as client:
        assert client.xadd(f"streamhold:{namespace}:orders", {"event": "{}"})
    world.patch("StreamTopic", namespace, "orders", {"spec": {"suspend": False}})
    world.wait_ready("StreamTopic", namespace, "orders")
    assert len(server.cli("XINFO", "GROUPS", f"streamhold:{namespace}:orders")) == 2


def test_case_o16_an_object_deleted_and_made_anew_with_other_settings_converges_each_time(
    world: World, namespace: str
) -> None:
    for number in range(6):
        world.create(namespace, a_topic("orders", topic=f"orders-{number}"), a_client("app", {"orders": ["Publish"]}))
        topic = world.wait_ready("StreamTopic", namespace, "orders")
        assert topic["status"]["streamKey"].endswith(f":orders-{number}")
        world.wait_ready("CoordinationClient", namespace, "app")
        with log_in(binding(world, namespace, "app")) as client:
            assert client.xadd(f"streamhold:{namespace}:orders-{number}", {"event": "{}"})
        world.delete("CoordinationClient", namespace, "app")
        world.delete("StreamTopic", namespace, "orders")
        world.wait_gone("CoordinationClient", namespace, "app")
        world.wait_gone("StreamTopic", namespace, "orders")


def test_case_o16_an_object_made_anew_at_once_is_never_in_conflict_with_the_one_before(
    world: World, server: RedisServer, namespace: str
) -> None:
    objects = [a_topic("orders"), a_policy("jobs"), a_client("app", {"orders": ["Publish"]}, username=f"{namespace}-u")]
    for _ in range(20):
        world.create(namespace, *objects)
        for one in objects:
            world.delete(one["kind"], namespace, one["metadata"]["name"])
        world.wait_gone("CoordinationClient", namespace, "app")
    world.create(namespace, *objects)
    for one in objects:
        world.wait_ready(one["kind"], namespace, one["metadata"]["name"])
    told = [event for one in objects for event in world.events(namespace, one["metadata"]["name"])]
    assert [event["message"] for event in told if event["reason"] == "Conflict"] == []
    records = [record for record in server.cli("HVALS", "streamhold:owners") if f'"{namespace}"' in record]
    assert len(records) == len(objects), records


def test_case_o17_another_namespace_gets_in_by_its_labels_and_out_again(
    world: World, server: RedisServer, namespace: str
) -> None:
    selector = {"from": "Selector", "selector": {"matchLabels": {"team": namespace}}}
    world.create(
        namespace,
        a_connection(server, "shared", allowedNamespaces=selector),
        a_topic("orders", connectionRef={"name": "shared"}, allowedNamespaces=selector),
    )
    world.wait_ready("StreamTopic", namespace, "orders")
    guest = world.namespace()
    topics = [{"name": "orders", "namespace": namespace, "access": ["Publish"]}]
    reference = {"name": "shared", "namespace": namespace}
    world.create(guest, a_client("app", connectionRef=reference, topics=topics))
    world.wait_condition("CoordinationClient", guest, "app", "ConnectionNotAllowed")
    assert server.cli("ACL", "GETUSER", f"{guest}.app") is None
    world.patch("Namespace", "", guest, {"metadata": {"labels": {"team": namespace}}})
    world.wait_ready("CoordinationClient", guest, "app", timeout=10)
    login = binding(world, guest, "app")
    with log_in(login) as client:
        assert client.xadd(f"streamhold:{namespace}:orders", {"event": "{}"})
    assert json.loads(login["streamhold.json"])["topics"][0]["name"] == f"{namespace}/orders"
    world.patch("Namespace", "", guest, {"metadata": {"labels": {"team": None}}})
    world.wait_condition("CoordinationClient", guest, "app", "ConnectionNotAllowed")
    assert not lets_in(login)
    world.delete("Namespace", "", guest)
    world.wait_gone("Namespace", "", guest, timeout=60)


def test_a_client_waits_for_its_topic_and_says_which(world: World, namespace: str) -> None:
    world.create(namespace, a_client("app", {"later": ["Publish"]}))
    told = world.wait_condition("CoordinationClient", namespace, "app", "TopicNotFound")["message"]
    assert f"StreamTopic {namespace}/later" in told
    world.create(namespace, a_topic("later"))
    world.wait_ready("CoordinationClient", namespace, "app")
    world.delete("StreamTopic", namespace, "later")
    world.wait_condition("CoordinationClient", namespace, "app", "TopicNotFound")
    with log_in(binding(world, namespace, "app")) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.xadd(f"streamhold:{namespace}:later", {"event": "{}"})


def test_describe_tells_conditions_and_events_that_explain_themselves(world: World, namespace: str) -> None:
    declared(world, namespace)
    shown = world.plane.kubectl("describe", "cclient", "shop", "--namespace", namespace)
    assert "has the rights of 1 topic and 1 lease policy" in shown
    assert "streamhold-operator" in shown
    table = world.plane.kubectl("get", "streamhold", "--namespace", namespace)
    assert table.count("True") == 4

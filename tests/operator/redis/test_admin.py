"""Observing and repairing a real server: adoption, drift, idleness, and what is never touched (O06, O07, O14)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from streamhold.keys import OWNERS_KEY, companion
from streamhold_dev.redisserver import RedisServer
from streamhold_operator.adapters.redis import RedisAdmin
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain import client as clients
from streamhold_operator.domain import lease as leases
from streamhold_operator.domain import topic as topics
from streamhold_operator.domain.acl import AclAbilities
from streamhold_operator.domain.actions import CreateGroup, DeleteStream, RegisterClaim, SetUser
from streamhold_operator.domain.claims import OwnerRecord, Owners
from streamhold_operator.domain.outcome import Outcome, Refusal
from support.operator_objects import CLUSTER, a_client, a_policy, a_topic, lease_grant, topic_grant

pytestmark = pytest.mark.anyio
AdminOf = Callable[..., RedisAdmin]
OwnRedis = Callable[..., RedisServer]


@dataclass
class World:
    """A server of the test's own with its admin: what the reconcile layer does, in few lines."""

    server: RedisServer
    admin: RedisAdmin
    abilities: AclAbilities
    provisioned: dict[str, frozenset[str]] = field(default_factory=dict)

    async def topic(self, want: topics.Want) -> Outcome:
        """Bring one topic to what it shall be."""
        while True:
            snapshot = await self.admin.observe({want.key: [group.name for group in want.spec.groups]})
            have = topics.Observed(
                owners=snapshot.owners,
                stream=snapshot.stream(want.key),
                provisioned=self.provisioned.get(want.record.uid, frozenset()),
            )
            todo = topics.plan(want, have)
            failure = first_failure(await self.admin.apply(todo.actions))
            if not todo.again:
                outcome = topics.conclude(want, have, todo, failure)
                if outcome.ready:
                    self.provisioned[want.record.uid] = frozenset(group.name for group in want.spec.groups)
                return outcome

    async def client(self, want: clients.Want) -> Outcome:
        """Bring one client to what it shall be."""
        while True:
            snapshot = await self.admin.observe({}, [want.username])
            have = clients.Observed(owners=snapshot.owners, user=snapshot.user(want.username), abilities=self.abilities)
            todo = clients.plan(want, have)
            failure = first_failure(await self.admin.apply(todo.actions))
            if not todo.again:
                return clients.conclude(want, todo, failure)

    async def policy(self, want: leases.Want) -> Outcome:
        """Bring one policy to what it shall be."""
        while True:
            todo = leases.plan(want, leases.Observed(owners=(await self.admin.observe({})).owners))
            failure = first_failure(await self.admin.apply(todo.actions))
            if not todo.again:
                return leases.conclude(want, todo, failure)

    async def remove_topic(self, want: topics.Want) -> None:
        """Carry out the removal of a topic."""
        snapshot = await self.admin.observe({want.key: ()})
        have = topics.Observed(owners=snapshot.owners, stream=snapshot.stream(want.key))
        assert first_failure(await self.admin.apply(topics.plan_removal(want, have).actions)) is None

    def calls(self) -> dict[str, int]:
        """How often each command was called so far."""
        stats = self.server.cli("INFO", "commandstats")
        return {name.removeprefix("cmdstat_"): entry["calls"] for name, entry in stats.items()}

    def groups(self, key: str) -> set[str]:
        """The groups of a stream."""
        return {group["name"] for group in self.server.cli("XINFO", "GROUPS", key)}


def first_failure(results: Sequence[Any]) -> Refusal | None:
    """The first failure among results."""
    return next((result.failure for result in results if result.failure is not None), None)


def want_topic(name: str = "orders", *, prefix: str = "streamhold:shop", **spec: Any) -> topics.Want:
    """A wanted topic."""
    return topics.Want.of(a_topic(name, **spec), prefix=prefix, cluster=CLUSTER)


def want_client(name: str = "checkout", *, provisioned: bool = False, **rest: Any) -> clients.Want:
    """A wanted client with some grants."""
    made = a_client(name, provisioned=provisioned, **rest)
    grants = (topic_grant("orders", "Publish", "Consume"),)
    passwords = (clients.password_digest("secret"),)
    return clients.Want.of(made, cluster=CLUSTER, topics=grants, leases=(lease_grant("jobs/"),), passwords=passwords)


@pytest.fixture
async def world(own_redis: OwnRedis, admin_of: AdminOf, redis_flavour: str) -> World:
    """A server of each flavour in turn."""
    server = own_redis(redis_flavour, password="secret", aclfile=True)
    admin = admin_of(server)
    return World(server, admin, (await admin.probe()).abilities)


async def test_a_new_topic_gets_its_groups(world: World) -> None:
    outcome = await world.topic(want_topic(groups=("billing",), latest=("audit",)))
    assert (outcome.ready, outcome.repairs) == (True, ())
    assert outcome.status["streamKey"] == "streamhold:shop:orders"
    assert world.groups("streamhold:shop:orders") == {"billing", "audit"}
    assert world.server.cli("PTTL", "streamhold:shop:orders") == -1


async def test_an_existing_stream_is_adopted_and_its_other_groups_are_left_alone(world: World) -> None:
    key = "streamhold:shop:orders"
    for number in range(3):
        world.server.cli("XADD", key, "*", "event", str(number))
    world.server.cli("XGROUP", "CREATE", key, "old", "0")
    assert (await world.topic(want_topic(groups=("billing",), latest=("audit",)))).ready
    assert world.groups(key) == {"old", "billing", "audit"}
    assert len(world.server.cli("XREADGROUP", "GROUP", "billing", "c", "STREAMS", key, ">")[0][1]) == 3
    assert not world.server.cli("XREADGROUP", "GROUP", "audit", "c", "STREAMS", key, ">")


@pytest.mark.parametrize(("command", "kind"), [(("SET", "text"), "string"), (("RPUSH", "one"), "list")])
async def test_a_key_of_another_type_is_told_and_never_touched(
    world: World, command: tuple[str, str], kind: str
) -> None:
    key = "streamhold:shop:orders"
    world.server.cli(command[0], key, command[1])
    for want in (want_topic(groups=("billing",), idleTtl="60s"), want_topic(deletionPolicy="Delete")):
        outcome = await world.topic(want)
        assert outcome.reason == Reason.WRONG_TYPE
        assert key in outcome.message
        assert kind in outcome.message
        await world.remove_topic(want)
    assert world.server.cli("TYPE", key) == kind
    assert world.server.cli("PTTL", key) == -1


async def test_late_actions_do_not_touch_a_key_of_another_type_either(world: World) -> None:
    world.server.cli("SET", "k", "text")
    results = await world.admin.apply(
        [
            CreateGroup(key="k", group="g", start="0", idle_ttl_ms=1000),
            CreateGroup(key="k", group="g", start="0"),
            DeleteStream(key="k", companions=("k2",)),
        ]
    )
    assert [result.failure and result.failure.reason for result in results] == [Reason.WRONG_TYPE] * 2 + [None]
    assert world.server.cli("GET", "k") == "text"
    assert world.server.cli("PTTL", "k") == -1


async def test_a_topic_with_an_idle_ttl_expires_from_its_first_group_on_and_stays_away(world: World) -> None:
    want = want_topic(groups=("billing",), idleTtl="60s")
    assert (await world.topic(want)).ready
    assert 0 < world.server.cli("PTTL", want.key) <= 60_000
    world.server.cli("DEL", want.key)  # what expiry does
    outcome = await world.topic(want)
    assert (outcome.ready, outcome.repairs) == (True, ())
    assert "expired" in outcome.message
    assert world.server.cli("EXISTS", want.key) == 0
    world.server.cli("XADD", want.key, "*", "event", "1")
    assert (await world.topic(want)).ready
    assert len(world.server.cli("XREADGROUP", "GROUP", "billing", "c", "STREAMS", want.key, ">")[0][1]) == 1


async def test_a_group_declared_later_is_created_though_the_topic_expired(world: World) -> None:
    uid = "0000-later"
    assert (await world.topic(want_topic(groups=("billing",), idleTtl="60s", uid=uid))).ready
    world.server.cli("DEL", "streamhold:shop:orders")
    later = want_topic(groups=("billing", "audit"), idleTtl="60s", uid=uid, created="2026-01-01T00:00:01Z")
    assert (await world.topic(later)).ready
    assert world.groups("streamhold:shop:orders") == {"billing", "audit"}
    assert world.server.cli("PTTL", "streamhold:shop:orders") > 0


async def test_case_O06_a_destroyed_group_comes_back_where_it_was(world: World) -> None:
    want = want_topic(groups=("billing",), latest=("audit",))
    await world.topic(want)
    for number in range(3):
        world.server.cli("XADD", want.key, "*", "event", str(number))
    for group in ("billing", "audit"):
        world.server.cli("XREADGROUP", "GROUP", group, "c", "COUNT", "2", "STREAMS", want.key, ">")
    assert (await world.topic(want)).repairs == ()
    for group in ("billing", "audit"):
        world.server.cli("XGROUP", "DESTROY", want.key, group)
    outcome = await world.topic(want)
    assert outcome.ready
    assert len(outcome.repairs) == 1
    assert "audit, billing" in outcome.repairs[0]
    for group in ("billing", "audit"):
        read = world.server.cli("XREADGROUP", "GROUP", group, "c", "STREAMS", want.key, ">")
        assert [fields["event"] if isinstance(fields, dict) else fields[1] for _, fields in read[0][1]] == ["2"]
    assert (await world.topic(want)).repairs == ()


async def test_case_O06_a_flushed_server_is_provisioned_again(world: World) -> None:
    topic, client, policy = want_topic(latest=("audit",)), want_client(), a_policy()
    lease = leases.Want.of(policy, prefix="streamhold:shop", cluster=CLUSTER)
    assert (await world.topic(topic)).ready
    assert (await world.client(client)).ready
    assert (await world.policy(lease)).ready
    world.server.cli("XADD", topic.key, "*", "event", "before")
    assert (await world.topic(topic)).ready
    world.server.cli("FLUSHALL")
    world.server.cli("XADD", topic.key, "1-1", "event", "after")
    outcome = await world.topic(topic)
    assert len(outcome.repairs) == 1
    assert (await world.client(client)).ready
    assert (await world.policy(lease)).ready
    assert len((await world.admin.observe({})).owners.records) == 3
    # What was written to the new stream before the repair is not skipped, though the group starts at the latest.
    assert len(world.server.cli("XREADGROUP", "GROUP", "audit", "c", "STREAMS", topic.key, ">")[0][1]) == 1


async def test_case_O06_a_deleted_or_changed_user_comes_back(world: World) -> None:
    uid = "0000-user"
    assert (await world.client(want_client(uid=uid, created="2026-01-01T00:00:00Z"))).repairs == ()
    again = want_client(uid=uid, created="2026-01-01T00:00:00Z", provisioned=True)
    world.server.cli("ACL", "DELUSER", again.username)
    assert "gone" in (await world.client(again)).repairs[0]
    world.server.cli("ACL", "SETUSER", again.username, "+@all", "~*")
    assert "other rights" in (await world.client(again)).repairs[0]
    assert (await world.client(again)).repairs == ()


async def test_case_O14_an_idle_resync_writes_nothing(world: World) -> None:
    wanted_topics = [want_topic(f"topic-{number}", groups=("g",)) for number in range(10)]
    wanted_topics += [want_topic("brief", groups=("g",), idleTtl="1h"), want_topic("family", topicPrefix="run.")]
    wanted_clients = [want_client(f"client-{number}") for number in range(5)]
    lease = leases.Want.of(a_policy(), prefix="streamhold:shop", cluster=CLUSTER)

    async def resync() -> None:
        async with anyio.create_task_group() as group:
            for topic in wanted_topics:
                group.start_soon(world.topic, topic)
            for client in wanted_clients:
                group.start_soon(world.client, client)
            group.start_soon(world.policy, lease)

    await resync()
    before, saved = world.calls(), (world.server.folder / "users.acl").stat()
    for _ in range(3):
        await resync()
    after = world.calls()
    changed = {name for name, count in after.items() if count != before.get(name, 0)}
    assert changed <= READS | OF_THE_TEST
    assert (world.server.folder / "users.acl").stat().st_mtime_ns == saved.st_mtime_ns


READS = {"info", "hgetall", "type", "xinfo", "xinfo|groups", "acl|getuser", "acl|cat"}
# Redis 6.2 counts ACL as one; there the users' file tells.
OF_THE_TEST = {"acl", "auth", "hello", "client|setinfo", "client", "ping"}


async def test_objects_worked_on_at_once_share_their_batches(world: World) -> None:
    wanted = [want_topic(f"topic-{number}", groups=("g",)) for number in range(200)]
    before = world.calls()
    async with anyio.create_task_group() as group:
        for topic in wanted:
            group.start_soon(world.topic, topic)
    after = world.calls()
    assert after["hgetall"] - before.get("hgetall", 0) <= 10
    snapshot = await world.admin.observe({topic.key: ["g"] for topic in wanted})
    assert all(state.groups == {"g"} for state in snapshot.streams.values())


async def test_case_O07_of_two_topics_with_one_key_the_older_has_it_until_it_goes(world: World) -> None:
    older, younger = want_topic("older", topic="orders", groups=("a",)), want_topic("younger", topic="orders")
    pair = [older, younger]
    random.shuffle(pair)
    for want in pair:  # in any order …
        await world.topic(want)
    for _ in range(3):  # … and for ever after
        assert (await world.topic(older)).ready
        outcome = await world.topic(younger)
        assert outcome.reason == Reason.CONFLICT
        assert "StreamTopic shop/older" in outcome.message
    world.server.cli("XADD", older.key, "*", "event", "1")
    await world.remove_topic(older)
    assert world.server.cli("XLEN", older.key) == 1
    assert (await world.topic(younger)).ready


async def test_operators_of_two_clusters_agree_on_the_owner(world: World, admin_of: AdminOf) -> None:
    far = World(world.server, admin_of(world.server), world.abilities)
    here = topics.Want.of(a_topic("orders"), prefix="shared", cluster="cluster-a")
    there = topics.Want.of(a_topic("orders"), prefix="shared", cluster="cluster-b")
    async with anyio.create_task_group() as group:
        group.start_soon(world.topic, here)
        group.start_soon(far.topic, there)
    assert (await world.topic(here)).ready
    outcome = await far.topic(there)
    assert outcome.reason == Reason.CONFLICT
    assert "cluster-a" in outcome.message


async def test_the_delete_policy_takes_the_stream_and_its_companions(world: World) -> None:
    want = want_topic(groups=("g",), deletionPolicy="Delete")
    await world.topic(want)
    kept = [companion(want.prefix, kind, want.key) for kind in ("dead", "delayed")]
    for key in (*kept, "streamhold:shop:orders2"):
        world.server.cli("XADD", key, "*", "event", "1")
    await world.remove_topic(want)
    assert world.server.cli("EXISTS", want.key, *kept) == 0
    assert world.server.cli("EXISTS", "streamhold:shop:orders2") == 1
    assert world.server.cli("HLEN", OWNERS_KEY) == 0


async def test_the_delete_policy_of_a_family_takes_its_streams_only(world: World) -> None:
    want = want_topic("runs", topicPrefix="run.", deletionPolicy="Delete")
    await world.topic(want)
    for number in range(0, 1500, 10):
        world.server.cli("XADD", f"{want.key}{number}", "*", "event", "1")
    dead = companion(want.prefix, "dead", f"{want.key}10")
    world.server.cli("XADD", dead, "*", "event", "1")
    world.server.cli("SET", f"{want.key}text", "not a stream")
    world.server.cli("XADD", "streamhold:shop:running", "*", "event", "1")
    await world.remove_topic(want)
    assert sorted(world.server.cli("KEYS", "*")) == [f"{want.key}text", "streamhold:shop:running"]


async def test_the_delete_policy_of_a_loser_takes_nothing(world: World) -> None:
    older = want_topic("older", topic="orders", groups=("a",))
    younger = want_topic("younger", topic="orders", deletionPolicy="Delete")
    await world.topic(older)
    await world.topic(younger)
    await world.remove_topic(younger)
    assert world.server.cli("EXISTS", older.key) == 1
    assert (await world.topic(older)).ready


async def test_what_is_in_the_owner_record_and_no_record_claims_nothing(world: World) -> None:
    world.server.cli("HSET", OWNERS_KEY, "cluster/uid", "not json", "nonsense", "{}")
    assert (await world.topic(want_topic())).ready
    owners = (await world.admin.observe({})).owners
    assert owners.unreadable == ("cluster/uid", "nonsense")


async def test_an_owner_record_of_another_type_is_told(world: World) -> None:
    world.server.cli("SET", OWNERS_KEY, "x")
    with pytest.raises(Refusal) as caught:
        await world.admin.observe({})
    assert caught.value.reason == Reason.WRONG_TYPE
    assert OWNERS_KEY in caught.value.message


async def test_actions_fail_each_for_itself(world: World) -> None:
    world.server.cli("SET", "text", "x")
    record = OwnerRecord(
        cluster="c", uid="u", kind="StreamTopic", namespace="n", name="o", created="2026", claims=("key:k",)
    )
    results = await world.admin.apply(
        [
            CreateGroup(key="text", group="g", start="0"),
            RegisterClaim(record),
            CreateGroup(key="k", group="g", start="0"),
            CreateGroup(key="k", group="g", start="0"),
        ]
    )
    assert [result.failure is None for result in results] == [False, True, True, True]
    assert (await world.admin.observe({})).owners == Owners([record])


async def test_a_full_server_refuses_with_advice(world: World) -> None:
    world.server.cli("CONFIG", "SET", "maxmemory", "1")
    (result,) = await world.admin.apply([CreateGroup(key="k", group="g", start="0")])
    assert result.failure is not None
    assert result.failure.reason == Reason.SERVER_REFUSED
    assert "maxmemory" in result.failure.message


async def test_rights_that_were_taken_away_later_are_named(world: World, admin_of: AdminOf) -> None:
    world.server.cli("ACL", "SETUSER", "second", "on", ">pw", "~*", "&*", "+@all")
    admin = admin_of(world.server, username="second", password="pw")
    await admin.observe({})
    world.server.cli("ACL", "SETUSER", "second", "-xgroup", "-acl")
    results = await admin.apply(
        [
            CreateGroup(key="k", group="g", start="0"),
            SetUser(username="x", rule=want_client().rule(world.abilities)),
        ]
    )
    assert [result.failure and result.failure.reason for result in results] == [Reason.MISSING_RIGHTS] * 2
    snapshot = await admin.observe({}, ["x"])
    with pytest.raises(Refusal) as caught:
        snapshot.user("x")
    assert caught.value.reason == Reason.MISSING_RIGHTS
    world.server.cli("ACL", "DELUSER", "second")
    with pytest.raises(Refusal) as caught:
        await admin.observe({})
    assert caught.value.reason == Reason.AUTH_FAILED


async def test_no_actions_are_no_call(admin_of: AdminOf, own_redis: OwnRedis) -> None:
    server = own_redis()
    admin = admin_of(server)
    server.stop()
    assert await admin.apply([]) == ()


async def test_a_database_other_than_0_is_used(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    server = own_redis()
    admin = admin_of(server, database=5)
    await admin.apply([CreateGroup(key="k", group="g", start="0")])
    assert server.cli("EXISTS", "k") == 0
    assert (await admin.observe({"k": ["g"]})).streams["k"].groups == {"g"}


async def test_closing_ends_at_once_and_may_be_repeated(own_redis: OwnRedis, admin_of: AdminOf) -> None:
    server = own_redis()
    admin = admin_of(server)
    await admin.observe({})
    server.pause()
    with anyio.fail_after(1):
        await admin.aclose()
        await admin.aclose()
    server.resume()
    async with server.client() as client:
        names = [entry["name"] for entry in await client.client_list()]
    assert "streamhold-operator" not in names

"""A hub on a mounted binding: topics, settings and rights are those that the operator granted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import streamhold
from streamhold import AccessNotGranted, BindingError, ConfigError, Event, LeaseNotDeclared, Settle, TopicNotDeclared
from streamhold.keys import companion
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio
Connect = Callable[..., streamhold.RedisStreamsPubSub]


@pytest.fixture
def mount(tmp_path: Path, redis_server: RedisServer, key_prefix: str) -> Callable[..., Path]:
    """Write a binding folder that grants these topics and leases on the session's server."""

    def mount(topics: list[dict[str, Any]], leases: list[dict[str, Any]] | None = None) -> Path:
        content = {
            "version": 1,
            "client": {"namespace": "shop", "name": "checkout"},
            "connection": {
                "topology": "Standalone",
                "endpoints": [f"{redis_server.host}:{redis_server.port}"],
                "database": 0,
                "tls": None,
            },
            "topics": topics,
            "leases": leases or [],
        }
        files = {
            "type": "redis",
            "provider": "streamhold",
            "username": redis_server.admin_username,
            "password": redis_server.password or "",
            "streamhold.json": json.dumps(content),
        }
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return tmp_path

    return mount


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connect hubs that are closed afterwards."""
    async with AsyncExitStack() as stack:

        def connect(*args: Any, **options: Any) -> streamhold.RedisStreamsPubSub:
            hub = streamhold.connect(*args, **options)
            stack.push_async_callback(hub.close)
            return hub

        yield connect


def a_topic(prefix: str, name: str = "orders", **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "topic": name,
        "prefix": prefix,
        "family": False,
        "access": ["Publish", "Consume"],
        "maxLength": 100,
        "idleTtlMs": 0,
        "reclaimIntervalMs": 30000,
        "reclaimMinIdleMs": 60000,
        "maxDeliveryAttempts": 2,
        "inFlightTimeoutMs": 0,
        "deadLetter": {"enabled": True, "maxLength": 10},
        "groups": [],
        **changes,
    }


async def test_the_settings_of_a_topic_are_those_of_the_binding(
    mount: Callable[..., Path], connect: Connect, key_prefix: str, redis_server: RedisServer
) -> None:
    hub = connect(mount([a_topic(key_prefix, idleTtlMs=60_000)]), block_ms=100)
    nacking = Recorder.nacking()
    await hub.subscribe("orders", nacking, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: hub.counters.dead_lettered == 1)
    assert nacking.attempts == [1, 2]
    async with redis_server.client() as plain:
        assert 55_000 < await plain.pttl(f"{key_prefix}:orders") <= 60_000
        assert await plain.xlen(companion(key_prefix, "dead", f"{key_prefix}:orders")) == 1


async def test_a_topic_of_another_namespace_has_its_own_name_in_code(
    mount: Callable[..., Path], connect: Connect, key_prefix: str, redis_server: RedisServer
) -> None:
    hub = connect(mount([a_topic(f"{key_prefix}:other", "bank/payments", topic="payments")]))
    await hub.publish("bank/payments", an_event(1))
    async with redis_server.client() as plain:
        assert await plain.xlen(f"{key_prefix}:other:payments") == 1


async def test_every_topic_of_a_family_is_granted(
    mount: Callable[..., Path], connect: Connect, key_prefix: str, redis_server: RedisServer
) -> None:
    hub = connect(mount([a_topic(key_prefix, "agent.run.", family=True)]), block_ms=100)
    recorder = Recorder()
    await hub.subscribe("agent.run.17", recorder)
    await hub.publish("agent.run.17", an_event(1))
    await eventually(lambda: recorder.data == [1])
    with pytest.raises(TopicNotDeclared):
        await hub.publish("agent.walk.17", an_event())


async def test_an_undeclared_topic_is_an_error_that_names_the_declared_ones(
    mount: Callable[..., Path], connect: Connect, key_prefix: str
) -> None:
    hub = connect(mount([a_topic(key_prefix), a_topic(key_prefix, "receipts")]))
    for call in (hub.publish("nothing", an_event()), hub.subscribe("nothing", Recorder())):
        with pytest.raises(TopicNotDeclared, match=r"'nothing'.*'orders', 'receipts'"):
            await call
    with pytest.raises(TopicNotDeclared):
        async with hub.messages("nothing"):
            pytest.fail("it was entered")


@pytest.mark.parametrize(("access", "missing"), [(["Publish"], "Consume"), (["Consume"], "Publish")])
async def test_an_access_that_is_not_granted_is_an_error_that_names_it(
    mount: Callable[..., Path], connect: Connect, key_prefix: str, access: list[str], missing: str
) -> None:
    hub = connect(mount([a_topic(key_prefix, access=access)]), block_ms=100)
    call = hub.publish("orders", an_event()) if missing == "Publish" else hub.subscribe("orders", Recorder())
    with pytest.raises(AccessNotGranted, match=f"orders.*{missing}"):
        await call


async def test_clearing_a_topic_without_the_right_warns_c24(
    mount: Callable[..., Path], connect: Connect, key_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = connect(mount([a_topic(key_prefix)]))
    await hub.publish("orders", an_event())
    await hub.clear_topic("orders")
    assert "Manage" in caplog.text


async def test_leases_are_those_of_the_binding(mount: Callable[..., Path], connect: Connect, key_prefix: str) -> None:
    family = {
        "name": "jobs/", "keys": "jobs/", "prefix": key_prefix, "ttlMs": 1200, "renewIntervalMs": 400,
        "lockDelayMs": 0, "fencing": True, "maxHoldMs": 0,
    }  # fmt: skip
    hub = connect(mount([], [family]))
    async with hub.hold_lease("jobs/nightly") as lease:
        assert lease.token
        assert await hub.get_lease_owner("jobs/nightly") == lease.owner
    with pytest.raises(LeaseNotDeclared, match="jobs/"):
        await hub.acquire_lease("other/x", "me", 1000)


@pytest.mark.parametrize(
    ("option", "value"), [("key_prefix", "x"), ("max_stream_length", 1), ("nonsense", 1), ("block_ms", 0)]
)
async def test_options_that_the_binding_decides_are_refused(
    mount: Callable[..., Path], key_prefix: str, option: str, value: Any
) -> None:
    with pytest.raises(ConfigError) as refused:
        streamhold.connect(mount([a_topic(key_prefix)]), **{option: value})
    assert refused.value.option == option


def test_connect_without_a_target_finds_the_mounted_binding(
    mount: Callable[..., Path], key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMHOLD_BINDING", str(mount([a_topic(key_prefix)])))
    assert not streamhold.connect().closed


def test_connect_says_what_is_wrong_with_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMHOLD_BINDING", raising=False)
    monkeypatch.delenv("SERVICE_BINDING_ROOT", raising=False)
    with pytest.raises(BindingError, match="STREAMHOLD_BINDING"):
        streamhold.connect()
    with pytest.raises(BindingError, match="missing"):
        streamhold.connect(tmp_path)
    with pytest.raises(ConfigError, match="kafka"):
        streamhold.connect("kafka://localhost")
    with pytest.raises(ConfigError, match="target"):
        streamhold.connect(7)  # type: ignore[arg-type]


async def test_a_new_topic_is_read_while_a_read_that_cannot_be_ended_is_blocked(
    mount: Callable[..., Path], connect: Connect, key_prefix: str
) -> None:
    hub = connect(mount([a_topic(key_prefix, "run.", family=True)]))
    reader_of = hub._subscriptions._readers
    await hub.subscribe("run.0", Recorder(), group="g")
    during: list[bool] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        during.append(reader_of["g"]._reading is blocked)
        await ack()

    for number in range(1, 6):  # in each the read under way might happen to end
        for topic in ("publish", "twice"):
            await hub.publish(f"run.{number}", an_event(topic))
        await eventually(lambda: reader_of["g"]._reading)
        blocked = reader_of["g"]._reading
        await hub.subscribe(f"run.{number}", handle, group="g")
        await eventually(lambda number=number: len(during) == 2 * number)  # type: ignore[misc]
    assert True in during
    await hub.publish("run.1", an_event("later"))
    await eventually(lambda: len(during) == 11)

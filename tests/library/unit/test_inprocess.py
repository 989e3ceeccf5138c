"""What is particular to the in-process backend: its options, its server and its clock (C-25, C-29)."""

from __future__ import annotations

from importlib import resources
from typing import Any

import anyio
import pytest

import streamhold
from streamhold import ConfigError, HubClosed, InProcessPubSub, InProcessServer, RedisStreamsPubSub
from streamhold._backends.inprocess import steps
from streamhold._backends.inprocess.server import InProcessClient
from streamhold.errors import BackendError
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def test_connect_makes_one_that_needs_nothing() -> None:
    async with streamhold.connect("inprocess://", max_stream_length=10) as hub:
        assert isinstance(hub, InProcessPubSub)
        assert streamhold.EventEmitterPubSub is InProcessPubSub
        await hub.publish("orders", an_event(1))
        async with hub.messages("orders", group="g") as messages:
            message = await messages.next(timeout=5)
            assert message.event["data"] == 1
            await message.ack()


def test_it_offers_both_modes_and_redis_one_c25() -> None:
    assert InProcessPubSub().supported_modes == ("pull", "push")
    assert RedisStreamsPubSub().supported_modes == ("pull",)


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("server", "redis://localhost"),
        ("key_prefix", ""),
        ("max_stream_length", -1),
        ("stream_idle_ttl_ms", 1.5),
        ("reclaim_interval_ms", -1),
        ("reclaim_idle_ms", 0),
        ("max_delivery_attempts", -1),
        ("in_flight_timeout_ms", True),
        ("logger", "log"),
        ("close_timeout", 0),
        ("dead_letters", 1),
        ("dead_letter_max_length", -1),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        InProcessPubSub(**{option: wrong})
    assert refused.value.option == option


def test_a_clock_must_be_callable() -> None:
    with pytest.raises(ConfigError, match="clock"):
        InProcessServer(clock=7)  # type: ignore[arg-type]


def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="inprocess://"):
        streamhold.connect("nats://localhost")


async def test_hubs_share_a_server_that_is_given_and_nothing_else() -> None:
    server = InProcessServer()
    async with (
        InProcessPubSub(server) as ours, InProcessPubSub(server) as theirs,
        InProcessPubSub(server, key_prefix="other") as elsewhere, InProcessPubSub() as alone,
    ):  # fmt: skip
        recorders = [Recorder() for _ in range(4)]
        for hub, recorder in zip((ours, theirs, elsewhere, alone), recorders, strict=True):
            await hub.subscribe("orders", recorder)
        assert (await ours.acquire_lease("k", "a", 15_000)).acquired
        assert await theirs.get_lease_owner("k") == "a"
        assert await elsewhere.get_lease_owner("k") is None
        assert await alone.get_lease_owner("k") is None
        for hub in (elsewhere, alone, ours):
            await hub.publish("orders", an_event(hub is ours))
        await eventually(lambda: [recorder.data for recorder in recorders] == [[True], [True], [False], [False]])


async def test_what_a_handler_changes_reaches_nobody_else() -> None:
    async with InProcessPubSub() as hub:
        seen: list[list[int]] = []

        async def change(event: streamhold.Event, ack: streamhold.Settle, nack: streamhold.Settle) -> None:
            seen.append(list(event["data"]))
            event["data"].append(len(seen))
            await (ack() if event["deliveryAttempt"] == 2 else nack())

        data = [0]
        await hub.subscribe("orders", change, group="g")
        await hub.subscribe("orders", lambda event, ack, nack: change(event, ack, nack))
        await hub.publish("orders", an_event(data))
        await eventually(lambda: len(seen) == 4)
        assert seen == [[0]] * 4
        assert data == [0]


async def test_a_lease_ends_by_the_clock_that_was_given() -> None:
    clock = Clock()
    async with InProcessPubSub(InProcessServer(clock=clock)) as hub:
        first = await hub.acquire_lease("k", "a", 15_000)
        clock.now += 14.9
        assert await hub.get_lease_owner("k") == "a"
        assert not (await hub.acquire_lease("k", "b", 15_000)).acquired
        clock.now += 0.2
        assert await hub.get_lease_owner("k") is None
        assert not await hub.renew_lease("k", "a", 15_000)
        second = await hub.acquire_lease("k", "b", 15_000)
        assert second.token is not None
        assert first.token is not None
        assert second.token > first.token


async def test_tokens_and_entries_grow_also_when_the_clock_goes_back() -> None:
    clock = Clock()
    async with InProcessPubSub(InProcessServer(clock=clock)) as hub:
        recorder, tokens = Recorder(), []
        await hub.subscribe("orders", recorder, group="g")
        for number in range(3):
            await hub.publish("orders", an_event(number))
            tokens.append((await hub.acquire_lease(f"k{number}", "a", 15_000)).token)
            await hub.clear_topic("orders") if number == 1 else await anyio.lowlevel.checkpoint()
            clock.now -= 3600
        assert tokens == sorted(set(tokens))
        await eventually(lambda: 2 in recorder.data)


async def test_expired_topics_and_leases_take_no_memory_c11() -> None:
    clock = Clock()
    server = InProcessServer(clock=clock)
    async with InProcessPubSub(server, stream_idle_ttl_ms=60_000) as hub:
        for number in range(100):
            for _ in range(5):
                await hub.publish(f"topic-{number}", an_event())
            await hub.acquire_lease(f"k{number}", "a", 60_000)
        assert len(server._space._due) == 300  # topics, leases and their records, however often they were written
        clock.now += 61
        await hub.get_lease_owner("k")
        assert len(server._space._values) == 1  # the floor of the tokens
        assert not server._space._due


async def test_writing_keeps_a_topic_and_reading_does_not_c11() -> None:
    clock = Clock()
    server = InProcessServer(clock=clock)
    plain = InProcessClient(server)
    async with InProcessPubSub(server, stream_idle_ttl_ms=60_000) as hub:
        await hub.publish("orders", an_event(1))
        clock.now += 40
        await hub.publish("orders", an_event(2))
        clock.now += 40
        recorder = Recorder()
        await hub.subscribe("orders", recorder)  # makes a group, which is a write
        await eventually(lambda: recorder.data == [1, 2])
        clock.now += 59
        assert await plain.execute("EXISTS", "mastra:topic:orders")
        clock.now += 2
        assert not await plain.execute("EXISTS", "mastra:topic:orders")


async def test_a_length_keeps_the_newest_entries() -> None:
    server = InProcessServer()
    async with InProcessPubSub(server, max_stream_length=3) as hub:
        for number in range(10):
            await hub.publish("orders", an_event(number))
        recorder = Recorder()
        await hub.subscribe("orders", recorder)
        await eventually(lambda: recorder.data == [7, 8, 9])


def test_there_is_a_step_for_each_script_of_the_redis_backend() -> None:
    scripts = {path.name.removesuffix(".lua") for path in resources.files("streamhold._backends.redis.lua").iterdir()}
    assert scripts - {"__pycache__"} == set(steps._STEPS)


async def test_what_the_server_does_not_know_is_refused() -> None:
    client = InProcessClient(InProcessServer())
    with pytest.raises(BackendError, match="FLUSHALL"):
        await client.execute("FLUSHALL")
    await client.execute("SET", "a", "b")
    with pytest.raises(streamhold.WrongKeyType, match="'a'"):
        await client.execute("XLEN", "a")


async def test_a_read_that_waits_ends_when_it_is_told_and_when_its_client_is_closed() -> None:
    client = InProcessClient(InProcessServer())
    await client.execute("XGROUP", "CREATE", "s", "STREAMS", "$", "MKSTREAM")
    reader = await client.open_reader("g")
    read = ("XREADGROUP", "GROUP", "STREAMS", "c", "BLOCK", 60_000, "STREAMS", "s", ">")
    ended: list[Any] = []

    async def wait() -> None:
        try:
            ended.append(await reader.execute(*read, block=60))
        except HubClosed:
            ended.append(HubClosed)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await eventually(lambda: client.execute("CLIENT", "UNBLOCK", reader.connection_id))
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await client.aclose()
    assert ended == [None, HubClosed]
    with pytest.raises(HubClosed):
        await client.execute("GET", "a")
    with pytest.raises(HubClosed):
        await client.open_reader("g")
    assert not client._readers

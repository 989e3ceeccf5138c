"""Streams shared with pods of the TypeScript reference: what it wrote we read, what we write it can read (C-1 to C-3).

The recordings are what the reference really sent and what Redis held afterwards (`data/streams.json`). A plain client
that sends the recorded commands stands for its pods.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio

from streamhold import RedisStreamsPubSub
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio

RECORDINGS: dict[str, dict[str, Any]] = {
    recording["scenario"]: recording
    for recording in json.loads(Path(__file__).with_name("data").joinpath("streams.json").read_text())
}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
CREATED_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
Make = Callable[..., RedisStreamsPubSub]


@pytest.fixture
async def make(redis_server: RedisServer, key_prefix: str) -> AsyncIterator[Make]:
    """Make hubs with the prefix of the test."""
    async with AsyncExitStack() as stack:

        def make(**options: Any) -> RedisStreamsPubSub:
            settings = {"key_prefix": key_prefix, "block_ms": 100, "reclaim_interval_ms": 0, **options}
            hub = RedisStreamsPubSub(redis_server.url(), **settings)
            stack.push_async_callback(hub.close)
            return hub

        yield make


@pytest.fixture
async def pod(redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """A client that sends what a TypeScript pod would send."""
    async with redis_server.client() as client:
        yield client


def recorded_entries(scenario: str) -> list[list[str]]:
    """The fields of the entries at the end of a scenario."""
    state = RECORDINGS[scenario]["state"]
    key = "mastra:topic:orders" if "mastra:topic:orders" in state else next(iter(state))
    return [fields for _, fields in state[key]["xrange"]]


def recorded_xadds() -> Iterator[tuple[str, list[str]]]:
    """Every XADD that the reference sent, with the scenario it belongs to."""
    for scenario, recording in RECORDINGS.items():
        for step in recording["steps"]:
            for command in step["commands"]:
                if command[0] == "XADD":
                    yield scenario, command


def normalised(event_json: str) -> str:
    """The JSON with our random id and time replaced by those of the recordings; everything else byte by byte."""
    ids = UUID.findall(event_json)
    event_json = event_json.replace(ids[0], "<id>") if ids else event_json
    return CREATED_AT.sub("<time>", event_json)


async def entries(pod: redis.asyncio.Redis, key: str) -> list[list[str]]:
    """The fields of all entries, flat as in the recordings."""
    return [[part for field in fields.items() for part in field] for _, fields in await pod.xrange(key)]


# ---- what we publish ----

EVENT_1 = {"type": "order.created", "data": {"n": 1}, "runId": "run-1"}
PUBLISHED: list[tuple[str, list[dict[str, Any]]]] = [
    ("publish/defaults", [EVENT_1, {**EVENT_1, "data": {"n": 2}}]),
    (
        "publish/extra members",
        [
            {
                "id": "mine", "type": "order.created", "data": {"n": 1}, "runId": "run-1", "index": 7,
                "traceId": "t-1", "createdAt": "2020-01-01", "deliveryAttempt": 3,
            },
            {**EVENT_1, "deliveryAttempt": 0},
            {**EVENT_1, "deliveryAttempt": None},
            {},
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "events"), PUBLISHED, ids=[scenario for scenario, _ in PUBLISHED])
async def test_published_entries_have_the_recorded_shape(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str, scenario: str, events: list[dict[str, Any]]
) -> None:
    hub = make()
    for event in events:
        await hub.publish("orders", event)
    ours, theirs = await entries(pod, f"{key_prefix}:orders"), recorded_entries(scenario)
    assert [[field, normalised(value)] for field, value in ours] == [
        [field, normalised(value)] for field, value in theirs
    ]


async def test_json_values_are_written_as_recorded(make: Make, pod: redis.asyncio.Redis, key_prefix: str) -> None:
    strings = {
        "a": "é漢字😀",
        "b": "</script>/",
        "c": "\0\x1f\x7f\u2028\u2029",
        "d": "\ud800",
        "e": 'tab\tnl\nquote"back\\',
    }
    nested = {"2": "two", "10": "ten", "z": 1, "a": {"y": [], "x": {}}, "when": "2026-01-02T03:04:05.006Z"}
    values: list[Any] = [None, "text", strings, nested]
    hub = make()
    for value in values:
        await hub.publish("orders", an_event(value))
    ours = [normalised(value) for _, value in await entries(pod, f"{key_prefix}:orders")]
    theirs = [normalised(value) for _, value in recorded_entries("publish/JSON values")]
    del theirs[3]  # the numbers, below
    del theirs[1]  # `undefined`, which Python has not
    assert ours == theirs


async def test_numbers_mean_what_the_recorded_ones_mean(make: Make, pod: redis.asyncio.Redis, key_prefix: str) -> None:
    await make().publish("orders", an_event([1, None, None, math.nan, math.inf, -0, 1.0, 0.1, 1e21, 1e-7, 2**53]))
    [[_, ours]] = await entries(pod, f"{key_prefix}:orders")
    assert json.loads(ours)["data"] == json.loads(recorded_entries("publish/JSON values")[3][1])["data"]


@pytest.mark.parametrize(
    ("scenario", "options"),
    [
        ("publish/defaults", {}),
        ("publish/maxStreamLength=100", {"max_stream_length": 100}),
        ("publish/maxStreamLength=0", {"max_stream_length": 0}),
        ("publish/streamIdleTtlMs=60000", {"stream_idle_ttl_ms": 60_000}),
        ("publish/streamIdleTtlMs=60000,maxStreamLength=0", {"stream_idle_ttl_ms": 60_000, "max_stream_length": 0}),
    ],
)
async def test_publishing_sends_the_recorded_commands(
    make: Make, redis_server: RedisServer, key_prefix: str, scenario: str, options: dict[str, Any]
) -> None:
    key = f"{key_prefix}:orders"
    async with redis_server.client() as watcher, watcher.monitor() as monitor:
        await make(**options).publish("orders", EVENT_1)
        sent: list[list[str]] = []
        with anyio.fail_after(5):
            while not sent or (options.get("stream_idle_ttl_ms") and sent[-1][0] != "EXEC"):
                words = (await monitor.next_command())["command"].split(" ")
                if key in words or (words[0] in ("MULTI", "EXEC") and (sent or words[0] == "MULTI")):
                    sent.append(words[:6])
    recorded = [command[:6] for command in RECORDINGS[scenario]["steps"][0]["commands"]]
    expected = [[key if word == "mastra:topic:orders" else word for word in command] for command in recorded]
    assert [_without_json(words) for words in sent] == [_without_json(words) for words in expected]


def _without_json(words: list[str]) -> list[str]:
    return [word for word in words if not word.startswith(("{", '"{'))]


def test_the_default_key_prefix_is_the_references() -> None:
    hub = RedisStreamsPubSub()
    assert hub._place("orders", "Publish").key == "mastra:topic:orders"


# ---- what we read ----


async def test_everything_that_the_reference_published_is_delivered_as_it_was(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    grouped, fan_out = Recorder(), Recorder()
    hub = make()
    await hub.subscribe("orders", grouped, group="workers")
    await hub.subscribe("orders", fan_out)
    published = [command[-1] for _, command in recorded_xadds()]
    for event in published:
        await pod.xadd(f"{key_prefix}:orders", {"event": event}, maxlen=10_000, approximate=True)
    # The attempt is a number for our handlers, also where a foreign writer made the reference spell it as text.
    read = [json.loads(event) for event in published]
    expected = [{**event, "deliveryAttempt": int(event.get("deliveryAttempt", 1))} for event in read]
    await eventually(lambda: len(grouped.events) == len(published) and len(fan_out.events) == len(published))
    assert grouped.events == expected
    assert fan_out.events == expected
    assert hub.counters.invalid == 0


async def test_entries_that_the_reference_refuses_are_refused_and_its_oddities_too_c06(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    hub, recorder = make(), Recorder()
    await hub.subscribe("orders", recorder, group="workers")
    written = 0
    for fields in recorded_entries("invalid entries"):
        await pod.execute_command("XADD", f"{key_prefix}:orders", "*", *fields)
        written += 1
    await eventually(lambda: hub.counters.invalid + len(recorder.events) == written)
    # Of the recorded oddities only the objects are events for us; the reference delivers arrays and numbers too.
    assert [event.get("id") for event in recorder.events] == [None, "second"]
    await eventually(lambda: _pending_is(pod, key_prefix, 0))


async def test_members_of_one_group_on_both_sides_share_the_events(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    key = f"{key_prefix}:orders"
    await pod.xgroup_create(key, "workers", "0", mkstream=True)
    hub, recorder = make(), Recorder()
    await hub.subscribe("orders", recorder, group="workers", max_in_flight=1)
    theirs: list[int] = []
    for number in range(40):
        await hub.publish("orders", an_event(number))
        for _, read in await pod.xreadgroup("workers", "workers-pod", {key: ">"}, count=10, block=1) or ():
            for entry_id, fields in read:
                theirs.append(json.loads(fields["event"])["data"])
                await pod.xack(key, "workers", entry_id)
    await eventually(lambda: len(recorder.events) + len(theirs) == 40)
    assert sorted(recorder.data + theirs) == list(range(40))
    await eventually(lambda: _pending_is(pod, key_prefix, 0))


async def test_what_a_killed_pod_left_is_reclaimed_by_us(make: Make, pod: redis.asyncio.Redis, key_prefix: str) -> None:
    key = f"{key_prefix}:orders"
    await pod.xgroup_create(key, "workers", "0", mkstream=True)
    await make().publish("orders", an_event(1))
    await pod.xreadgroup("workers", "workers-00000000-0000-4000-8000-000000000002", {key: ">"})
    hub, recorder = make(reclaim_interval_ms=100, reclaim_idle_ms=50), Recorder()
    await hub.subscribe("orders", recorder, group="workers")
    await eventually(lambda: recorder.attempts == [2])
    await eventually(lambda: _pending_is(pod, key_prefix, 0))


async def test_a_pods_nack_reaches_every_group_and_subscriber_as_its_next_attempt(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    key, hub = f"{key_prefix}:orders", make()
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="ours")
    await hub.subscribe("orders", fan_out)
    for command in RECORDINGS["nack"]["steps"][0]["commands"]:
        if command[0] == "XADD":
            await pod.execute_command(*[key if word == "mastra:topic:orders" else word for word in command])
    await eventually(lambda: grouped.attempts == fan_out.attempts == [1, 2, 3])


async def test_our_nack_is_for_a_pod_of_the_group_the_same_event_with_the_next_attempt(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    key, hub = f"{key_prefix}:orders", make()
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="workers")
    await hub.publish("orders", EVENT_1)
    await eventually(lambda: silent.events)
    await silent.settles[0][1]()
    first, again = await entries(pod, key)
    assert again[:2] == ["event", first[1].replace('"deliveryAttempt":1', '"deliveryAttempt":2')]
    assert again[2:] == ["streamhold-group", "workers"]


async def test_a_foreign_entry_is_redelivered_with_more_than_the_reference_keeps_c03(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    key, hub = f"{key_prefix}:orders", make()
    original, theirs = recorded_entries("nack/foreign entry is rewritten")
    recorder = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] == 3 else nack())
    await hub.subscribe("orders", recorder, group="workers")
    await pod.execute_command("XADD", key, "*", *original)
    await eventually(lambda: recorder.attempts == [2, 3])
    fields = (await pod.xrange(key))[-1][1]
    before, after = json.loads(original[3]), json.loads(fields["event"])
    assert list(after) == list(json.loads(theirs[1]))
    assert after == {**before, "deliveryAttempt": 3}
    assert fields["traceparent"] == original[1]


async def test_a_pods_claim_while_our_handler_runs_wins_over_our_nack_c16(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    key, hub = f"{key_prefix}:orders", make()
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="workers")
    await hub.publish("orders", EVENT_1)
    await eventually(lambda: silent.events)
    [(entry_id, _)] = await pod.xrange(key)
    await pod.xclaim(key, "workers", "workers-pod", 0, [entry_id])
    await silent.settles[0][1]()
    assert len(await pod.xrange(key)) == 1
    assert (await pod.xpending_range(key, "workers", "-", "+", 1))[0]["consumer"] == "workers-pod"


async def test_a_private_group_has_the_name_that_tools_know(
    make: Make, pod: redis.asyncio.Redis, key_prefix: str
) -> None:
    await make().subscribe("orders", Recorder())
    [group] = await pod.xinfo_groups(f"{key_prefix}:orders")
    recorded = RECORDINGS["subscribe/fan-out, first"]["state"]["mastra:topic:orders"]["groups"][0]["name"]
    assert UUID.sub("<id>", group["name"]) == UUID.sub("<id>", recorded) == "__fanout-<id>"
    assert group["last-delivered-id"] == "0-0"


async def _pending_is(pod: redis.asyncio.Redis, prefix: str, count: int) -> bool:
    return bool((await pod.xpending(f"{prefix}:orders", "workers"))["pending"] == count)

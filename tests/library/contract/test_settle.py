"""Settling: ack, nack, the cap and the dead letters (C-3, C-6, C-15 to C-17)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from streamhold import BackendError, Event, ServerFull, Settle
from streamhold.keys import companion
from streamhold_dev.waiting import eventually
from support.subscriber import Recorder, an_event

if TYPE_CHECKING:
    from support.worlds import AnyHub, RedisWorld, World

pytestmark = pytest.mark.anyio


async def test_an_ack_settles_for_this_group_only_and_deletes_nothing_c15(world: World) -> None:
    hub = world.hub()
    acking, silent = Recorder(), Recorder.silent()
    await hub.subscribe("orders", acking, group="g")
    await hub.subscribe("orders", silent, group="h")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: acking.events and silent.events)
    await eventually(lambda: _is(world, "g", 0))
    assert await world.pending("orders", "h") == 1
    assert len(await world.entries("orders")) == 1


async def test_the_first_of_ack_and_nack_wins_c15(world: World, hub: AnyHub) -> None:
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    ack, nack = silent.settles[0]
    await ack()
    await ack()
    await nack()
    assert len(await world.entries("orders")) == 1
    await hub.publish("orders", an_event(2))
    await eventually(lambda: len(silent.events) == 2)
    ack, nack = silent.settles[1]
    await nack()
    await ack()
    await nack()
    await eventually(lambda: len(silent.events) == 3)
    assert len(await world.entries("orders")) == 3


async def test_calling_without_awaiting_is_enough_c15(world: World, hub: AnyHub) -> None:
    def act(event: Event, ack: Settle, nack: Settle) -> None:
        ack() if event["deliveryAttempt"] == 2 else nack()

    recorder = Recorder(act)
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: recorder.attempts == [1, 2])
    await eventually(lambda: _is(world, "g", 0))


async def test_acks_of_one_turn_leave_together(server_world: RedisWorld) -> None:
    hub = server_world.hub()
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    for number in range(50):
        await hub.publish("orders", an_event(number))
    await eventually(lambda: len(silent.events) == 50)
    before = (
        (await server_world.plain.info("commandstats"))["cmdstat_xack"]["calls"] if await _has_acks(server_world) else 0
    )
    for outcome in [ack() for ack, _ in silent.settles]:
        await outcome
    after = (await server_world.plain.info("commandstats"))["cmdstat_xack"]["calls"]
    assert await server_world.pending("orders", "g") == 0
    assert after - before <= 5


async def test_a_nack_redelivers_with_the_next_attempt_c16(world: World, hub: AnyHub) -> None:
    recorder = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] == 3 else nack())
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event({"n": 1}))
    await eventually(lambda: recorder.attempts == [1, 2, 3])
    assert len({event["id"] for event in recorder.events}) == 1
    assert len({event["createdAt"] for event in recorder.events}) == 1
    await eventually(lambda: _is(world, "g", 0))
    assert hub.counters.nacked == 2


async def test_a_nack_in_one_group_is_never_seen_by_others_c16(world: World) -> None:
    hub = world.hub()
    other, fan_out, elsewhere = Recorder(), Recorder(), Recorder()
    nacking = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] == 3 else nack())
    await hub.subscribe("orders", other, group="other")
    await hub.subscribe("orders", fan_out)
    await world.hub().subscribe("orders", elsewhere, group="elsewhere")
    await hub.subscribe("orders", nacking, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: nacking.attempts == [1, 2, 3])
    await hub.publish("orders", an_event(2))
    await eventually(lambda: all(2 in seen.data for seen in (other, fan_out, elsewhere)))
    assert other.data == fan_out.data == elsewhere.data == [1, 2]
    await eventually(lambda: _is(world, "other", 0))
    await eventually(lambda: _is(world, "elsewhere", 0))


async def test_what_is_redelivered_is_the_event_as_it_was_read_c03(hub: AnyHub) -> None:
    seen: list[Any] = []

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        seen.append(event["data"]["n"])
        event["data"]["n"] = "changed"
        event["more"] = True
        await (ack() if len(seen) == 2 else nack())

    await hub.subscribe("orders", handle, group="g")
    await hub.publish("orders", an_event({"n": 1}))
    await eventually(lambda: seen == [1, 1])


async def test_unknown_members_and_fields_survive_a_nack_c03(world: World, hub: AnyHub) -> None:
    recorder = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] == 3 else nack())
    await hub.subscribe("orders", recorder, group="g")
    event = '{ "x-unknown": {"k": [1, 2.50]}, "big": 9007199254740993, "deliveryAttempt": 2, "id": "no-uuid" }'
    await world.plain.xadd(world.key("orders"), {"traceparent": "00-abc", "event": event, "tail": "x"})
    await eventually(lambda: recorder.attempts == [2, 3])
    fields = (await world.entries("orders"))[-1][1]
    assert fields["traceparent"] == "00-abc"
    assert fields["tail"] == "x"
    assert fields["streamhold-group"] == "g"
    assert "9007199254740993" in fields["event"]
    assert "2.50" in fields["event"]
    assert list(json.loads(fields["event"])) == ["x-unknown", "big", "deliveryAttempt", "id"]


async def test_case_S07_a_nack_after_a_sibling_took_the_entry_changes_nothing(world: World) -> None:
    hub = world.hub(reclaim_interval_ms=0)
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    [(entry, _)] = await world.entries("orders")
    await world.plain.xclaim(world.key("orders"), "g", "sibling", 0, [entry])
    await silent.settles[0][1]()
    assert len(await world.entries("orders")) == 1
    [pending] = await world.plain.xpending_range(world.key("orders"), "g", "-", "+", 10)
    assert pending["consumer"] == "sibling"


async def test_case_S09_a_topic_stays_trimmed_under_nacks(world: World) -> None:
    hub = world.hub(max_stream_length=10, max_delivery_attempts=0)
    recorder = Recorder(lambda event, ack, nack: ack() if event["deliveryAttempt"] > 350 else nack())
    await hub.subscribe("orders", recorder, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: len(recorder.events) == 351, timeout=30)
    assert len(await world.entries("orders")) <= 120  # approximate trimming drops whole nodes of 100


async def test_a_nack_refreshes_the_idle_ttl_c11(world: World) -> None:
    hub = world.hub(stream_idle_ttl_ms=60_000)
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    await world.plain.pexpire(world.key("orders"), 20_000)
    await silent.settles[0][1]()
    assert await world.plain.pttl(world.key("orders")) > 55_000


@pytest.mark.parametrize("cap", [1, 2, 5])
async def test_at_the_cap_the_event_is_dropped_c17(world: World, cap: int) -> None:
    hub = world.hub(max_delivery_attempts=cap)
    nacking = Recorder.nacking()
    await hub.subscribe("orders", nacking, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: hub.counters.dropped == 1)
    assert nacking.attempts == list(range(1, cap + 1))
    assert await world.pending("orders", "g") == 0


async def test_at_the_cap_the_event_goes_to_the_dead_letters_c17(world: World) -> None:
    hub = world.hub(max_delivery_attempts=2, dead_letters=True)

    async def handle(event: Event, ack: Settle, nack: Settle) -> None:
        raise ValueError("cannot be billed")

    await hub.subscribe("orders", handle, group="billing")
    await hub.publish("orders", an_event({"n": 1}))
    await eventually(lambda: hub.counters.dead_lettered == 1)
    dead = companion(world.prefix, "dead", world.key("orders"))
    [(_, letter)] = await world.plain.xrange(dead)
    assert json.loads(letter["event"])["data"] == {"n": 1}
    assert letter["reason"] == "ValueError: cannot be billed"
    assert letter["group"] == "billing"
    assert letter["attempts"] == "2"
    assert letter["time"].endswith("Z")
    assert await world.pending("orders", "billing") == 0


INVALID = [
    {"other": "x"},
    {"event": "{oops"},
    {"event": ""},
    {"event": "null"},
    {"event": "[1]"},
    {"event": "5"},
    {"event": '"text"'},
    {"event": "NaN"},
    {"event": "[" * 100_000},
    {"event": b"\xff\xfe"},
]


async def test_entries_that_are_no_event_are_acknowledged_and_counted_c06(world: World) -> None:
    hub = world.hub()
    grouped, fan_out = Recorder(), Recorder()
    await hub.subscribe("orders", grouped, group="g")
    await hub.subscribe("orders", fan_out)
    for fields in INVALID:
        await world.plain.xadd(world.key("orders"), fields)  # type: ignore[arg-type]
    await hub.publish("orders", an_event("valid"))
    await eventually(lambda: grouped.events and fan_out.events)
    assert grouped.data == fan_out.data == ["valid"]
    assert hub.counters.invalid == 2 * len(INVALID)
    await eventually(lambda: _is(world, "g", 0))


async def test_entries_that_are_no_event_are_kept_in_the_dead_letters_c06(world: World) -> None:
    hub = world.hub(dead_letters=True)
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await world.plain.xadd(world.key("orders"), {"event": "{oops", "traceparent": "00-abc"})
    await eventually(lambda: hub.counters.dead_lettered == 1)
    [(_, letter)] = await world.plain.xrange(companion(world.prefix, "dead", world.key("orders")))
    assert letter["event"] == "{oops"
    assert letter["traceparent"] == "00-abc"
    assert letter["reason"] == "not a JSON object"
    assert await world.pending("orders", "g") == 0


@pytest.mark.parametrize(
    ("event", "attempt"),
    [
        ("{}", 1),
        ('{"deliveryAttempt":null,"type":null,"data":null,"runId":null,"createdAt":null}', 1),
        ('{"deliveryAttempt":"3"}', 3),
        ('{"deliveryAttempt":2.0}', 2),
        ('{"deliveryAttempt":"many"}', 1),
        ('{"createdAt":1764504000123}', 1),
        ('{"data":"\\ud800"}', 1),
        ('{"data":1e999}', 1),
    ],
)
async def test_what_others_write_is_accepted_c02(hub: AnyHub, world: World, event: str, attempt: int) -> None:
    recorder = Recorder()
    await hub.subscribe("orders", recorder, group="g")
    await world.plain.xadd(world.key("orders"), {"event": event})
    await eventually(lambda: recorder.events)
    assert recorder.attempts == [attempt]
    assert {**recorder.events[0], "deliveryAttempt": attempt} == {**json.loads(event), "deliveryAttempt": attempt}


async def test_an_ack_that_failed_may_be_repeated_c15(own_world: RedisWorld) -> None:
    hub = own_world.hub()
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    await own_world.plain.acl_setuser("default", enabled=True, commands=["-xack"])
    with pytest.raises(BackendError):
        await silent.settles[0][0]()
    await own_world.plain.acl_setuser("default", enabled=True, commands=["+xack"])
    await silent.settles[0][0]()
    assert await own_world.pending("orders", "g") == 0


async def test_a_nack_that_failed_for_lack_of_memory_may_be_repeated_c15(own_world: RedisWorld) -> None:
    hub = own_world.hub()
    silent = Recorder.silent()
    await hub.subscribe("orders", silent, group="g")
    await hub.publish("orders", an_event(1))
    await eventually(lambda: silent.events)
    await own_world.plain.config_set("maxmemory", "1")
    with pytest.raises(ServerFull):
        await silent.settles[0][1]()
    await own_world.plain.config_set("maxmemory", "0")
    assert await own_world.pending("orders", "g") == 1
    await silent.settles[0][1]()
    await eventually(lambda: silent.attempts == [1, 2])


async def _is(world: World, group: str, count: int) -> bool:
    return await world.pending("orders", group) == count


async def _has_acks(world: World) -> bool:
    return "cmdstat_xack" in await world.plain.info("commandstats")

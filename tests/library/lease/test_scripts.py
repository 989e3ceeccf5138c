"""Every branch of the lease scripts, on every flavour, known to the server or not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from streamhold import InProcessServer
from streamhold._backends.inprocess.server import InProcessClient
from streamhold._backends.redis.client import RedisClient, Script
from support.inprocess import PlainInProcess

if TYPE_CHECKING:
    from streamhold._backends.store import Store
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio

LEASE, FENCE, FLOOR = "lease", "fence", "floor"
NEW = "a new token"
State = dict[str, tuple[str, int | None]]
"""Key → value and PTTL in milliseconds; None: it never expires."""


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    args: tuple[Any, ...]
    before: State
    reply: Any
    after: State = field(default_factory=dict)
    """What must be there afterwards; NEW stands for a token larger than all in `before`. Nothing else may be there."""


def acquire(owner: str = "a", ttl: int = 9000, delay: int = 0, fencing: int = 1) -> tuple[Any, ...]:
    return (owner, ttl, delay, fencing)


def renew(owner: str = "a", ttl: int = 9000, delay: int = 0, fencing: int = 1, token: str = "") -> tuple[Any, ...]:
    return (owner, ttl, delay, fencing, token)


def transfer(ttl: int = 9000, delay: int = 0, fencing: int = 1, token: str = "", to: str = "b") -> tuple[Any, ...]:
    return ("a", to, ttl, delay, fencing, token)


HELD: State = {LEASE: ("a", 5000), FENCE: ("7 a", 5000), FLOOR: ("7", None)}
FOREIGN: State = {LEASE: ("a", 5000), FENCE: ("7 z", 5000), FLOOR: ("7", None)}
BARE: State = {LEASE: ("a", 5000), FLOOR: ("7", None)}
VANISHED: State = {FENCE: ("7 z", 5000), FLOOR: ("7", None)}
TAKEN: State = {LEASE: ("a", 9000), FENCE: (f"{NEW} a", 9000), FLOOR: (NEW, None)}
KEPT: State = {LEASE: ("a", 9000), FENCE: ("7 a", 9000), FLOOR: ("7", None)}
MOVED: State = {LEASE: ("b", 9000), FENCE: (f"{NEW} b", 9000), FLOOR: (NEW, None)}

CASES = [
    Case("free", "acquire", acquire(), {}, [1, b"a", NEW], TAKEN),
    Case("free, floor ahead of the clock", "acquire", acquire(), {FLOOR: ("8000000000000000", None)},
         [1, b"a", 8000000000000001],
         {LEASE: ("a", 9000), FENCE: ("8000000000000001 a", 9000), FLOOR: ("8000000000000001", None)}),
    Case("free, record ahead of everything", "acquire", acquire(), {FENCE: ("8000000000000000 a", 5000)},
         [1, b"a", 8000000000000001],
         {LEASE: ("a", 9000), FENCE: ("8000000000000001 a", 9000), FLOOR: ("8000000000000001", None)}),
    Case("free, the floor is nonsense", "acquire", acquire(), {FLOOR: ("x", None)}, [1, b"a", NEW], TAKEN),
    Case("free, the record is nonsense", "acquire", acquire(delay=500), {FENCE: ("x", 5000)}, [1, b"a", NEW],
         TAKEN | {FENCE: (f"{NEW} a", 9500)}),
    Case("own, refreshed", "acquire", acquire(), HELD, [1, b"a", 7], KEPT),
    Case("own, TTL made shorter", "acquire", acquire(ttl=100), HELD, [1, b"a", 7],
         {LEASE: ("a", 100), FENCE: ("7 a", 100), FLOOR: ("7", None)}),
    Case("own, with lock delay", "acquire", acquire(delay=500), HELD, [1, b"a", 7], KEPT | {FENCE: ("7 a", 9500)}),
    Case("own, put there by a pod without tokens", "acquire", acquire(), FOREIGN, [1, b"a", NEW], TAKEN),
    Case("own, without a record", "acquire", acquire(), BARE, [1, b"a", NEW], TAKEN),
    Case("own, taken before without fencing", "acquire", acquire(), HELD | {FENCE: ("0 a", 5000)}, [1, b"a", NEW],
         TAKEN),
    Case("own, without a TTL", "acquire", acquire(), HELD | {LEASE: ("a", None)}, [1, b"a", 7], KEPT),
    Case("held by another", "acquire", acquire("b"), HELD, [0, b"a", 5000], HELD),
    Case("held by another without a TTL", "acquire", acquire("b"), {LEASE: ("a", None)}, [0, b"a", -1],
         {LEASE: ("a", None)}),
    Case("vanished, lock delay", "acquire", acquire(delay=500), VANISHED, [0, b"z", 5000], VANISHED),
    Case("vanished, no lock delay", "acquire", acquire(), VANISHED, [1, b"a", NEW], TAKEN),
    Case("vanished itself, lock delay", "acquire", acquire(delay=500), {FENCE: ("7 a", 5000), FLOOR: ("7", None)},
         [1, b"a", NEW], TAKEN | {FENCE: (f"{NEW} a", 9500)}),
    Case("unfenced, free", "acquire", acquire(fencing=0), {}, [1, b"a", 0], {LEASE: ("a", 9000)}),
    Case("unfenced, own", "acquire", acquire(fencing=0), {LEASE: ("a", 5000)}, [1, b"a", 0], {LEASE: ("a", 9000)}),
    Case("unfenced, lock delay", "acquire", acquire(fencing=0, delay=500), {}, [1, b"a", 0],
         {LEASE: ("a", 9000), FENCE: ("0 a", 9500)}),
    Case("unfenced, vanished, lock delay", "acquire", acquire(fencing=0, delay=500), VANISHED, [0, b"z", 5000],
         VANISHED),

    Case("held", "renew", renew(), HELD, [1, 7], KEPT),
    Case("held, with lock delay", "renew", renew(delay=500), HELD, [1, 7], KEPT | {FENCE: ("7 a", 9500)}),
    Case("held, this very holding", "renew", renew(token="7"), HELD, [1, 7], KEPT),
    Case("held, another holding of the same owner", "renew", renew(token="6"), HELD, [0, 0], HELD),
    Case("held, record names another, token asked for", "renew", renew(token="7"), FOREIGN, [0, 0], FOREIGN),
    Case("held, no record, token asked for", "renew", renew(token="7"), BARE, [0, 0], BARE),
    Case("held, record names another", "renew", renew(), FOREIGN, [1, NEW], TAKEN),
    Case("held, no record", "renew", renew(), BARE, [1, NEW], TAKEN),
    Case("held by another", "renew", renew("b"), HELD, [0, 0], HELD),
    Case("not held", "renew", renew(), {}, [0, 0], {}),
    Case("not held, record still there", "renew", renew(token="7"), {FENCE: ("7 a", 5000)}, [0, 0],
         {FENCE: ("7 a", 5000)}),
    Case("unfenced", "renew", renew(fencing=0), {LEASE: ("a", 5000)}, [1, 0], {LEASE: ("a", 9000)}),
    Case("unfenced, lock delay", "renew", renew(fencing=0, delay=500), {LEASE: ("a", 5000), FENCE: ("0 a", 5500)},
         [1, 0], {LEASE: ("a", 9000), FENCE: ("0 a", 9500)}),

    Case("held", "release", ("a", ""), HELD, 1, {FLOOR: ("7", None)}),
    Case("held, this very holding", "release", ("a", "7"), HELD, 1, {FLOOR: ("7", None)}),
    Case("held, another holding of the same owner", "release", ("a", "6"), HELD, 0, HELD),
    Case("held, record names another", "release", ("a", ""), FOREIGN, 1, {FLOOR: ("7", None)}),
    Case("held, record names another, token asked for", "release", ("a", "7"), FOREIGN, 0, FOREIGN),
    Case("held, no record", "release", ("a", "7"), BARE, 1, {FLOOR: ("7", None)}),
    Case("held by another", "release", ("b", ""), HELD, 0, HELD),
    Case("not held", "release", ("a", ""), {}, 0, {}),
    Case("ran out, record still there", "release", ("a", ""), {FENCE: ("7 a", 5000)}, 0, {}),
    Case("ran out, this very holding", "release", ("a", "7"), {FENCE: ("7 a", 5000)}, 0, {}),
    Case("ran out, record of another", "release", ("a", ""), VANISHED, 0, VANISHED),
    Case("ran out, record of another holding", "release", ("a", "6"), {FENCE: ("7 a", 5000)}, 0,
         {FENCE: ("7 a", 5000)}),

    Case("held", "transfer", transfer(), HELD, [1, NEW], MOVED),
    Case("held, with lock delay", "transfer", transfer(delay=500), HELD, [1, NEW],
         MOVED | {FENCE: (f"{NEW} b", 9500)}),
    Case("held, this very holding", "transfer", transfer(token="7"), HELD, [1, NEW], MOVED),
    Case("held, another holding of the same owner", "transfer", transfer(token="6"), HELD, [0, 0], HELD),
    Case("held, record names another", "transfer", transfer(), FOREIGN, [1, NEW], MOVED),
    Case("held, record names another, token asked for", "transfer", transfer(token="7"), FOREIGN, [0, 0], FOREIGN),
    Case("held, no record", "transfer", transfer(), BARE, [1, NEW], MOVED),
    Case("to itself", "transfer", transfer(to="a"), HELD, [1, 7], KEPT),
    Case("to itself, no record", "transfer", transfer(to="a"), BARE, [1, NEW], TAKEN),
    Case("held by another", "transfer", transfer(), {LEASE: ("b", 5000)}, [0, 0], {LEASE: ("b", 5000)}),
    Case("not held", "transfer", transfer(), {}, [0, 0], {}),
    Case("unfenced", "transfer", transfer(fencing=0), {LEASE: ("a", 5000)}, [1, 0], {LEASE: ("b", 9000)}),
    Case("unfenced, lock delay", "transfer", transfer(fencing=0, delay=500), {LEASE: ("a", 5000)}, [1, 0],
         {LEASE: ("b", 9000), FENCE: ("0 b", 9500)}),
]  # fmt: skip


@pytest.fixture
async def client(any_redis_server: RedisServer) -> AsyncIterator[RedisClient]:
    client = RedisClient.from_url(any_redis_server.url())
    yield client
    await client.aclose()


SCRIPTS = {name: Script(f"lease_{name}") for name in ("acquire", "renew", "release", "transfer")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.script}: {case.name}")
async def test_each_branch_of_a_lease_script_does_what_its_head_says(
    client: RedisClient, any_plain: redis.asyncio.Redis, key_prefix: str, case: Case
) -> None:
    await any_plain.script_load(SCRIPTS[case.script].source)
    await _run_and_check(client, any_plain, f"{key_prefix}:known", case)
    await any_plain.script_flush()
    await _run_and_check(client, any_plain, f"{key_prefix}:flushed", case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.script}: {case.name}")
async def test_in_process_each_branch_does_the_same(case: Case) -> None:
    server = InProcessServer()
    await _run_and_check(InProcessClient(server), PlainInProcess(server), "here", case)


async def _run_and_check(client: Store, plain: redis.asyncio.Redis, prefix: str, case: Case) -> None:
    for key, (value, ttl) in case.before.items():
        await plain.set(f"{prefix}:{key}", value, px=ttl)
    names = (LEASE, FENCE) if case.script == "release" else (LEASE, FENCE, FLOOR)
    reply = await client.run_script(SCRIPTS[case.script], [f"{prefix}:{name}" for name in names], case.args)
    token = await _new_token(plain, f"{prefix}:{FLOOR}", case)
    if isinstance(case.reply, list):
        expected = [token if member == NEW else member for member in case.reply]
        if expected[0] == 0 and expected[-1] > 0:  # a refusal ends with the time that is left
            assert expected[-1] - 2000 < reply[-1] <= expected[-1]
            reply[-1] = expected[-1]
        assert reply == expected
    else:
        assert reply == case.reply
    await _check_keys(plain, prefix, case.after, token)


async def _new_token(plain: redis.asyncio.Redis, floor: str, case: Case) -> int:
    """The token given out now, checked to be larger than every number that was there."""
    if NEW not in repr((case.reply, case.after)):
        return 0
    token = int(await plain.get(floor))
    known = [int(word) for value, _ in case.before.values() for word in value.split() if word.isdecimal()]
    assert all(token > number for number in known)
    seconds, microseconds = await plain.time()
    assert 0 <= seconds * 1_000_000 + microseconds - token < 5_000_000, "the clock, in microseconds, without rounding"
    return token


async def _check_keys(plain: redis.asyncio.Redis, prefix: str, after: State, token: int) -> None:
    assert {key.removeprefix(f"{prefix}:") async for key in plain.scan_iter(f"{prefix}:*", count=1000)} == set(after)
    for key, (value, ttl) in after.items():
        assert await plain.get(f"{prefix}:{key}") == value.replace(NEW, str(token)), key
        left = await plain.pttl(f"{prefix}:{key}")
        if ttl is None:
            assert left == -1, key
        else:
            assert max(0, ttl - 2000) < left <= ttl, key

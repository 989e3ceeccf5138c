"""Holding a lease on a real server: it renews itself, its loss stops the block, and it is given back (C-47 to C-49)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio

from streamhold import keys
from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold._lease import hold_lease
from streamhold.errors import ConfigError, LeaseHeld, LeaseLost, LeaseUnavailable, PermissionRefused
from streamhold_dev.waiting import eventually

if TYPE_CHECKING:
    from streamhold_dev.proxy import Proxy
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def __call__(self) -> float:
        return time.monotonic() - self._started


async def forever_until_cancelled(stopped: list[float], watch: Callable[[], float]) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        stopped.append(watch())


async def test_a_held_lease_is_ours_during_the_block_and_free_after_it(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    async with hold_lease(each_leases, "k") as lease:
        assert lease.held
        lease.ensure_held()
        assert await each_leases.get_lease_owner("k") == lease.owner
        assert isinstance(lease.token, int)
        assert 14000 < await each_plain.pttl(f"{key_prefix}:lease:k") <= 15000
    assert await each_leases.get_lease_owner("k") is None


async def test_it_renews_itself_for_longer_than_its_ttl_under_one_token(each_leases: RedisLeases) -> None:  # C-48
    async with hold_lease(each_leases, "k", ttl=0.4) as lease:
        watch = Stopwatch()
        while watch() < 1.2:
            lease.ensure_held()
            assert await each_leases.get_lease_owner("k") == lease.owner
            await anyio.sleep(0.02)
        assert (await each_leases.acquire_lease("k", lease.owner, 400)).token == lease.token


async def test_a_lease_held_by_another_is_refused_at_once_with_its_holder(leases: RedisLeases) -> None:
    await leases.acquire_lease("k", "first", 15000)
    with pytest.raises(LeaseHeld, match="'first'") as refused:
        async with hold_lease(leases, "k"):
            pytest.fail("entered")
    assert refused.value.holder == "first"


async def test_each_next_holder_has_a_larger_token(leases: RedisLeases) -> None:  # C-47
    tokens = []
    for _ in range(5):
        async with hold_lease(leases, "k") as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ttl": 0}, "ttl"), ({"ttl": -1}, "ttl"), ({"ttl": math.inf}, "ttl"), ({"ttl": math.nan}, "ttl"),
        ({"ttl": "5"}, "ttl"), ({"ttl": True}, "ttl"), ({"ttl": 1, "renew_interval": 0.6}, "renew_interval"),
        ({"renew_interval": 0}, "renew_interval"), ({"wait": -1}, "wait"), ({"wait": math.nan}, "wait"),
        ({"wait": "1"}, "wait"), ({"owner": ""}, "owner"), ({"owner": 7}, "owner"),
    ],
)  # fmt: skip
async def test_bad_arguments_raise_before_anything_is_sent(connect: Any, options: dict[str, Any], said: str) -> None:
    nowhere = connect("redis://127.0.0.1:1", "p")
    with pytest.raises(ConfigError, match=said):
        async with hold_lease(nowhere, "k", **options):
            pytest.fail("entered")
    with pytest.raises(ConfigError, match="key"):
        async with hold_lease(nowhere, ""):
            pytest.fail("entered")


# ---- the block's own end ----


async def test_the_exception_of_the_block_is_raised_unchanged_and_the_lease_is_free(leases: RedisLeases) -> None:
    mine = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised:
        async with hold_lease(leases, "k"):
            raise mine
    assert raised.value is mine
    assert await leases.get_lease_owner("k") is None


async def test_the_exception_of_the_block_is_not_hidden_by_a_release_that_fails(
    connect: Callable[..., RedisLeases], own_redis: Callable[..., RedisServer], key_prefix: str
) -> None:
    server = own_redis()
    leases = connect(server.url(), key_prefix, timeout=0.3)
    with pytest.raises(ValueError, match="mine"):
        async with hold_lease(leases, "k"):
            server.kill()
            raise ValueError("mine")


@pytest.mark.parametrize("how", ["native", "scope"])
async def test_a_block_that_is_cancelled_from_outside_gives_the_lease_back(leases: RedisLeases, how: str) -> None:
    inside = anyio.Event()
    ended: list[BaseException] = []

    async def work() -> None:
        try:
            async with hold_lease(leases, "k"):
                inside.set()
                await anyio.sleep_forever()
        except BaseException as error:
            ended.append(error)
            raise

    if how == "native":
        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await inside.wait()
            group.cancel_scope.cancel()
    assert [type(error) for error in ended] == [asyncio.CancelledError]
    assert await leases.get_lease_owner("k") is None


async def test_case_L11_nothing_is_released_before_a_shielded_block_has_ended(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """The policy ends the holding while the TTL is long; the block needs 200 ms more than it is given."""
    owners: list[str | None] = []
    with pytest.raises(LeaseLost, match="at most"):
        async with hold_lease(_with_max_hold(leases, 300), "k", ttl=5) as lease:
            with anyio.CancelScope(shield=True):
                while lease.held:
                    await anyio.sleep(0.01)
                lost = Stopwatch()
                while lost() < 0.2:
                    owners.append(await leases.get_lease_owner("k"))
                    await anyio.sleep(0.01)
    assert set(owners) == {lease.owner}
    assert await leases.get_lease_owner("k") is None


def _with_max_hold(leases: RedisLeases, max_hold_ms: int) -> RedisLeases:
    prefix = leases._places("k").lease.removesuffix(":lease:k")
    from streamhold._core.lease import LeaseRules

    return RedisLeases.for_prefix(leases._client, prefix, LeaseRules(max_hold_ms=max_hold_ms))


async def test_a_holding_ends_at_the_longest_that_its_policy_allows(leases: RedisLeases) -> None:
    stopped: list[float] = []
    watch = Stopwatch()
    with pytest.raises(LeaseLost, match=r"0\.4 s at most"):
        async with hold_lease(_with_max_hold(leases, 400), "k", ttl=0.3):
            await forever_until_cancelled(stopped, watch)
    assert 0.35 < stopped[0] < 0.6
    assert await leases.get_lease_owner("k") is None


# ---- loss ----


async def test_case_L09_a_lease_that_was_overwritten_is_noticed_within_a_renew_interval(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    stopped: list[float] = []
    with pytest.raises(LeaseLost, match="'k'"):
        async with hold_lease(each_leases, "k", ttl=3, renew_interval=0.3):
            await each_plain.set(f"{key_prefix}:lease:k", "thief", px=15000)
            await forever_until_cancelled(stopped, Stopwatch())
    assert stopped[0] < 0.6
    assert await each_leases.get_lease_owner("k") == "thief", "what is not ours is not released"


async def test_a_lease_key_overwritten_with_another_type_is_lost(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    with pytest.raises(LeaseLost, match="another type"):
        async with hold_lease(leases, "k", ttl=0.6):
            await plain.delete(f"{key_prefix}:lease:k")
            await plain.xadd(f"{key_prefix}:lease:k", {"event": "{}"})
            await anyio.sleep_forever()


async def test_a_lease_that_left_and_came_back_is_another_holding(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """A pod without tokens frees it, another of ours holds it for a while, that pod moves it back (C-47)."""
    key = f"{key_prefix}:lease:k"
    with pytest.raises(LeaseLost) as lost:
        async with hold_lease(leases, "k", ttl=3, renew_interval=0.2, owner="a") as lease:
            await plain.delete(key)
            between = await leases.acquire_lease("k", "b", 15000)
            await plain.set(key, "a", px=15000)
            await anyio.sleep_forever()
    assert lost.value.key == "k"
    after = await leases.acquire_lease("k", "a", 15000)
    assert lease.token is not None
    assert between.token is not None
    assert after.token is not None
    assert lease.token < between.token < after.token


@pytest.mark.parametrize("swallow", [True, False])
async def test_case_L06_a_renewal_that_hangs_ends_the_block_at_the_deadline(
    connect: Callable[..., RedisLeases], redis_server: RedisServer, proxy: Callable[[int], Proxy], key_prefix: str,
    swallow: bool,
) -> None:  # fmt: skip
    """Also a block that swallows the first cancellation."""
    between = proxy(redis_server.port)
    leases = connect(_through(redis_server, between), key_prefix)
    stopped: list[float] = []
    with pytest.raises(LeaseLost, match="not renewed") as lost:
        async with hold_lease(leases, "k", ttl=1.0, renew_interval=0.3):
            watch = Stopwatch()
            between.swallow_replies()
            if swallow:
                with contextlib.suppress(asyncio.CancelledError):
                    await anyio.sleep_forever()
            await forever_until_cancelled(stopped, watch)
    assert 0.9 < stopped[0] < 1.05
    assert isinstance(lost.value.__cause__, LeaseUnavailable)


async def test_case_L05_a_server_away_for_half_a_ttl_loses_nothing_and_for_longer_the_lease_in_time(
    connect: Callable[..., RedisLeases], redis_server: RedisServer, proxy: Callable[[int], Proxy], key_prefix: str
) -> None:
    between = proxy(redis_server.port)
    leases = connect(_through(redis_server, between), key_prefix)
    ttl = 1.5
    async with hold_lease(leases, "k", ttl=ttl) as lease:
        between.refuse()
        await anyio.sleep(ttl / 2)
        lease.ensure_held()
        between.pass_through()
        await anyio.sleep(ttl)
        lease.ensure_held()
        assert await leases.get_lease_owner("k") == lease.owner
    stopped: list[float] = []
    with pytest.raises(LeaseLost):
        async with hold_lease(leases, "k", ttl=ttl):
            watch = Stopwatch()
            between.refuse()
            await forever_until_cancelled(stopped, watch)
    assert ttl * 0.6 < stopped[0] < ttl


async def test_case_L13_a_holder_whose_connection_is_killed_still_holds(
    leases: RedisLeases, plain: redis.asyncio.Redis
) -> None:
    async with hold_lease(leases, "k", ttl=0.9) as lease:
        for _ in range(3):
            for client in await plain.client_list():
                if client["name"].startswith("streamhold-"):
                    await plain.client_kill_filter(_id=client["id"])
            await anyio.sleep(0.5)
        lease.ensure_held()
        assert await leases.get_lease_owner("k") == lease.owner


async def test_a_renewal_refused_for_lack_of_rights_does_not_end_the_block_before_the_ttl(
    connect: Callable[..., RedisLeases], own_redis: Callable[..., RedisServer]
) -> None:
    """Could not ask is not the same as lost; the cause is told in the end, and nothing asks in a hot loop."""
    server = own_redis(password="pw", default_user_open=True)
    leases = connect(f"redis://127.0.0.1:{server.port}", "p")
    stopped: list[float] = []
    with pytest.raises(LeaseLost) as lost:
        async with hold_lease(leases, "k", ttl=1.0):
            watch = Stopwatch()
            server.cli("ACL", "SETUSER", "default", "-evalsha", "-eval")
            await forever_until_cancelled(stopped, watch)
    assert 0.8 < stopped[0] < 1.0
    assert isinstance(lost.value.__cause__, PermissionRefused)
    denied = {entry["object"]: entry["count"] for entry in _acl_log(server)}
    assert denied["evalsha"] < 20


def _acl_log(server: RedisServer) -> list[dict[str, Any]]:
    entries = server.cli("ACL", "LOG")
    return [dict(zip(entry[::2], entry[1::2], strict=True)) if isinstance(entry, list) else entry for entry in entries]


async def test_a_loss_during_a_blocked_loop_is_told_at_the_end_of_the_block(leases: RedisLeases) -> None:
    with pytest.raises(LeaseLost):
        async with hold_lease(leases, "k", ttl=0.2) as lease:
            time.sleep(0.3)  # noqa: ASYNC251  # a block that does not let the loop run
            with pytest.raises(LeaseLost):
                lease.ensure_held()


async def test_the_clock_can_be_asked_from_a_worker_thread(leases: RedisLeases) -> None:
    async with hold_lease(leases, "k") as lease:
        await anyio.to_thread.run_sync(lease.ensure_held)


async def test_case_L02_the_release_of_an_expired_holding_does_not_delete_the_next_one(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """Even if both have one owner name: the token tells the holdings apart."""
    with pytest.raises(LeaseLost):
        async with hold_lease(leases, "k", ttl=5, owner="same"):
            await plain.delete(f"{key_prefix}:lease:k", keys.companion(key_prefix, "fence", f"{key_prefix}:lease:k"))
            second = await leases.acquire_lease("k", "same", 15000)
            await anyio.sleep_forever()
    assert await leases.get_lease_owner("k") == "same"
    assert await leases.acquire_lease("k", "same", 15000) == second


# ---- waiting ----


async def test_waiting_ends_soon_after_a_release_and_at_an_expiry(leases: RedisLeases) -> None:  # C-49
    await leases.acquire_lease("k", "other", 15000)
    async with anyio.create_task_group() as group:

        async def let_go() -> None:
            await anyio.sleep(0.3)
            await leases.release_lease("k", "other")

        group.start_soon(let_go)
        watch = Stopwatch()
        async with hold_lease(leases, "k", wait=10):
            assert 0.25 < watch() < 1.6
    await leases.acquire_lease("k", "other", 500)
    watch = Stopwatch()
    async with hold_lease(leases, "k", wait=10):
        assert 0.4 < watch() < 0.7


async def test_waiting_has_a_deadline_and_does_not_poll_busily(
    leases: RedisLeases, plain: redis.asyncio.Redis
) -> None:  # C-49
    await leases.acquire_lease("k", "other", 15000)

    async def attempts() -> int:
        return int((await plain.info("commandstats"))["cmdstat_evalsha"]["calls"])

    before = await attempts()
    watch = Stopwatch()
    with pytest.raises(LeaseHeld, match="'other'"):
        async with hold_lease(leases, "k", wait=1.5):
            pytest.fail("entered")
    assert 1.4 < watch() < 1.8
    assert await attempts() - before < 12


async def test_of_many_waiters_each_gets_its_turn_and_never_two_at_once(leases: RedisLeases) -> None:
    inside = 0
    tokens: list[int | None] = []

    async def work() -> None:
        nonlocal inside
        async with hold_lease(leases, "k", wait=25) as lease:
            inside += 1
            assert inside == 1
            await anyio.sleep(0.01)
            tokens.append(lease.token)
            inside -= 1

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(work)
    assert len(tokens) == 8
    assert tokens == sorted(set(tokens))


async def test_waiting_outlasts_a_server_that_is_away_for_a_while(
    connect: Callable[..., RedisLeases], redis_server: RedisServer, proxy: Callable[[int], Proxy], key_prefix: str
) -> None:
    between = proxy(redis_server.port)
    leases = connect(_through(redis_server, between), key_prefix, timeout=0.3)
    between.refuse()
    async with anyio.create_task_group() as group:

        async def come_back() -> None:
            await anyio.sleep(0.8)
            between.pass_through()

        group.start_soon(come_back)
        async with hold_lease(leases, "k", wait=10) as lease:
            lease.ensure_held()


async def test_case_L14_with_the_server_down_holding_raises_in_time(
    connect: Callable[..., RedisLeases], own_redis: Callable[..., RedisServer], key_prefix: str
) -> None:
    server = own_redis()
    server.kill()
    leases = connect(server.url(), key_prefix, timeout=0.4)
    for wait, longest in ((None, 1.0), (1.0, 2.0)):
        watch = Stopwatch()
        with pytest.raises(LeaseUnavailable, match="'k'"):
            async with hold_lease(leases, "k", wait=wait):
                pytest.fail("entered")
        assert watch() < longest


# ---- an acquire whose answer is late, lost or not waited for ----


async def test_case_L03_an_answer_later_than_the_ttl_is_not_believed_and_the_key_does_not_stay(
    connect: Callable[..., RedisLeases], redis_server: RedisServer, proxy: Callable[[int], Proxy], key_prefix: str,
    plain: redis.asyncio.Redis,
) -> None:  # fmt: skip
    between = proxy(redis_server.port)
    leases = connect(_through(redis_server, between), key_prefix)
    assert await leases.get_lease_owner("k") is None
    ttl = 0.5
    between.delay(ttl * 1.5, "replies")
    with pytest.raises(LeaseUnavailable):
        await leases.acquire_lease("k", "a", int(ttl * 1000))
    between.delay(0)
    await eventually(lambda: _gone(plain, f"{key_prefix}:lease:k"))
    between.delay(ttl * 1.5, "replies")
    with pytest.raises(LeaseUnavailable):
        async with hold_lease(leases, "k", ttl=ttl):
            pytest.fail("entered")
    assert await plain.exists(f"{key_prefix}:lease:k") == 0


async def test_a_lost_answer_to_acquiring_is_asked_for_again_and_the_lease_is_held(
    connect: Callable[..., RedisLeases], redis_server: RedisServer, proxy: Callable[[int], Proxy], key_prefix: str
) -> None:
    between = proxy(redis_server.port)
    leases = connect(_through(redis_server, between), key_prefix)
    assert await leases.get_lease_owner("k") is None
    between.drop_reply_to(f"{key_prefix}:lease:k".encode())
    async with hold_lease(leases, "k") as lease:
        assert await leases.get_lease_owner("k") == lease.owner


async def test_a_lease_taken_by_an_acquire_that_was_cancelled_is_given_back(
    connect: Callable[..., RedisLeases], redis_server: RedisServer, proxy: Callable[[int], Proxy], key_prefix: str,
    plain: redis.asyncio.Redis,
) -> None:  # fmt: skip
    between = proxy(redis_server.port)
    leases = connect(_through(redis_server, between), key_prefix)
    assert await leases.get_lease_owner("k") is None
    between.delay(0.3, "replies")
    with anyio.move_on_after(0.1):
        async with hold_lease(leases, "k", wait=10):
            pytest.fail("entered")
    assert await plain.exists(f"{key_prefix}:lease:k") == 0


# ---- handing over ----


async def test_a_lease_handed_over_is_kept_for_its_new_owner(leases: RedisLeases) -> None:
    async with hold_lease(leases, "k", ttl=0.6) as lease:
        await lease.transfer_to("next")
        assert not lease.held
        with pytest.raises(LeaseLost, match="handed over"):
            lease.ensure_held()
        grant = await leases.acquire_lease("k", "next", 15000)
        await anyio.sleep(0.8)  # the old holding's deadline passes: no reason to stop the block
    assert await leases.get_lease_owner("k") == "next"
    assert grant.token is not None
    assert lease.token is not None
    assert grant.token > lease.token


async def test_handing_over_what_was_lost_raises_and_ends_the_block(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    with pytest.raises(LeaseLost):
        async with hold_lease(leases, "k") as lease:
            await plain.set(f"{key_prefix}:lease:k", "thief", px=15000)
            with pytest.raises(LeaseLost):
                await lease.transfer_to("next")
            await anyio.sleep_forever()
    assert await leases.get_lease_owner("k") == "thief"
    with pytest.raises(ConfigError, match="holds it already"):
        async with hold_lease(leases, "other", owner="a") as lease:
            await lease.transfer_to("a")


# ---- many ----


async def test_case_L07_of_meach_leases_none_comes_near_its_end(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """200 leases for two TTLs: what is left never falls below a third."""
    held = 0
    ready = anyio.Event()
    done = anyio.Event()
    ttl = 3.0

    async def hold(number: int) -> None:
        nonlocal held
        async with hold_lease(leases, f"k{number}", ttl=ttl) as lease:
            held += 1
            if held == 200:
                ready.set()
            await done.wait()
            lease.ensure_held()

    least = math.inf
    async with anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(hold, number)
        await ready.wait()
        watch = Stopwatch()
        while watch() < 2 * ttl:
            async with plain.pipeline(transaction=False) as batch:
                for number in range(200):
                    batch.pttl(f"{key_prefix}:lease:k{number}")
                least = min(least, *(await batch.execute()))
            await anyio.sleep(0.1)
        done.set()
    assert least > ttl * 1000 / 3


async def test_a_closed_client_ends_the_block_at_the_next_renewal(redis_server: RedisServer, key_prefix: str) -> None:
    client = RedisClient.from_url(redis_server.url())
    leases = RedisLeases.for_prefix(client, key_prefix)
    watch = Stopwatch()
    with pytest.raises(LeaseLost, match="closed"):
        async with hold_lease(leases, "k", ttl=3, renew_interval=0.2):
            await client.aclose()
            await anyio.sleep_forever()
    assert watch() < 1.0


async def _gone(plain: redis.asyncio.Redis, key: str) -> bool:
    return await plain.exists(key) == 0


def _through(server: RedisServer, between: Proxy) -> str:
    return server.url().replace(f":{server.port}/", f":{between.port}/")

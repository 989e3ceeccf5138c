"""The five methods, on each backend and on real servers (C-40 to C-47)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import redis.asyncio

from streamhold import keys
from streamhold._backends.redis.lease import RedisLeases
from streamhold.errors import LeaseUnavailable, PermissionRefused, WrongKeyType
from streamhold_dev.waiting import eventually

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer
    from support.worlds import LeaseWorld

pytestmark = pytest.mark.anyio


async def test_a_free_lease_is_taken_as_one_string_with_the_owner_and_a_ttl(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-4, C-40
    grant = await each_leases.acquire_lease("thread:abc", "run-1", 15000)
    assert grant[:2] == (True, "run-1")
    assert isinstance(grant.token, int)
    assert await each_plain.get(f"{key_prefix}:lease:thread:abc") == "run-1"
    assert 14000 < await each_plain.pttl(f"{key_prefix}:lease:thread:abc") <= 15000


async def test_the_same_owner_acquires_again_with_the_new_ttl_and_the_same_token(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-40
    first = await each_leases.acquire_lease("k", "a", 15000)
    assert await each_leases.acquire_lease("k", "a", 4000) == first
    assert 3000 < await each_plain.pttl(f"{key_prefix}:lease:k") <= 4000


async def test_a_held_lease_is_refused_with_its_holder(each_leases: RedisLeases) -> None:  # C-40
    await each_leases.acquire_lease("k", "a", 15000)
    assert await each_leases.acquire_lease("k", "b", 15000) == (False, "a", None)
    assert await each_leases.get_lease_owner("k") == "a"


async def test_each_method_is_one_round_trip(any_leases: RedisLeases, any_plain: redis.asyncio.Redis) -> None:
    """C-40 (+), and the same for the others."""

    async def all_methods() -> None:
        await any_leases.acquire_lease("k", "a", 15000)  # free
        await any_leases.acquire_lease("k", "a", 15000)  # own
        await any_leases.acquire_lease("k", "b", 15000)  # held by another
        await any_leases.renew_lease("k", "a", 15000)
        await any_leases.transfer_lease("k", "a", "b", 15000)
        await any_leases.get_lease_owner("k")
        await any_leases.release_lease("k", "b")

    await all_methods()  # the server knows the scripts now
    sent: list[str] = []
    async with any_plain.monitor() as monitor:
        await all_methods()
        await any_plain.echo("the end")
        async for seen in monitor.listen():
            if seen["command"].startswith("ECHO the end"):
                break
            command = seen["command"].split()[0]
            if seen["client_type"] != "lua" and command not in {"HELLO", "AUTH", "CLIENT"}:  # the other client connects
                sent.append(command)
    assert sent == ["EVALSHA", "EVALSHA", "EVALSHA", "EVALSHA", "EVALSHA", "GET", "EVALSHA"]


async def test_an_unheld_lease_has_no_owner(each_leases: RedisLeases) -> None:  # C-41
    assert await each_leases.get_lease_owner("k") is None


async def test_only_the_holder_releases(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-42
    await each_leases.acquire_lease("k", "a", 15000)
    await each_leases.release_lease("k", "b")
    assert await each_leases.get_lease_owner("k") == "a"
    await each_leases.release_lease("k", "a")
    assert await each_leases.get_lease_owner("k") is None
    await each_leases.release_lease("k", "a")
    assert [key async for key in each_plain.scan_iter(f"{key_prefix}*")] == [keys.floor_key(key_prefix)]


async def test_a_renewal_succeeds_only_while_held(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-43
    await each_leases.acquire_lease("k", "a", 5000)
    assert await each_leases.renew_lease("k", "a", 15000)
    assert 14000 < await each_plain.pttl(f"{key_prefix}:lease:k") <= 15000
    assert not await each_leases.renew_lease("k", "b", 60000)
    assert await each_plain.pttl(f"{key_prefix}:lease:k") <= 15000
    await each_leases.release_lease("k", "a")
    assert not await each_leases.renew_lease("k", "a", 15000)


async def test_a_transfer_swaps_the_owner_without_a_gap_and_gives_a_larger_token(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-44, C-47
    first = await each_leases.acquire_lease("k", "a", 5000)
    assert await each_leases.transfer_lease("k", "a", "b", 15000)
    assert await each_leases.get_lease_owner("k") == "b"
    assert 14000 < await each_plain.pttl(f"{key_prefix}:lease:k") <= 15000
    assert not await each_leases.transfer_lease("k", "a", "c", 15000)
    second = await each_leases.acquire_lease("k", "b", 15000)
    assert second.token is not None
    assert first.token is not None
    assert second.token > first.token


async def test_the_key_is_never_empty_during_transfers(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-44
    await each_leases.acquire_lease("k", "0", 15000)
    seen: set[str | None] = set()
    async with anyio.create_task_group() as group:

        async def hand_on() -> None:
            for number in range(100):
                assert await each_leases.transfer_lease("k", str(number), str(number + 1), 15000)
            group.cancel_scope.cancel()

        group.start_soon(hand_on)
        while True:
            seen.add(await each_plain.get(f"{key_prefix}:lease:k"))
    assert None not in seen
    assert len(seen) > 1


@pytest.mark.parametrize("ttl_ms", [0, -1, -5, 1.5, 15000.0, math.inf, math.nan, "15000", None, True, 2**63, 10**30])
async def test_case_L16_a_bad_ttl_raises_value_error_before_anything_is_sent(connect: Any, ttl_ms: Any) -> None:
    nowhere: RedisLeases = connect("redis://127.0.0.1:1", "p")  # sending would raise something else
    with pytest.raises(ValueError, match="ttl_ms"):
        await nowhere.acquire_lease("k", "a", ttl_ms)
    with pytest.raises(ValueError, match="ttl_ms"):
        await nowhere.renew_lease("k", "a", ttl_ms)
    with pytest.raises(ValueError, match="ttl_ms"):
        await nowhere.transfer_lease("k", "a", "b", ttl_ms)


@pytest.mark.parametrize("bad", ["", "\ud800", "a\0b", None, 7, b"a"])
async def test_a_bad_key_or_owner_raises_value_error_before_anything_is_sent(connect: Any, bad: Any) -> None:  # C-46
    nowhere: RedisLeases = connect("redis://127.0.0.1:1", "p")
    for call in (
        lambda: nowhere.acquire_lease(bad, "a", 1),
        lambda: nowhere.get_lease_owner(bad),
        lambda: nowhere.release_lease(bad, "a"),
        lambda: nowhere.renew_lease(bad, "a", 1),
        lambda: nowhere.transfer_lease(bad, "a", "b", 1),
    ):
        with pytest.raises(ValueError, match="key"):
            await call()
    for call in (
        lambda: nowhere.acquire_lease("k", bad, 1),
        lambda: nowhere.release_lease("k", bad),
        lambda: nowhere.renew_lease("k", bad, 1),
        lambda: nowhere.transfer_lease("k", bad, "b", 1),
    ):
        with pytest.raises(ValueError, match="owner"):
            await call()
    with pytest.raises(ValueError, match="to_owner"):
        await nowhere.transfer_lease("k", "a", bad, 1)


async def test_owners_and_keys_are_any_text(each_leases: RedisLeases) -> None:
    for key, owner in (("a b\n}{", "7 x"), ("é{t}", "1 2 3"), ("*", "\né 𝄞"), ("lease:x", "'\"\\")):
        first = await each_leases.acquire_lease(key, owner, 15000)
        assert first[:2] == (True, owner)
        assert await each_leases.acquire_lease(key, owner, 15000) == first
        assert await each_leases.get_lease_owner(key) == owner
        assert (await each_leases.acquire_lease(key, "other", 15000))[:2] == (False, owner)
        assert await each_leases.transfer_lease(key, owner, owner + "'", 15000)
        await each_leases.release_lease(key, owner + "'")
        assert await each_leases.get_lease_owner(key) is None


async def test_an_owner_that_is_no_text_is_shown_and_not_confused(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    await plain.set(f"{key_prefix}:lease:k", b"\xff\xfe", px=15000)
    assert await leases.get_lease_owner("k") == "\\xff\\xfe"
    assert (await leases.acquire_lease("k", "\\xff\\xfe", 15000)).acquired is False


async def test_tokens_grow_across_expiry_release_and_transfer(each_leases: RedisLeases) -> None:  # C-47
    tokens: list[int | None] = []
    for owner in ("a", "b", "a"):
        tokens.append((await each_leases.acquire_lease("k", owner, 15000)).token)
        await each_leases.release_lease("k", owner)
    tokens.append((await each_leases.acquire_lease("k", "a", 30)).token)

    async def ended() -> bool:
        return await each_leases.get_lease_owner("k") is None

    await eventually(ended)
    tokens.append((await each_leases.acquire_lease("k", "a", 15000)).token)
    numbers = [token or 0 for token in tokens]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > 0


async def test_tokens_grow_across_a_restart_without_persistence(
    connect: Callable[..., RedisLeases], own_redis: Callable[..., RedisServer], key_prefix: str
) -> None:  # C-47
    server = own_redis()
    before = await connect(server.url(), key_prefix).acquire_lease("k", "a", 15000)
    server.kill()
    server.start()
    after = await connect(server.url(), key_prefix).acquire_lease("k", "b", 15000)
    assert after.token is not None
    assert before.token is not None
    assert after.token > before.token


async def test_tokens_grow_when_the_clock_of_the_server_was_ahead(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:  # C-47
    ahead = 8_000_000_000_000_000  # in the year 2223; exact beyond what %.14g would keep
    await each_plain.set(keys.floor_key(key_prefix), ahead)
    tokens = [(await each_leases.acquire_lease(f"k{number}", "a", 15000)).token for number in range(3)]
    assert tokens == [ahead + 1, ahead + 2, ahead + 3]
    assert await each_plain.get(keys.floor_key(key_prefix)) == str(ahead + 3)


async def test_without_fencing_there_is_no_token_and_no_key_but_the_lease(
    lease_world: LeaseWorld, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    unfenced = lease_world.provider(fencing=False)
    assert await unfenced.acquire_lease("k", "a", 15000) == (True, "a", None)
    assert await unfenced.renew_lease("k", "a", 15000)
    assert await unfenced.transfer_lease("k", "a", "b", 15000)
    assert [key async for key in each_plain.scan_iter(f"{key_prefix}*")] == [f"{key_prefix}:lease:k"]
    await unfenced.release_lease("k", "b")
    assert await unfenced.get_lease_owner("k") is None


async def test_after_a_holder_vanished_nobody_else_gets_the_lease_for_the_lock_delay(lease_world: LeaseWorld) -> None:
    delayed = lease_world.provider(lock_delay_ms=400)
    grant = await delayed.acquire_lease("k", "gone", 50)

    async def ended() -> bool:
        return await delayed.get_lease_owner("k") is None

    await eventually(ended)
    refused = await delayed.acquire_lease("k", "next", 15000)
    assert refused[:2] == (False, "gone")
    assert 0 <= refused.held_for_ms <= 400  # type: ignore[attr-defined]

    async def taken() -> Any:
        answer = await delayed.acquire_lease("k", "next", 15000)
        return answer if answer.acquired else None

    later = await eventually(taken)
    assert later.token > grant.token


async def test_a_release_ends_the_lock_delay_also_after_the_lease_ran_out(lease_world: LeaseWorld) -> None:
    delayed = lease_world.provider(lock_delay_ms=60_000)
    await delayed.acquire_lease("k", "a", 15000)
    await delayed.release_lease("k", "a")
    assert (await delayed.acquire_lease("k", "b", 50)).acquired

    async def ended() -> bool:
        return await delayed.get_lease_owner("k") is None

    await eventually(ended)
    assert not (await delayed.acquire_lease("k", "c", 15000)).acquired
    assert (await delayed.acquire_lease("k", "b", 50)).acquired, "the holder itself need not wait"
    await eventually(ended)
    await delayed.release_lease("k", "b")
    assert (await delayed.acquire_lease("k", "c", 15000)).acquired


async def test_case_L12_ten_thousand_cycles_leave_a_bounded_number_of_keys(
    leases: RedisLeases, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    limiter = anyio.CapacityLimiter(200)

    async def cycle(number: int) -> None:
        async with limiter:
            assert (await leases.acquire_lease(f"k{number}", "a", 60_000)).acquired
            await leases.release_lease(f"k{number}", "a")

    async with anyio.create_task_group() as group:
        for number in range(10_000):
            group.start_soon(cycle, number)
    assert [key async for key in plain.scan_iter(f"{key_prefix}*", count=1000)] == [keys.floor_key(key_prefix)]


async def test_case_L14_with_the_server_down_acquire_and_owner_raise(
    connect: Callable[..., RedisLeases], own_redis: Callable[..., RedisServer], key_prefix: str
) -> None:
    server = own_redis()
    leases = connect(server.url(), key_prefix, timeout=0.5)
    assert (await leases.acquire_lease("held", "a", 60_000)).acquired
    server.kill()
    with pytest.raises(LeaseUnavailable, match=r"'k'.*acquiring.*127\.0\.0\.1"):
        await leases.acquire_lease("k", "a", 60_000)
    with pytest.raises(LeaseUnavailable, match="'held'"):
        await leases.get_lease_owner("held")
    with pytest.raises(LeaseUnavailable):
        await leases.renew_lease("held", "a", 60_000)
    with pytest.raises(LeaseUnavailable):
        await leases.transfer_lease("held", "a", "b", 60_000)
    with pytest.raises(LeaseUnavailable):
        await leases.release_lease("held", "a")


async def test_a_key_of_another_type_is_an_error_that_names_the_lease(
    each_leases: RedisLeases, each_plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    await each_plain.xadd(f"{key_prefix}:lease:k", {"event": "{}"})
    for call in (
        lambda: each_leases.acquire_lease("k", "a", 1000),
        lambda: each_leases.renew_lease("k", "a", 1000),
        lambda: each_leases.release_lease("k", "a"),
        lambda: each_leases.transfer_lease("k", "a", "b", 1000),
        lambda: each_leases.get_lease_owner("k"),
    ):
        with pytest.raises(WrongKeyType, match=":lease:k") as refused:
            await call()
        assert any("'k'" in note for note in refused.value.__notes__)
    assert await each_plain.xlen(f"{key_prefix}:lease:k") == 1


async def test_a_user_without_rights_is_told_so(
    connect: Callable[..., RedisLeases], any_redis_server: RedisServer, any_plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    await any_plain.acl_setuser(
        "lease-tester", enabled=True, reset=True, passwords=["+pw"], commands=["+@all"], keys=["other:*"]
    )
    try:
        stranger = connect(any_redis_server.url("lease-tester", "pw"), key_prefix)
        with pytest.raises(PermissionRefused):
            await stranger.acquire_lease("k", "a", 1000)
        with pytest.raises(PermissionRefused):
            await stranger.get_lease_owner("k")
    finally:
        await any_plain.acl_deluser("lease-tester")


async def test_the_rights_that_the_operator_grants_are_enough_and_exact(
    connect: Callable[..., RedisLeases], any_redis_server: RedisServer, any_plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    family = f"{key_prefix}:lease:jobs/"
    patterns = [
        keys.family_pattern(family),
        *keys.companion_patterns(key_prefix, "fence", family),
        keys.glob_escape(keys.floor_key(key_prefix)),
    ]
    commands = (
        "auth hello ping select client|setname client|setinfo client|id get set del pexpire pttl time eval evalsha"
    )
    await any_plain.execute_command(
        "ACL", "SETUSER", "lease-tester-2", "reset", "on", ">pw", "resetchannels", "-@all",
        *(f"+{command}" for command in commands.split() if "|" not in command), "+client",
        *(f"~{pattern}" for pattern in patterns),
    )  # fmt: skip
    try:
        granted = connect(any_redis_server.url("lease-tester-2", "pw"), key_prefix)
        for key in ("jobs/", "jobs/a", "jobs/{t}", "jobs/}x", "jobs/{}*?[a]\\"):
            assert (await granted.acquire_lease(key, "a", 15000)).acquired, key
            assert await granted.renew_lease(key, "a", 15000)
            assert await granted.transfer_lease(key, "a", "b", 15000)
            assert await granted.get_lease_owner(key) == "b"
            await granted.release_lease(key, "b")
        with pytest.raises(PermissionRefused):
            await granted.acquire_lease("job", "a", 15000)
    finally:
        await any_plain.acl_deluser("lease-tester-2")

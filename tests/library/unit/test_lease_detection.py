"""Which objects are lease providers, what stands in for one, and holding over any of them (C-45, C-46)."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from streamhold._lease import NoopLeaseProvider, hold_lease, lease_provider_of
from streamhold.errors import ConfigError, LeaseHeld, LeaseLost

METHODS = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")


class InMemory:
    """A provider as somebody else might write it: plain pairs, no tokens, no policy, errors of its own."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.failing: Exception | None = None
        self.renewals = 0

    async def acquire_lease(self, key: str, owner: str, ttl_ms: int) -> tuple[bool, str]:
        if self.failing is not None:
            raise self.failing
        holder = self.owners.setdefault(key, owner)
        return holder == owner, holder

    async def get_lease_owner(self, key: str) -> str | None:
        return self.owners.get(key)

    async def release_lease(self, key: str, owner: str) -> None:
        if self.failing is not None:
            raise self.failing
        if self.owners.get(key) == owner:
            del self.owners[key]

    async def renew_lease(self, key: str, owner: str, ttl_ms: int) -> bool:
        self.renewals += 1
        if self.failing is not None:
            raise self.failing
        return self.owners.get(key) == owner

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl_ms: int) -> bool:
        if self.owners.get(key) != from_owner:
            return False
        self.owners[key] = to_owner
        return True


class Inheriting(InMemory):
    pass


def test_whatever_has_the_five_methods_is_a_provider_whatever_its_class() -> None:
    for candidate in (InMemory(), Inheriting(), NoopLeaseProvider(), SimpleNamespace(**dict.fromkeys(METHODS, print))):
        assert lease_provider_of(candidate) is candidate


@pytest.mark.parametrize("missing", METHODS)
@pytest.mark.parametrize("instead", ["absent", None, "a string"])
def test_with_one_of_the_five_missing_or_not_callable_it_is_none(missing: str, instead: object) -> None:
    candidate = SimpleNamespace(**dict.fromkeys(METHODS, print))
    if instead == "absent":
        delattr(candidate, missing)
    else:
        setattr(candidate, missing, instead)
    assert isinstance(lease_provider_of(candidate), NoopLeaseProvider)


def test_nothing_at_all_is_no_provider() -> None:
    assert isinstance(lease_provider_of(None), NoopLeaseProvider)


@pytest.mark.anyio
async def test_the_no_op_provider_lets_everybody_win() -> None:
    noop = lease_provider_of(None)
    assert await noop.acquire_lease("k", "a", 1) == (True, "a", None)
    assert await noop.acquire_lease("k", "b", 1) == (True, "b", None)
    assert await noop.get_lease_owner("k") is None
    assert await noop.renew_lease("k", "c", 1)
    assert await noop.transfer_lease("k", "c", "d", 1)
    await noop.release_lease("k", "e")


@pytest.mark.anyio
async def test_the_no_op_provider_refuses_what_a_real_one_refuses() -> None:
    noop = NoopLeaseProvider()
    for call in (
        lambda: noop.acquire_lease("", "a", 1),
        lambda: noop.acquire_lease("k", "", 1),
        lambda: noop.acquire_lease("k", "a", 0),
        lambda: noop.renew_lease("k", "a", -1),
        lambda: noop.transfer_lease("k", "a", "", 1),
        lambda: noop.release_lease("k", ""),
        lambda: noop.get_lease_owner(""),
    ):
        with pytest.raises(ValueError):
            await call()


@pytest.mark.anyio
async def test_holding_works_over_the_no_op_provider() -> None:
    async with hold_lease(NoopLeaseProvider(), "k", ttl=0.2) as lease:
        await anyio.sleep(0.4)
        lease.ensure_held()
        assert lease.token is None
        await lease.transfer_to("next")


@pytest.mark.anyio
async def test_holding_works_over_a_provider_of_plain_pairs() -> None:
    provider: Any = InMemory()
    async with hold_lease(provider, "k", ttl=0.2) as lease:
        assert provider.owners == {"k": lease.owner}
        with pytest.raises(LeaseHeld, match=lease.owner):
            async with hold_lease(provider, "k"):
                pytest.fail("entered")
        await anyio.sleep(0.4)
        lease.ensure_held()
    assert provider.owners == {}
    assert provider.renewals > 2


@pytest.mark.anyio
async def test_an_error_of_a_foreign_provider_is_raised_by_acquiring_and_outlived_by_a_holding() -> None:
    provider: Any = InMemory()
    provider.failing = OSError("away")
    with pytest.raises(OSError, match="away"):
        async with hold_lease(provider, "k", ttl=0.3):
            pytest.fail("entered")
    provider.failing = None
    async with hold_lease(provider, "k", ttl=0.6) as lease:
        provider.failing = OSError("away")
        await anyio.sleep(0.3)
        provider.failing = None
        await anyio.sleep(0.5)
        lease.ensure_held()
    with pytest.raises(LeaseLost) as lost:
        async with hold_lease(provider, "k", ttl=0.3):
            provider.failing = OSError("away")
            await anyio.sleep_forever()
    assert isinstance(lost.value.__cause__, OSError)


@pytest.mark.anyio
async def test_a_lease_that_is_taken_away_stops_a_body_in_the_middle_of_its_own_task_group() -> None:
    provider: Any = InMemory()
    with pytest.raises(LeaseLost):
        async with hold_lease(provider, "k", ttl=0.3):
            provider.owners["k"] = "thief"
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.sleep_forever)
                await anyio.sleep_forever()
    assert provider.owners == {"k": "thief"}


@pytest.mark.anyio
async def test_what_is_not_usable_is_refused_before_the_provider_is_asked() -> None:
    provider: Any = InMemory()
    provider.failing = AssertionError("asked")
    with pytest.raises(ConfigError, match="ttl"):
        async with hold_lease(provider, "k", ttl=0):
            pytest.fail("entered")


@pytest.mark.anyio
async def test_a_release_that_hangs_holds_the_end_of_the_block_up_for_two_seconds_at_most() -> None:
    class Hanging(InMemory):
        async def release_lease(self, key: str, owner: str) -> None:
            await anyio.sleep_forever()

    provider: Any = Hanging()
    started = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        async with hold_lease(provider, "k"):
            raise ZeroDivisionError
    assert 1.5 < time.monotonic() - started < 3


@pytest.mark.anyio
async def test_a_lease_that_ran_out_while_the_loop_was_blocked_is_not_renewed() -> None:
    provider: Any = InMemory()
    with pytest.raises(LeaseLost, match="not renewed"):
        async with hold_lease(provider, "k", ttl=0.2) as lease:
            time.sleep(0.3)  # noqa: ASYNC251  # the block keeps the loop from running
            await anyio.sleep_forever()
    assert provider.renewals == 0
    assert lease.owner in repr(lease)

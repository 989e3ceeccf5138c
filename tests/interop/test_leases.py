"""Leases against the recordings of the TypeScript reference: same calls, same results, same keys and values.

`data/lease-recordings.json` holds the lease scenarios of the recordings. Each call is made through our provider on a
server where what the recording's set-up left is there, put there once by us and once by the recorded commands of the
reference. Where we differ on purpose the difference is the assertion.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from streamhold._backends.redis.client import RedisClient
from streamhold._backends.redis.lease import RedisLeases
from streamhold.errors import ConfigError, WrongKeyType
from streamhold.keys import stream_key

if TYPE_CHECKING:
    from streamhold_dev.redisserver import RedisServer

pytestmark = pytest.mark.anyio

_RECORDED: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "lease-recordings.json").read_text())
SCENARIOS = {scenario["scenario"]: scenario for scenario in _RECORDED}
METHODS = {
    "acquireLease": "acquire_lease",
    "getLeaseOwner": "get_lease_owner",
    "renewLease": "renew_lease",
    "transferLease": "transfer_lease",
    "releaseLease": "release_lease",
}
HOLDER = {"thread:abc": ("run-1", 15000)}
SET_UP: dict[str, dict[int, dict[str, tuple[str, int] | None]]] = {
    # Before which step the lease is put there (owner, TTL) or removed (None); the recordings do not list it.
    "lease/acquire, free": {},
    "lease/acquire, held by the same owner": {0: HOLDER},
    "lease/acquire, held by another": {0: HOLDER},
    "lease/getLeaseOwner": {1: HOLDER},
    "lease/renew": {0: HOLDER, 2: {"thread:abc": None}},
    "lease/transfer": {0: HOLDER, 2: {"thread:abc": None}},
    "lease/release": {0: {"thread:abc": ("run-1", 5000)}},
    "lease/keyPrefix": {},
}
NAMED_STATES = {"after_own", "after_other", "after"}
MOMENTS = {  # after which step a named state was taken
    "lease/renew": {0: "after_own", 1: "after_other"},
    "lease/transfer": {0: "after"},
    "lease/release": {0: "after_other", 1: "after_own"},
}
_IF_OWNER = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end "
SCRIPTS = {  # the reference's scripts, by what the recordings say they do
    "set the TTL": f"{_IF_OWNER} return redis.call('PEXPIRE', KEYS[1], ARGV[2])",
    "delete": f"{_IF_OWNER} return redis.call('DEL', KEYS[1])",
    "set it to the to-owner": f"{_IF_OWNER} redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) return 1",
}


@pytest.fixture
async def plain(any_redis_server: RedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    async with any_redis_server.client() as client:
        yield client


@pytest.fixture
async def client(any_redis_server: RedisServer) -> AsyncIterator[RedisClient]:
    client = RedisClient.from_url(any_redis_server.url())
    yield client
    await client.aclose()


class Replay:
    """One scenario below a key prefix of the test's own."""

    def __init__(
        self, scenario: dict[str, Any], own_prefix: str, client: RedisClient, plain: redis.asyncio.Redis
    ) -> None:
        self.recorded_prefix = scenario["options"].get("keyPrefix", "mastra:topic")
        self.prefix = f"{own_prefix}:{self.recorded_prefix}"
        self.leases = RedisLeases.for_prefix(client, self.prefix)
        self.plain = plain

    def ours(self, word: str) -> str:
        return re.sub(f"^{re.escape(self.recorded_prefix)}:", f"{self.prefix}:", word)

    async def call(self, text: str) -> Any:
        """Make a recorded call through our provider; the result in the shape of the recordings."""
        method, arguments = re.fullmatch(r"(?:B\.)?(\w+)\((.*?)\)(?: .*)?", text).groups()  # type: ignore[union-attr]
        result = await getattr(self.leases, METHODS[method])(*json.loads(f"[{arguments}]".replace("'", '"')))
        if method == "acquireLease":
            return {"acquired": result.acquired, "owner": result.owner}
        if method == "getLeaseOwner":
            return {"value": "<undefined>" if result is None else result}
        return result

    async def send(self, command: list[str]) -> Any:
        """Send a recorded command as the reference did."""
        words = [self.ours(word) for word in command]
        if words[0] == "EVAL":
            words[1] = next(script for said, script in SCRIPTS.items() if said in words[1])
        return await self.plain.execute_command(*words)  # type: ignore[no-untyped-call]

    async def set_up(self, leases: dict[str, tuple[str, int] | None], by_us: bool) -> None:
        for key, held in leases.items():
            if held is None:
                await self.leases.release_lease(key, await self.leases.get_lease_owner(key) or "nobody")
            elif by_us:
                assert (await self.leases.acquire_lease(key, *held)).acquired
            else:
                await self.send(["SET", f"{self.recorded_prefix}:lease:{key}", held[0], "PX", str(held[1]), "NX"])

    async def check(self, key: str, state: dict[str, Any]) -> None:
        name = self.ours(key)
        if state.get("exists") is False:
            assert await self.plain.exists(name) == 0
            return
        assert await self.plain.type(name) == state["type"] == "string"
        assert await self.plain.get(name) == state["value"]
        assert abs(await self.plain.pttl(name) - state["pttl"]) < 1500

    async def check_only_ours_besides(self, recorded: set[str]) -> None:
        """Whatever else we keep lies where no TypeScript pod looks."""
        found = {key async for key in self.plain.scan_iter(f"{self.prefix}:*", count=1000)}
        others = found - {self.ours(key) for key in recorded}
        assert all(key.startswith(f"{self.prefix}:streamhold:") for key in others)


@pytest.mark.parametrize("by_us", [True, False], ids=["beside our own", "beside a TypeScript pod's"])
@pytest.mark.parametrize("name", list(SET_UP))
async def test_our_calls_do_what_the_recorded_calls_did(
    client: RedisClient, plain: redis.asyncio.Redis, key_prefix: str, name: str, by_us: bool
) -> None:
    scenario = SCENARIOS[name]
    replay = Replay(scenario, key_prefix, client, plain)
    lease = f"{replay.recorded_prefix}:lease:thread:abc"
    for number, step in enumerate(scenario["steps"]):
        await replay.set_up(SET_UP[name].get(number, {}), by_us)
        assert await replay.call(step["call"]) == step.get("result"), step["call"]
        moment = MOMENTS.get(name, {}).get(number)
        if moment is not None:
            await replay.check(lease, scenario["state"][moment])
    final = {key: state for key, state in scenario["state"].items() if key not in NAMED_STATES}
    for key, state in final.items():
        await replay.check(key, state)
    await replay.check_only_ours_besides({lease, *final})


@pytest.mark.parametrize("name", [name for name in SET_UP if name != "lease/keyPrefix"])
async def test_the_recorded_commands_get_the_recorded_replies_on_leases_of_ours(
    client: RedisClient, plain: redis.asyncio.Redis, key_prefix: str, name: str
) -> None:
    """The other direction: what a TypeScript pod sends means the same beside our companion keys."""
    scenario = SCENARIOS[name]
    replay = Replay(scenario, key_prefix, client, plain)
    for number, step in enumerate(scenario["steps"]):
        await replay.set_up(SET_UP[name].get(number, {}), True)
        replies = [await replay.send(command) for command in step["commands"]]
        assert ["OK" if reply is True else reply for reply in replies] == step["replies"], step["call"]


async def test_a_lease_freed_while_it_was_asked_for_is_never_reported_as_held_by_nobody(
    client: RedisClient, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """The reference answers `acquired: false` without an owner there; we ask in one step (C-40)."""
    scenario = SCENARIOS["lease/acquire, freed between the round trips"]
    assert scenario["steps"][0]["result"] == {"acquired": False, "owner": "<undefined>"}
    replay = Replay(scenario, key_prefix, client, plain)
    for _ in range(20):
        await replay.set_up(HOLDER, True)
        await replay.leases.release_lease("thread:abc", "run-1")
        assert await replay.call("acquireLease('thread:abc', 'run-2', 4000)") == {"acquired": True, "owner": "run-2"}
        await replay.leases.release_lease("thread:abc", "run-2")


async def test_what_the_reference_lets_through_is_refused_before_it_is_sent(
    client: RedisClient, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """C-46: among it a renewal with TTL 0 that deletes the lease and reports true."""
    scenario = SCENARIOS["lease/bad arguments"]
    replay = Replay(scenario, key_prefix, client, plain)
    bad = [step["call"] for step in scenario["steps"]]
    assert any(step.get("result") is True for step in scenario["steps"])
    for call in bad:
        with pytest.raises(ValueError):
            await replay.call(call.replace("NaN", '"NaN"').replace("Infinity", '"Infinity"'))
    assert [key async for key in plain.scan_iter(f"{replay.prefix}*")] == []


async def test_a_topic_and_a_lease_never_meet_in_one_key(
    client: RedisClient, plain: redis.asyncio.Redis, key_prefix: str
) -> None:
    """C-5; a stream that a TypeScript pod put there is an error that says so, and stays."""
    scenario = SCENARIOS["lease/collides with a topic"]
    replay = Replay(scenario, key_prefix, client, plain)
    with pytest.raises(ConfigError, match="lease:"):
        stream_key(replay.prefix, "lease:k")
    key = "mastra:topic:lease:j"
    await plain.xadd(replay.ours(key), dict([scenario["state"][key]["xrange"][0][1]]))
    with pytest.raises(WrongKeyType):
        await replay.call("acquireLease('j', 'o', 15000)")
    assert await plain.xlen(replay.ours(key)) == scenario["state"][key]["xlen"]


def test_every_recorded_lease_scenario_is_used() -> None:
    handled = {
        *SET_UP,
        "lease/acquire, freed between the round trips",
        "lease/bad arguments",
        "lease/collides with a topic",
    }
    assert set(SCENARIOS) == handled

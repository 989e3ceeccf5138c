"""The ACL patterns against the glob matching of real servers."""

from __future__ import annotations

import pytest
import redis.asyncio

from streamhold import keys

pytestmark = pytest.mark.anyio

NAMES = [
    "jobs/",
    "jobs/a",
    "jobs/{t}a",
    "jobs/}a",
    "jobs/{}a",
    "jobs/{a",
    "jobs",
    "job/a",
    "a}jobs/a",
    "jobs/*",
    "jobs/[a]",
    "{jobs/}",
]
NAMES += ["a\\b", "a\\", "a*b", "aXb", "a?b", "[ab]", "a", "b", "é/x", "jobs/" + "}" * 3 + "y"]  # fmt: skip
FAMILIES = ["jobs/", "jobs/{", "jobs/}", "a\\", "a*", "[a", "é", "j", "{jobs/}"]


@pytest.mark.parametrize("tagged", [False, True])
async def test_servers_match_exactly_the_companions_of_a_family(
    any_plain: redis.asyncio.Redis, key_prefix: str, tagged: bool
) -> None:
    prefix = f"{key_prefix}:{{t}}" if tagged else key_prefix
    mains = {name: f"{prefix}:lease:{name}" for name in NAMES}
    companions = {keys.companion(prefix, "fence", main): main for main in mains.values()}
    assert len(companions) == len(set(NAMES))
    for key in [*mains.values(), *companions]:
        await any_plain.set(key, "x")
    for family in FAMILIES:
        start = f"{prefix}:lease:{family}"
        wanted = {main for main in mains.values() if main.startswith(start)}
        assert set(await any_plain.keys(keys.family_pattern(start))) == wanted, family
        found: set[str] = set()
        for pattern in keys.companion_patterns(prefix, "fence", start):
            found.update(await any_plain.keys(pattern))
        assert {companions[key] for key in found} == wanted, family
    for companion, main in companions.items():
        assert await any_plain.keys(keys.companion_pattern(prefix, "fence", main)) == [companion]
        assert await any_plain.keys(keys.glob_escape(main)) == [main]

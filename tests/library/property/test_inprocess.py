"""The in-process server answers as Redis does: the same commands and steps, in any order, with the same replies.

Entries have other ids there, so they are compared by their number; times are compared by whether they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from streamhold import InProcessServer
from streamhold._backends.inprocess import commands
from streamhold._backends.inprocess.server import InProcessClient
from streamhold._backends.redis.client import RedisClient, Script
from streamhold.errors import BackendError

if TYPE_CHECKING:
    from streamhold._backends.store import Store
    from streamhold_dev.redisserver import RedisServer

NAMES = ("group_open", "nack", "hold", "leave", "stale")
SCRIPTS = {name: Script(name) for name in NAMES}
KEYS = st.sampled_from(["s", "t"])
GROUPS = st.sampled_from(["g", "h"])
CONSUMERS = st.sampled_from(["c", "d"])
ENTRY = st.integers(0, 6)
NEVER = "9999999999999-0"
"""An id that nobody gives."""


class Side:
    """One of the two servers, and the ids that it gave to the entries, by number."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store = store
        self.prefix = prefix
        self.ids: list[bytes] = []

    def id_of(self, number: int) -> bytes | str:
        return self.ids[number] if number < len(self.ids) else NEVER

    def known(self, reply: Any) -> Any:
        """The reply with the number of each entry in the place of its id, and without the prefix."""
        if isinstance(reply, bytes):
            if reply in self.ids:
                return ("entry", self.ids.index(reply))
            return reply.decode().removeprefix(self.prefix)
        return [self.known(one) for one in reply] if isinstance(reply, list) else reply

    async def ask(self, make: Callable[[Side], Any]) -> Any:
        try:
            return self.known(await make(self))
        except BackendError as error:
            return "refused", error.code


class Machine(RuleBasedStateMachine):
    """Does the same on both sides."""

    def __init__(self, portal: BlockingPortal, sides: tuple[Side, Side]) -> None:
        super().__init__()
        self.portal = portal
        self.sides = sides

    @initialize()
    def fresh(self) -> None:
        for side in self.sides:
            side.ids = []
        self.both(lambda side: side.store.execute("DEL", side.prefix + "s", side.prefix + "t", side.prefix + "dead"))

    def both(self, make: Callable[[Side], Any], read: Callable[[Any], Any] | None = None) -> None:
        self.portal.call(self._compare, [(make, read or _as_it_is)])

    async def _compare(self, questions: Sequence[tuple[Callable[[Side], Any], Callable[[Any], Any]]]) -> None:
        for make, read in questions:
            ours, theirs = [read(await side.ask(make)) for side in self.sides]
            assert ours == theirs

    def run(
        self, name: str, key: str, *args: Callable[[Side], Any] | str | int, more_keys: tuple[str, ...] = ()
    ) -> None:
        def make(side: Side) -> Any:
            given = [arg(side) if callable(arg) else arg for arg in args]
            return side.store.run_script(SCRIPTS[name], [side.prefix + one for one in (key, *more_keys)], given)

        self.both(make)

    # ---- entries ----

    @rule(key=KEYS, limit=st.sampled_from([0, 0, 0, 2]))
    def add(self, key: str, limit: int) -> None:
        trim = ("MAXLEN", "=", limit) if limit else ()
        for side in self.sides:
            added = self.portal.call(side.store.execute, "XADD", side.prefix + key, *trim, "*", "event", len(side.ids))
            side.ids.append(added)

    @rule(key=KEYS, length=st.integers(0, 3))
    def trim(self, key: str, length: int) -> None:
        self.both(lambda side: side.store.execute("XTRIM", side.prefix + key, "MAXLEN", "=", length))

    @rule(key=KEYS, first=ENTRY, count=st.integers(1, 4), behind=st.booleans())
    def list_entries(self, key: str, first: int, count: int, behind: bool) -> None:
        def ask(side: Side) -> Any:
            start = side.id_of(first)
            start = start.encode() if isinstance(start, str) else start
            return side.store.execute(
                "XRANGE", side.prefix + key, b"(" + start if behind else start, "+", "COUNT", count
            )

        self.both(ask)

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.both(lambda side: side.store.execute("DEL", side.prefix + key))

    # ---- groups ----

    @rule(key=KEYS, group=GROUPS, start=st.sampled_from(["0-0", "$"]), make=st.booleans())
    def open_group(self, key: str, group: str, start: str, make: bool) -> None:
        self.run("group_open", key, group, start, 0, int(make))

    @rule(key=KEYS, group=GROUPS, seen=ENTRY)
    def open_group_after(self, key: str, group: str, seen: int) -> None:
        self.run("group_open", key, group, lambda side: side.id_of(seen), 60_000, 1)

    @rule(key=KEYS, group=GROUPS)
    def destroy_group(self, key: str, group: str) -> None:
        self.both(lambda side: side.store.execute("XGROUP", "DESTROY", side.prefix + key, group))

    @rule(group=GROUPS, consumer=CONSUMERS, count=st.integers(1, 4), both=st.booleans())
    def read(self, group: str, consumer: str, count: int, both: bool) -> None:
        names = ("s", "t") if both else ("s",)
        self.both(
            lambda side: side.store.execute(
                "XREADGROUP", "GROUP", group, consumer, "COUNT", count,
                "STREAMS", *(side.prefix + name for name in names), *(">" for _ in names),
            )
        )  # fmt: skip

    @rule(key=KEYS, group=GROUPS, consumer=CONSUMERS, after=ENTRY)
    def read_again(self, key: str, group: str, consumer: str, after: int) -> None:
        self.both(
            lambda side: side.store.execute(
                "XREADGROUP", "GROUP", group, consumer, "COUNT", 3, "STREAMS", side.prefix + key, side.id_of(after)
            )
        )

    # ---- settling ----

    @rule(key=KEYS, group=GROUPS, entries=st.lists(ENTRY, min_size=1, max_size=4))
    def acknowledge(self, key: str, group: str, entries: list[int]) -> None:
        self.both(
            lambda side: side.store.execute("XACK", side.prefix + key, group, *(side.id_of(one) for one in entries))
        )

    @rule(key=KEYS, group=GROUPS, consumer=CONSUMERS, entry=ENTRY, where=st.sampled_from(["dead", None]))
    def give_up(self, key: str, group: str, consumer: str, entry: int, where: str | None) -> None:
        more = (where,) if where else ()
        self.run("nack", key, group, consumer, lambda side: side.id_of(entry), 0, 0, "event", "x", more_keys=more)

    @rule(key=KEYS, group=GROUPS, consumer=CONSUMERS, entries=st.lists(ENTRY, min_size=1, max_size=4))
    def hold(self, key: str, group: str, consumer: str, entries: list[int]) -> None:
        ids = [lambda side, one=one: side.id_of(one) for one in entries]
        self.run("hold", key, group, consumer, *ids)

    @rule(key=KEYS, group=GROUPS, consumer=CONSUMERS)
    def leave(self, key: str, group: str, consumer: str) -> None:
        self.run("leave", key, group, consumer)

    @rule(group=GROUPS, idle=st.sampled_from([0, 60_000]))
    def look_for_stale(self, group: str, idle: int) -> None:
        self.run("stale", "s", group, idle, idle, more_keys=("t",))

    @rule(key=KEYS, group=GROUPS, consumer=CONSUMERS, entries=st.lists(ENTRY, min_size=1, max_size=4, unique=True),
          idle=st.sampled_from([0, 60_000]), just_id=st.booleans())  # fmt: skip
    def claim(self, key: str, group: str, consumer: str, entries: list[int], idle: int, just_id: bool) -> None:
        options = ("JUSTID",) if just_id else ()
        self.both(
            lambda side: side.store.execute(
                "XCLAIM", side.prefix + key, group, consumer, idle, *(side.id_of(one) for one in entries), *options
            )
        )

    # ---- always ----

    @invariant()
    def what_is_there_is_the_same(self) -> None:
        questions: list[tuple[Callable[[Side], Any], Callable[[Any], Any]]] = []
        for key in ("s", "t", "dead"):
            questions.append((_asking("XLEN", key), _as_it_is))
            questions.append((_asking("PTTL", key), lambda left: 60_000 - left < 5_000 if left > 0 else left))
        for key in ("s", "t"):
            questions.append((_asking("XINFO GROUPS", key), _groups))
            questions += [(_asking("XPENDING", key, group, "-", "+", 100), _without_times) for group in ("g", "h")]
        self.portal.call(self._compare, questions)


def _asking(command: str, key: str, *args: str | int) -> Callable[[Side], Any]:
    return lambda side: side.store.execute(*command.split(), side.prefix + key, *args)


def _as_it_is(reply: Any) -> Any:
    return reply


def _groups(reply: Any) -> Any:
    """What is said of the groups on either side, by name: an older server tells less, a newer one more."""
    if not isinstance(reply, list):
        return reply
    groups = [dict(zip(group[::2], group[1::2], strict=True)) for group in reply]
    told = ("consumers", "pending", "last-delivered-id")
    return {group["name"]: [group[name] for name in told] for group in groups}


def _without_times(reply: Any) -> Any:
    return [[*one[:2], *one[3:]] for one in reply] if isinstance(reply, list) else reply


@contextmanager
def machines(server: RedisServer, prefix: str) -> Iterator[Callable[[], Machine]]:
    with start_blocking_portal() as portal:
        client = portal.call(lambda: _call(RedisClient.from_url, server.url()))
        in_process = portal.call(lambda: _call(InProcessClient, InProcessServer()))
        sides = Side(in_process, "p:"), Side(client, f"{prefix}:")
        try:
            yield lambda: Machine(portal, sides)
        finally:
            portal.call(client.aclose)


async def _call(make: Callable[..., Any], *args: Any) -> Any:
    return make(*args)


def test_the_same_commands_have_the_same_replies_as_on_redis(redis_server: RedisServer, key_prefix: str) -> None:
    with machines(redis_server, key_prefix) as machine:
        run_state_machine_as_test(
            machine, settings=settings(max_examples=40, stateful_step_count=30, deadline=None, database=None)
        )


def test_the_comparison_is_not_blind(
    redis_server: RedisServer, key_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that keeps what was acknowledged is found out."""
    monkeypatch.setitem(commands._COMMANDS, b"XACK", lambda space, args: 0)
    with machines(redis_server, key_prefix) as make:
        machine = make()
        machine.fresh()
        machine.open_group("s", "g", "0-0", True)
        machine.add("s", 0)
        machine.read("g", "c", 1, False)
        machine.what_is_there_is_the_same()
        with pytest.raises(AssertionError):
            machine.acknowledge("s", "g", [0])

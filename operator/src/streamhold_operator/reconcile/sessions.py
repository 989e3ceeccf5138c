"""Sessions: the live side of each RedisConnection, shared by everything that uses it.

A session holds the one RedisAdmin of its connection, what is known of the server, and what each user of the connection
was last seen to need, so that a resync can tell in one batch who has to be looked at again. Only the connection's own
pass connects and retries; while it is down, its users are told so without touching the network: a dead Redis costs
one attempt per backoff, whatever hangs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from streamhold_operator.adapters.redis import AdminTarget, RedisAdmin, Result, Snapshot
from streamhold_operator.api import RedisConnection
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.acl import UserRule
from streamhold_operator.domain.actions import Action
from streamhold_operator.domain.claims import OwnerRecord, Owners
from streamhold_operator.domain.connection import ServerFacts
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.domain.topic import StreamState
from streamhold_operator.store import Key

LOST = frozenset({Reason.UNREACHABLE, Reason.LOADING, Reason.AUTH_FAILED, Reason.CERTIFICATE_INVALID, Reason.READ_ONLY})
"""Reasons of a refusal that say something of the whole server, not of one command."""

NOT_TRIED = Refusal(Reason.PROGRESSING, "It has not been tried yet", retry_after=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interest:
    """What one object needs of the server, and how it was found at its last pass."""

    record: OwnerRecord
    holder: str | None
    """Field of who stood in its way."""
    stream_key: str | None = None
    groups: frozenset[str] = frozenset()
    """The declared ones."""
    stream: tuple[str, frozenset[str]] | None = None
    username: str | None = None
    user: UserRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A server that the connection led to before its object named another."""

    place: str
    """Endpoint and database."""
    database: int
    run_id: str
    users: int
    """How many ACL users are there that were seen last."""


@dataclass(slots=True)
class Session:
    """The live side of one connection."""

    key: Key
    now: Callable[[], float]
    wake: Callable[[Iterable[Key]], None]
    connection: RedisConnection | None = None
    """The connection's object as of its last pass."""
    admin: RedisAdmin | None = None
    facts: ServerFacts | None = None
    refusal: Refusal | None = NOT_TRIED
    """Why the connection is not usable; None while it is."""
    down_since: float | None = None
    """When it was first found not to be usable; None while it is, or was not tried."""
    forced: object = None
    """What of the connection's own object asks for a full check when it changes."""
    recheck: bool = False
    """Whether nothing that was seen before counts."""
    announced: object = None
    """What the users of the connection were last told to look at."""
    retired: bool = False
    """Whether the connection's object is gone and the session only serves to clean up."""
    run_id: str = ""
    """Of the server that was last in order."""
    left: Left | None = None
    """Where the connection led before, until that was told."""
    owners: Owners = field(default_factory=Owners)
    interests: dict[Key, Interest] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether the connection's last pass found everything in order."""
        return self.refusal is None

    async def open(self, target: AdminTarget) -> RedisAdmin:
        """Have a RedisAdmin for this target: the one there is, or a new one in its place."""
        if self.admin is not None and self.admin.target == target:
            return self.admin
        if self.admin is not None and self.run_id and place(self.admin.target) != place(target):
            users = sum(interest.username is not None for interest in self.interests.values())
            old = self.admin.target
            self.left = Left(place=place(old), database=old.database, run_id=self.run_id, users=users)
        await self.close()
        self.admin, self.refusal = RedisAdmin(target), NOT_TRIED
        return self.admin

    def moved(self) -> str | None:
        """Return what to tell once of a move to another server or database."""
        left, self.left = self.left, None
        if left is None or self.admin is None:
            return None
        if (left.run_id, left.database) == (self.run_id, self.admin.target.database):
            return None  # another name of the same
        return (
            f"It led to {left.place} and leads to {place(self.admin.target)} now: streams, claims and"
            f" {left.users} ACL user{'' if left.users == 1 else 's'} stay behind there, nothing is copied; if that"
            " server lives on, remove the users there (ACL DELUSER)"
        )

    async def close(self) -> None:
        """Close the connections to the server."""
        admin, self.admin, self.facts = self.admin, None, None
        self.owners, self.interests = Owners(), {}
        if admin is not None:
            await admin.aclose()

    def up(self, facts: ServerFacts) -> None:
        """Note that the server is as it should be; after a restart nothing known of it counts."""
        if self.recheck or self.facts is None or self.facts.run_id != facts.run_id:
            self.interests.clear()
        self.recheck = False
        self.facts, self.refusal, self.down_since, self.run_id = facts, None, None, facts.run_id

    def down(self, refusal: Refusal) -> None:
        """Note that the connection cannot be used."""
        if self.down_since is None:
            self.down_since = self.now()
        self.refusal = refusal

    def announce(self) -> bool:
        """Return whether the users of the connection have to look at it anew, once for each change of it."""
        run_id = self.facts.run_id if self.facts is not None else None
        state = (run_id, self.forced) if self.refusal is None else self.refusal.reason
        news, self.announced = state != self.announced, state
        return news

    async def observe(self, streams: Mapping[str, Collection[str]], users: Collection[str] = ()) -> Snapshot:
        """Read the owner record, these streams (with their declared groups) and these users.

        Raises:
            Refusal: the server could not be asked.
        """
        if self.admin is None:
            raise self.refusal or NOT_TRIED
        with _Losing(self):
            snapshot = await self.admin.observe(streams, users)
        self.take(snapshot.owners)
        return snapshot

    async def apply(self, actions: Sequence[Action]) -> tuple[Result, ...]:
        """Carry out the actions.

        Raises:
            Refusal: the server could not be reached.
        """
        if not actions:
            return ()
        if self.admin is None:
            raise self.refusal or NOT_TRIED
        with _Losing(self):
            return await self.admin.apply(actions)

    def take(self, owners: Owners) -> None:
        """Note who owns what now; wake those who waited for a key that became free."""
        before, self.owners = self.owners, owners
        if before is owners or before.records == owners.records:
            return
        waiting = [(key, interest) for key, interest in self.interests.items() if interest.holder is not None]
        self.wake([key for key, interest in waiting if interest.holder not in owners.records])

    def changed(self, snapshot: Snapshot) -> Iterator[Key]:
        """Yield who is not as it was at its last pass."""
        for key, interest in self.interests.items():
            if not _as_it_was(interest, snapshot):
                yield key


class _Losing:
    """Has the connection's own pass run at once when the server turns out to be lost."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refusal) and error.reason in LOST and self._session.usable:
            self._session.down(error)
            self._session.wake([self._session.key])


class Sessions:
    """All sessions by connection."""

    def __init__(self, now: Callable[[], float], wake: Callable[[Iterable[Key]], None]) -> None:
        self._now = now
        self._wake = wake
        self._sessions: dict[Key, Session] = {}

    def get(self, key: Key) -> Session | None:
        """Return the session of a connection, if it was ever tried."""
        return self._sessions.get(key)

    def interested(self, key: Key) -> Session | None:
        """Return the session in which an object has a claim, also when the object is gone."""
        return next((session for session in self._sessions.values() if key in session.interests), None)

    def ensure(self, key: Key) -> Session:
        """Return the session of a connection."""
        if key not in self._sessions:
            self._sessions[key] = Session(key, self._now, self._wake)
        return self._sessions[key]

    async def remove(self, key: Key) -> None:
        """End the session of a connection whose object is gone."""
        session = self._sessions.pop(key, None)
        if session is not None:
            await session.close()

    async def aclose(self) -> None:
        """End all sessions."""
        for key in list(self._sessions):
            await self.remove(key)


def place(target: AdminTarget) -> str:
    """Name the server and database of a target."""
    return f"{target.endpoint}/{target.database}"


def stream_state(state: StreamState) -> tuple[str, frozenset[str]]:
    """Reduce what is at a key to what does not change by itself."""
    return (state.type, state.groups)


def _as_it_was(interest: Interest, snapshot: Snapshot) -> bool:
    owners = snapshot.owners
    if not owners.registered(interest.record):
        return False
    holder = owners.holder(interest.record)
    if (holder.field if holder is not None else None) != interest.holder:
        return False
    if interest.stream_key is not None:
        state = snapshot.streams.get(interest.stream_key)
        if state is None or stream_state(state) != interest.stream:
            return False
    return interest.username is None or snapshot.users.get(interest.username) == interest.user

"""RedisAdmin: all that the operator does at one Redis, each call bounded in time, nothing sent twice by itself.

Calls that wait for each other are joined: whoever asks while a batch is under way gets into the next one. So a
thousand objects that are worked on at once cost a few dozen round trips, and the owner record is read once for all.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from streamhold.keys import OWNERS_KEY
from streamhold_operator.adapters import redis_refusals as refusals
from streamhold_operator.adapters import redis_replies as replies
from streamhold_operator.adapters.joined import Joined
from streamhold_operator.adapters.redis_carry import Result, carry_out
from streamhold_operator.adapters.redis_probe import probe
from streamhold_operator.adapters.redis_wire import Command, Reply, ReplyError, Tls, Wire
from streamhold_operator.api.v1alpha1.redisconnection import Topology
from streamhold_operator.domain.acl import UserRule
from streamhold_operator.domain.actions import Action, DeleteStream, DeleteUser, SetUser
from streamhold_operator.domain.claims import OwnerRecord, Owners
from streamhold_operator.domain.connection import Endpoint, ServerFacts, unsupported
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.domain.topic import NO_KEY, StreamState

__all__ = ["AdminTarget", "RedisAdmin", "Result", "Snapshot", "Tls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminTarget:
    """Where and as whom to log in. Equal targets may share a RedisAdmin; a changed one needs a new RedisAdmin."""

    endpoint: Endpoint
    topology: Topology = Topology.STANDALONE
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    acl: bool = True
    """False for access Shared: no rights on ACL are needed."""
    sample_prefix: str = "streamhold:probe"
    """A key prefix that the connection hands out: the admin user's rights are checked on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What one read batch saw."""

    run_id: str
    owners: Owners
    streams: Mapping[str, StreamState]
    """By key; every key that was asked for."""
    users: Mapping[str, UserRule | None]
    """By name; every user that was asked for. None: there is no such user."""
    failures: Mapping[str, Refusal] = field(default_factory=dict)
    """By key or user name: what could not be read though the server answered; it is missing above."""

    def stream(self, key: str) -> StreamState:
        """Return what is at a key that was asked for.

        Raises:
            Refusal: it could not be read.
        """
        if key in self.failures:
            raise self.failures[key]
        return self.streams[key]

    def user(self, name: str) -> UserRule | None:
        """Return the rule of a user that was asked for; None when there is no such user.

        Raises:
            Refusal: it could not be read.
        """
        if name in self.failures:
            raise self.failures[name]
        return self.users[name]


@dataclass(frozen=True, slots=True)
class _Question:
    streams: Mapping[str, frozenset[str]]
    usernames: frozenset[str]

    @classmethod
    def joined(cls, questions: Sequence[_Question]) -> _Question:
        streams = {key: groups for question in questions for key, groups in question.streams.items()}
        return cls(streams, frozenset().union(*(question.usernames for question in questions)))


class RedisAdmin:
    """One Redis, logged in as the admin user of a RedisConnection."""

    def __init__(self, target: AdminTarget, *, timeout: float = 3.0, max_connections: int = 4) -> None:
        self.target = target
        self._wire = Wire(
            target.endpoint,
            username=target.username,
            password=target.password,
            database=target.database,
            tls=target.tls,
            timeout=timeout,
            max_connections=max_connections,
        )
        self._reads = Joined[_Question, Snapshot](self._read)
        self._writes = Joined[tuple[Action, ...], list[Result]](self._write)
        self._raw_owners: dict[str, str] = {}
        self._known_owners = Owners()
        self._checkpoints: dict[str, dict[str, str]] = {}
        self._categories: dict[str, frozenset[str]] = {}
        self._acl_file: bool | None = None
        self._unsaved = False

    async def probe(self) -> ServerFacts:
        """Log in and ask what this server is and what the admin user may do. Writes nothing.

        Returns:
            What `domain.connection.check` judges.

        Raises:
            Refusal: with a reason of its own for each way in which this can fail.
        """
        target = self.target
        if target.topology is not Topology.STANDALONE:
            raise unsupported(target.topology)
        facts = await probe(self._wire, password=target.password, acl=target.acl, sample_prefix=target.sample_prefix)
        self._acl_file = facts.acl_file
        return facts

    async def observe(self, streams: Mapping[str, Collection[str]], usernames: Collection[str] = ()) -> Snapshot:
        """Read the owner record and these streams and users in one batch. Writes nothing.

        Args:
            streams: the keys to look at, each with its declared groups, whose checkpoints are remembered.
            usernames: the ACL users to look at.

        Returns:
            What was seen after this call began. It may hold more than was asked for.

        Raises:
            Refusal: the server could not be asked.
        """
        question = _Question({key: frozenset(groups) for key, groups in streams.items()}, frozenset(usernames))
        snapshot, _ = await self._reads.ask(question)
        return snapshot

    async def apply(self, actions: Sequence[Action]) -> tuple[Result, ...]:
        """Carry out actions in one batch; no actions, no call.

        Returns:
            One result an action, in order. One that failed stops none of the others.

        Raises:
            Refusal: the server could not be reached; what was done by then is not known, and doing it again is safe.
        """
        if not actions:
            return ()
        results, before = await self._writes.ask(tuple(actions))
        start = sum(len(part) for part in before)
        return tuple(results[start : start + len(actions)])

    async def aclose(self) -> None:
        """Close all connections. May be called twice, and while the server is down."""
        await self._wire.aclose()

    # ---- reading ----

    async def _read(self, questions: Sequence[_Question]) -> Snapshot:
        question = _Question.joined(questions)
        keys, users = sorted(question.streams), sorted(question.usernames)
        commands: list[Command] = [("INFO", "server"), ("HGETALL", OWNERS_KEY)]
        commands += [("XINFO", "GROUPS", key) for key in keys]
        commands += [("ACL", "GETUSER", user) for user in users]
        server, owners, *rest = await self._wire.run(commands)
        failures: dict[str, Refusal] = {}
        streams = await self._streams(question.streams, dict(zip(keys, rest[: len(keys)], strict=True)), failures)
        rules = await self._users(dict(zip(users, rest[len(keys) :], strict=True)), failures)
        return Snapshot(
            run_id=replies.info(self._answered(server, "INFO")).get("run_id", ""),
            owners=self._owners(self._answered(owners, f"HGETALL {OWNERS_KEY}")),
            streams=streams,
            users=rules,
            failures=failures,
        )

    def _answered(self, reply: Reply, doing: str) -> Reply:
        if isinstance(reply, ReplyError):
            raise refusals.refused(self.target.endpoint, reply, doing)
        return reply

    def _owners(self, reply: Reply) -> Owners:
        """Return the owner record; what it held before is not parsed again."""
        values: dict[str, str] = replies.pairs(reply)
        before, self._raw_owners = self._raw_owners, values
        if values == before:
            return self._known_owners
        grown = before.items() <= values.items()
        new = values.keys() - before.keys() if grown else values.keys()
        parsed = {name: OwnerRecord.parse(name, values[name]) for name in sorted(new)}
        self._known_owners = (self._known_owners if grown else Owners()).with_records(
            [record for record in parsed.values() if record is not None],
            unreadable=[name for name, record in parsed.items() if record is None],
        )
        return self._known_owners

    async def _users(self, found: Mapping[str, Reply], failures: dict[str, Refusal]) -> dict[str, UserRule | None]:
        answered = {user: reply for user, reply in found.items() if not isinstance(reply, ReplyError)}
        for user in found.keys() - answered.keys():
            failures[user] = refusals.refused(self.target.endpoint, found[user], f"ACL GETUSER {user}")
        await self._learn_categories(answered, failures)
        readable = {user: reply for user, reply in answered.items() if user not in failures}
        return {user: replies.user_rule(reply, self._categories) for user, reply in readable.items()}

    async def _learn_categories(self, found: Mapping[str, Reply], failures: dict[str, Refusal]) -> None:
        """Ask what the categories in these replies stand for, once each; they are fixed in a server."""
        spoken_of = {user: replies.categories_in(reply) - self._categories.keys() for user, reply in found.items()}
        unknown = sorted(set[str]().union(*spoken_of.values()))
        for name, reply in zip(unknown, await self._wire.run([("ACL", "CAT", name) for name in unknown]), strict=True):
            if not isinstance(reply, ReplyError):
                self._categories[name] = frozenset(reply)
                continue
            refusal = refusals.refused(self.target.endpoint, reply, f"ACL CAT {name}")
            failures.update({user: refusal for user, names in spoken_of.items() if name in names})

    async def _streams(
        self, asked: Mapping[str, frozenset[str]], groups: Mapping[str, Reply], failures: dict[str, Refusal]
    ) -> dict[str, StreamState]:
        streams: dict[str, StreamState] = {}
        doubtful: list[str] = []
        for key, reply in groups.items():
            if isinstance(reply, ReplyError):
                doubtful.append(key)
                continue
            found = {entry["name"]: entry["last-delivered-id"] for entry in map(replies.pairs, reply)}
            streams[key] = self._state(key, asked[key], found)
        for key, reply in zip(doubtful, await self._wire.run([("TYPE", key) for key in doubtful]), strict=True):
            if isinstance(reply, ReplyError):
                failures[key] = refusals.refused(self.target.endpoint, reply, f"TYPE {key}")
            elif reply == "stream":  # XINFO was refused though it is one
                failures[key] = refusals.refused(self.target.endpoint, groups[key], f"XINFO GROUPS {key}")
            else:
                streams[key] = StreamState(type=reply, remembered=self._checkpoints.get(key, {}))
        await self._ask_last_ids(streams)
        return streams

    def _state(self, key: str, declared: frozenset[str], found: Mapping[str, str]) -> StreamState:
        before = {name: at for name, at in self._checkpoints.get(key, {}).items() if name in declared}
        self._checkpoints[key] = before | {name: at for name, at in found.items() if name in declared}
        return StreamState(type="stream", groups=frozenset(found), remembered=before)

    async def _ask_last_ids(self, streams: dict[str, StreamState]) -> None:
        """Ask where streams end that lost a group: only then it matters, and XINFO STREAM sends whole entries."""
        lost = [
            key for key, state in streams.items() if state.type != NO_KEY and state.remembered.keys() - state.groups
        ]
        for key, reply in zip(lost, await self._wire.run([("XINFO", "STREAM", key) for key in lost]), strict=True):
            if not isinstance(reply, ReplyError):
                state = streams[key]
                streams[key] = StreamState(
                    type=state.type,
                    groups=state.groups,
                    last_id=replies.pairs(reply)["last-generated-id"],
                    remembered=state.remembered,
                )

    # ---- writing ----

    async def _write(self, batches: Sequence[tuple[Action, ...]]) -> list[Result]:
        actions = [action for batch in batches for action in batch]
        changes_users = any(isinstance(action, SetUser | DeleteUser) for action in actions)
        self._unsaved = self._unsaved or changes_users
        results = await carry_out(self._wire, actions)
        for action in actions:
            if isinstance(action, DeleteStream):
                self._checkpoints.pop(action.key, None)
        if not self._unsaved:
            return results
        warning = await self._save_users()
        if warning is None:
            return results
        return [
            Result(action=result.action, failure=result.failure, warning=warning)
            if isinstance(result.action, SetUser | DeleteUser)
            else result
            for result in results
        ]

    async def _save_users(self) -> str | None:
        """Make the server keep its users over a restart, where it has a file for them; return what went wrong."""
        if self._acl_file is False:
            self._unsaved = False
            return None
        (reply,) = await self._wire.run([("ACL", "SAVE")])
        if not isinstance(reply, ReplyError):
            self._unsaved = False
            return None
        if refusals.has_no_acl_file(reply):
            self._acl_file, self._unsaved = False, False
            return None
        return (
            f"{self.target.endpoint} could not save its ACL users ({reply}): a restart forgets them until the next"
            " resync; check its aclfile"
        )

"""RedisAdmin: all that the operator does at one Redis, each call bounded in time, nothing sent twice by itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from streamhold_operator.api.v1alpha1.redisconnection import Topology
from streamhold_operator.domain.acl import UserRule
from streamhold_operator.domain.actions import Action
from streamhold_operator.domain.claims import Owners
from streamhold_operator.domain.connection import Endpoint, ServerFacts
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.domain.topic import StreamState

__all__ = ["AdminTarget", "RedisAdmin", "Result", "Snapshot", "Tls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What TLS needs, in PEM."""

    ca: bytes | None = None
    """None: the system's certificates."""
    cert: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one action."""

    action: Action
    failure: Refusal | None = None
    warning: str | None = None
    """It was done, but a user must hear of something (not kept over a restart, for one)."""


class RedisAdmin:
    """One Redis, logged in as the admin user of a RedisConnection."""

    def __init__(self, target: AdminTarget, *, timeout: float = 3.0, max_connections: int = 4) -> None:
        self.target = target

    async def probe(self) -> ServerFacts:
        """Log in and ask what this server is and what the admin user may do. Writes nothing.

        Returns:
            What `domain.connection.check` accepts.

        Raises:
            Refusal: with a reason of its own for each way in which this can fail.
        """
        raise NotImplementedError

    async def observe(self, streams: Mapping[str, Collection[str]], usernames: Collection[str] = ()) -> Snapshot:
        """Read the owner record and these streams and users in one batch. Writes nothing.

        Args:
            streams: the keys to look at, each with its declared groups, whose checkpoints are remembered.
            usernames: the ACL users to look at.

        Raises:
            Refusal: the server could not be asked.
        """
        raise NotImplementedError

    async def apply(self, actions: Sequence[Action]) -> tuple[Result, ...]:
        """Carry out actions in one batch; no actions, no call.

        Returns:
            One result an action, in order. One that failed stops none of the others.

        Raises:
            Refusal: the server could not be reached; what was done by then is not known, and doing it again is safe.
        """
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close all connections. May be called twice, and while the server is down."""
        raise NotImplementedError

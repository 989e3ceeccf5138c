"""What can be done to a Redis: plain values that the planners return and the adapter carries out.

Each is idempotent: doing it twice, or late, changes nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from streamhold_operator.domain.acl import UserRule
from streamhold_operator.domain.claims import OwnerRecord

__all__ = [
    "Action",
    "CreateGroup",
    "DeleteStream",
    "DeleteStreamFamily",
    "DeleteUser",
    "RegisterClaim",
    "RemoveClaim",
    "SetUser",
]


@dataclass(frozen=True, slots=True)
class RegisterClaim:
    """Write what an object claims into the owner record."""

    record: OwnerRecord


@dataclass(frozen=True, slots=True)
class RemoveClaim:
    """Take a field out of the owner record."""

    field: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Create a consumer group, and the stream where there is none. A group that exists keeps its checkpoint."""

    key: str
    group: str
    start: str
    """The id after which it reads: `0` the beginning, `$` the end."""
    idle_ttl_ms: int = 0
    """Set in the same atomic step (C-11); 0: the stream never expires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream:
    """Delete a stream and its companions. A key of another type is left alone."""

    key: str
    companions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStreamFamily:
    """Delete all streams of a topic family and their companions."""

    prefix: str
    """The key prefix of the connection, as the companions' names need it."""
    key_prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUser:
    """Give an ACL user exactly this rule, in the reset form."""

    username: str
    rule: UserRule


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteUser:
    """Delete an ACL user, if it carries this ownership marker."""

    username: str
    marker: str


Action: TypeAlias = RegisterClaim | RemoveClaim | CreateGroup | DeleteStream | DeleteStreamFamily | SetUser | DeleteUser

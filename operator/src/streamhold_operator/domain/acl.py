"""ACL rules: what a client may do, in the words of Redis, compared with what the server says it may do.

Servers with selectors (Redis 7 and later, Valkey) get one selector a kind of access: its commands on its keys and
nothing across, so a publisher's commands do not reach a consumer's topics. All topics of one kind of access share a
selector because a single command must fit into one: a reader asks for many streams at once. Redis 6.2 has no
selectors; there the rule is flat: every granted command on every granted key.

A user's ownership stands in its rule: a channel pattern that no command makes use of. Comparing ignores order.

Not guaranteed: that a consumer cannot write. Redelivery after a nack is an XADD to the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from streamhold.keys import companion_pattern, companion_patterns, family_pattern, floor_key, glob_escape
from streamhold_operator.api.v1alpha1.coordinationclient import Access
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant

__all__ = ["MARKER_PREFIX", "AclAbilities", "Rights", "UserRule", "client_rule", "owner_marker", "without_covered"]

MARKER_PREFIX = "streamhold:owner:"

_CONNECTION = frozenset(
    {"auth", "client|id", "client|setname", "discard", "exec", "hello", "multi", "ping", "wait"},
)
"""What every connection of the library needs; none of it touches a key."""

_PUBLISH = frozenset({"pexpire", "xadd", "xlen"})
_CONSUME = frozenset(
    {
        *("eval", "evalsha", "exists", "type"),
        *("xack", "xautoclaim", "xclaim", "xpending", "xread", "xreadgroup"),
        *("xgroup|create", "xgroup|createconsumer", "xgroup|delconsumer", "xgroup|destroy"),
        *("xinfo|consumers", "xinfo|groups", "xinfo|stream"),
        *("xlen", "xrange", "xrevrange"),
        *("pexpire", "xadd"),  # nack: the event is published again
    }
)
_MANAGE = frozenset(
    {
        "del",
        "exists",
        "pttl",
        "ttl",
        "type",
        "unlink",
        "xdel",
        "xgroup",
        "xinfo",
        "xlen",
        "xrange",
        "xrevrange",
        "xtrim",
    }
)
_LEASE = frozenset({"del", "eval", "evalsha", "exists", "get", "pexpire", "pttl", "set", "time"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AclAbilities:
    """What the ACL of a server can express, as probed."""

    selectors: bool
    client_setinfo: bool = False
    """Whether the server knows CLIENT SETINFO: an unknown subcommand in a rule is refused."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Commands on keys: the root of a rule or one of its selectors. In canonical form: order means nothing."""

    commands: frozenset[str] = frozenset()
    """Lower case, `container|subcommand` for one subcommand. What is not a plain allowance keeps its sign."""
    keys: frozenset[str] = frozenset()
    """Patterns as in a rule: `~pattern`, `%R~pattern`."""
    channels: frozenset[str] = frozenset()
    """Patterns without the sign."""

    def tokens(self) -> list[str]:
        """Return the words of a rule that grant this, in a fixed order."""
        return [
            *sorted(self.keys),
            *(f"&{channel}" for channel in sorted(self.channels)),
            "-@all",
            *(f"+{command}" for command in sorted(self.commands)),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRule:
    """The whole rule of one ACL user, as wanted or as read."""

    enabled: bool
    passwords: frozenset[str]
    """SHA-256 of each, in hex."""
    root: Rights
    selectors: frozenset[Rights] = frozenset()
    flags: frozenset[str] = frozenset()
    """Anything read that a rule of ours never has: `nopass`, `allkeys`, …"""

    def tokens(self) -> tuple[str, ...]:
        """Return the words for ACL SETUSER, in the reset form."""
        selectors = sorted(f"({' '.join(selector.tokens())})" for selector in self.selectors)
        return (
            "reset",
            "on" if self.enabled else "off",
            *(f"#{digest}" for digest in sorted(self.passwords)),
            "resetchannels",
            *self.root.tokens(),
            *selectors,
        )

    def carries(self, marker: str) -> bool:
        """Whether the user belongs to the object with this marker."""
        return marker in self.root.channels

    @property
    def markers(self) -> tuple[str, ...]:
        """All ownership markers in it: whose it is."""
        return tuple(sorted(channel for channel in self.root.channels if channel.startswith(MARKER_PREFIX)))


def owner_marker(cluster: str, uid: str) -> str:
    """Return the channel pattern that says which object of which cluster a user belongs to."""
    return f"{MARKER_PREFIX}{cluster}/{uid}"


def client_rule(
    *,
    marker: str,
    topics: Sequence[TopicGrant],
    leases: Sequence[LeaseGrant],
    passwords: Iterable[str],
    abilities: AclAbilities,
    database: int = 0,
) -> UserRule:
    """Return the rule of a client: exactly its topics and leases, and nothing else.

    Args:
        marker: from `owner_marker`.
        topics: what it may use, and how.
        leases: the lease families it may use.
        passwords: SHA-256 of each password that shall work, in hex.
        abilities: what the server can express.
        database: of the connection; another than 0 has to be selected.
    """
    channels = frozenset({marker})
    commands = set(_CONNECTION)
    if abilities.client_setinfo:
        commands.add("client|setinfo")
    if database != 0:
        commands.add("select")
    granted = [rights for rights in _granted(topics, leases) if rights.keys]
    if abilities.selectors:
        root, selectors = Rights(frozenset(commands), frozenset(), channels), frozenset(granted)
    else:
        every = commands.union(*(rights.commands for rights in granted))
        keys = frozenset[str]().union(*(rights.keys for rights in granted))
        root, selectors = Rights(without_covered(every), keys, channels), frozenset()
    return UserRule(enabled=True, passwords=frozenset(passwords), root=root, selectors=selectors)


def _granted(topics: Sequence[TopicGrant], leases: Sequence[LeaseGrant]) -> list[Rights]:
    def of(access: Access) -> list[TopicGrant]:
        return [topic for topic in topics if access in topic.access]

    return [
        Rights(_PUBLISH, frozenset(f"~{_main(topic)}" for topic in of(Access.PUBLISH))),
        Rights(
            _CONSUME, frozenset(f"~{pattern}" for topic in of(Access.CONSUME) for pattern in _with_companions(topic))
        ),
        Rights(_MANAGE, frozenset(f"~{pattern}" for topic in of(Access.MANAGE) for pattern in _with_companions(topic))),
        Rights(_LEASE, frozenset(f"~{pattern}" for lease in leases for pattern in _lease_patterns(lease))),
    ]


def _main(topic: TopicGrant) -> str:
    return family_pattern(topic.key) if topic.family else glob_escape(topic.key)


def _with_companions(topic: TopicGrant) -> list[str]:
    if topic.family:
        dead = companion_patterns(topic.prefix, "dead", topic.key)
        return [_main(topic), *dead, *companion_patterns(topic.prefix, "delayed", topic.key)]
    dead_one = companion_pattern(topic.prefix, "dead", topic.key)
    return [_main(topic), dead_one, companion_pattern(topic.prefix, "delayed", topic.key)]


def _lease_patterns(lease: LeaseGrant) -> list[str]:
    fences = companion_patterns(lease.prefix, "fence", lease.key)
    return [family_pattern(lease.key), *fences, glob_escape(floor_key(lease.prefix, lease.keys))]


def without_covered(commands: Iterable[str]) -> frozenset[str]:
    """Drop subcommands whose whole command is granted: servers do the same, and a comparison must see no difference."""
    every = set(commands)
    return frozenset(command for command in every if "|" not in command or command.partition("|")[0] not in every)

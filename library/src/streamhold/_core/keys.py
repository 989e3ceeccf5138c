"""Names of the keys in Redis, shared by the library and the operator (C-1, C-4, C-5).

A stream lives at `<prefix>:<topic>`, a lease at `<prefix>:lease:<key>`: that is the wire contract, and the names are
not escaped. Whatever else belongs to one of these *main* keys is its *companion*, below `<prefix>:streamhold:<kind>:`,
always in the main key's cluster slot, so that one script or transaction may touch both.

Not guaranteed: two different prefixes can make the same key (`a` with the topic `b:c`, `a:b` with the topic `c`). Who
owns a key is the business of the operator's owner record, which compares whole keys.
"""

from __future__ import annotations

import functools
from binascii import crc_hqx
from typing import Literal

from streamhold.errors import ConfigError

__all__ = [
    "OWNERS_KEY",
    "RESERVED_TOPIC_PREFIXES",
    "CompanionKind",
    "check_key_prefix",
    "check_lease_key",
    "check_text",
    "check_topic",
    "companion",
    "companion_pattern",
    "companion_patterns",
    "family_pattern",
    "floor_key",
    "glob_escape",
    "key_slot",
    "lease_key",
    "stream_key",
]

CompanionKind = Literal["dead", "delayed", "fence", "floor"]
"""dead: dead letters of a topic; delayed: its postponed retries; fence: token record of a lease; floor: token floor."""

RESERVED_TOPIC_PREFIXES = ("lease:", "lease-metadata:", "streamhold:")
"""A topic must not start with any of these: its key would be a lease or one of ours (C-5)."""

OWNERS_KEY = "streamhold:owners"
"""The owner record of a database: a hash that operators write, and the one key of ours outside any prefix."""

_SLOTS = 16384
_GLOB = frozenset("*?[]\\")
_MOST_TAG_DIGITS = 6
"""The largest number that `_tag_number` returns is 109757; a property test holds this."""


def check_text(option: str, value: str) -> str:
    """Return a name that Redis and other programs can take unchanged; `option` is what it is called in the error.

    Raises:
        ConfigError: it is empty or not text that UTF-8 can carry, or holds NUL.
    """
    if not isinstance(value, str):
        raise ConfigError(option, value, "must be a string")
    if not value:
        raise ConfigError(option, value, "must not be empty")
    if "\0" in value:
        raise ConfigError(option, value, "must not hold NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(option, value, "must be text that UTF-8 can carry: it holds half a surrogate pair") from None
    return value


def check_key_prefix(prefix: str) -> str:
    """Return a usable key prefix unchanged.

    Glob characters and stray braces are refused because they would widen an ACL pattern or split a slot.

    Raises:
        ConfigError: it is empty, or holds whitespace, NUL, a glob character or anything but one complete `{tag}`.
    """
    check_text("key_prefix", prefix)
    if any(character.isspace() for character in prefix):
        raise ConfigError("key_prefix", prefix, "whitespace is not allowed")
    if not _GLOB.isdisjoint(prefix):
        raise ConfigError("key_prefix", prefix, "the glob characters * ? [ ] \\ are not allowed")
    braces = [character for character in prefix if character in "{}"]
    if braces and (braces != ["{", "}"] or not _has_tag(prefix)):
        raise ConfigError("key_prefix", prefix, "braces are allowed only as one complete, non-empty {tag}")
    return prefix


def check_topic(topic: str) -> str:
    """Return a usable topic name unchanged.

    Raises:
        ConfigError: it is empty, not text that UTF-8 can carry, holds NUL, or starts with a reserved name.
    """
    check_text("topic", topic)
    for reserved in RESERVED_TOPIC_PREFIXES:
        if topic.startswith(reserved):
            raise ConfigError(
                "topic", topic, f"a topic must not start with the reserved {reserved!r}; choose another name"
            )
    return topic


def check_lease_key(key: str) -> str:
    """Return a usable lease key unchanged.

    Raises:
        ConfigError: it is empty or not text that UTF-8 can carry, or holds NUL.
    """
    return check_text("key", key)


def stream_key(prefix: str, topic: str) -> str:
    """Return the Redis key of a topic's stream.

    Raises:
        ConfigError: the topic is not usable, or its key would be the operators' owner record.
    """
    key = f"{prefix}:{check_topic(topic)}"
    if key == OWNERS_KEY:
        raise ConfigError(
            "topic", topic, f"with the key prefix {prefix!r} its key would be the owner record {OWNERS_KEY!r}"
        )
    return key


def lease_key(prefix: str, key: str) -> str:
    """Return the Redis key of a lease.

    Raises:
        ConfigError: the lease key is not usable.
    """
    return f"{prefix}:lease:{check_lease_key(key)}"


def floor_key(prefix: str, family: str | None = None) -> str:
    """Return the key that keeps the largest fencing token given out, per lease family or for the whole prefix.

    One key for many leases, so it is in no particular slot: on a Cluster each slot will need its own.
    """
    return f"{prefix}:streamhold:floor" if family is None else f"{prefix}:streamhold:floor:{family}"


def companion(prefix: str, kind: CompanionKind, key: str) -> str:
    """Return the companion of a main key: a key below `<prefix>:streamhold:<kind>:` in the same cluster slot.

    Args:
        prefix: the key prefix that `key` starts with.
        kind: what the companion is for.
        key: the main key: a stream or a lease, whole.
    """
    base = _base(prefix, kind)
    if _has_tag(key):
        return base + key
    if "}" not in key:
        return f"{base}{{{key}}}"
    # A closing brace and no tag: the key cannot be made a tag itself, so a number of the same slot stands in.
    return f"{base}{{{_tag_number(key_slot(key))}}}{key}"


def companion_pattern(prefix: str, kind: CompanionKind, key: str) -> str:
    """Return the ACL pattern that matches the companion of one main key and nothing else."""
    return glob_escape(companion(prefix, kind, key))


def companion_patterns(prefix: str, kind: CompanionKind, key_prefix: str) -> list[str]:
    """Return ACL patterns that together match exactly the companions of all main keys with a given beginning.

    Args:
        prefix: the key prefix.
        kind: what the companions are for.
        key_prefix: what the main keys start with: `<prefix>:<topic family>` or `<prefix>:lease:<lease family>`.
    """
    base, start = glob_escape(_base(prefix, kind)), glob_escape(key_prefix)
    patterns = [f"{base}{start}*"]
    if _has_tag(key_prefix):
        return patterns
    if "}" not in key_prefix:
        patterns.append(f"{base}{{{start}*")
    # One pattern a length: a `*` in the tag would let in companions of keys outside the family.
    patterns += [f"{base}{{{'[0-9]' * digits}}}{start}*" for digits in range(1, _MOST_TAG_DIGITS + 1)]
    return patterns


def family_pattern(key_prefix: str) -> str:
    """Return the ACL pattern that matches every main key with a given beginning."""
    return f"{glob_escape(key_prefix)}*"


def glob_escape(text: str) -> str:
    """Return a glob pattern that matches this text only."""
    return "".join(f"\\{character}" if character in _GLOB else character for character in text)


def key_slot(key: str) -> int:
    """Return the cluster slot of a key."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % _SLOTS


def _base(prefix: str, kind: CompanionKind) -> str:
    return f"{prefix}:streamhold:{kind}:"


def _has_tag(key: str) -> bool:
    """Whether the key names its slot itself: a first `{`, a `}` after it, something in between."""
    start = key.find("{")
    return start >= 0 and key.find("}", start + 1) > start + 1


def _tag_number(slot: int) -> int:
    """Return the smallest number whose decimal digits have this slot."""
    return _tag_numbers()[slot]


@functools.cache
def _tag_numbers() -> dict[int, int]:
    """One number for each slot, found in about 50 ms at the first use."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < _SLOTS:
        found.setdefault(crc_hqx(b"%d" % number, 0) % _SLOTS, number)
        number += 1
    return found

"""Names of the keys in Redis: for tools and for the operator, which grants rights on exactly these keys."""

from streamhold._core.keys import (
    OWNERS_KEY,
    RESERVED_TOPIC_PREFIXES,
    CompanionKind,
    check_key_prefix,
    check_lease_key,
    check_topic,
    companion,
    companion_pattern,
    companion_patterns,
    family_pattern,
    floor_key,
    glob_escape,
    key_slot,
    lease_key,
    stream_key,
)

__all__ = [
    "OWNERS_KEY",
    "RESERVED_TOPIC_PREFIXES",
    "CompanionKind",
    "check_key_prefix",
    "check_lease_key",
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

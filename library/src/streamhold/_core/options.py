"""The options of a pub/sub (contract B), checked once: a bad value is an error where it is given, not at first use.

Two layers: `PubSubOptions` is what a caller gives a hub; `TopicSettings` is what holds for one topic, made from the
options or from the binding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from streamhold._core.keys import check_key_prefix
from streamhold.errors import ConfigError
from streamhold.types import StartFrom

__all__ = ["DEFAULT_URL", "PubSubOptions", "TopicSettings", "check_group", "check_max_in_flight", "check_start_from"]

DEFAULT_URL = "redis://localhost:6379"
_LONGEST_S = 100 * 365 * 24 * 3600
_LARGEST_MS = 2**53
"""Redis refuses expiries near 2**63; JavaScript, on the other side, counts exactly up to here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """How one topic is written and read. Durations in milliseconds; 0 switches a feature off."""

    max_length: int = 10_000
    """Entries kept, approximately; 0 keeps all."""
    idle_ttl_ms: int = 0
    """The stream expires this long after its last write."""
    reclaim_interval_ms: int = 30_000
    """How often to look for what dead consumers left."""
    reclaim_idle_ms: int = 60_000
    """How long an entry must have been left alone to be taken over."""
    max_attempts: int = 5
    """Deliveries of one event to one group before it is dropped; 0 is no cap."""
    in_flight_timeout_ms: int = 0
    """A handler that takes longer is nacked on its behalf."""
    dead_letters: bool = False
    """Whether what would be dropped is kept in the topic's dead letters."""
    dead_letter_max_length: int = 10_000
    """Dead letters kept, approximately; 0 keeps all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PubSubOptions:
    """The options of `RedisStreamsPubSub`, under its argument names."""

    key_prefix: str = "mastra:topic"
    block_ms: int = 1_000
    redis_options: Mapping[str, Any] | None = None
    max_stream_length: int = 10_000
    stream_idle_ttl_ms: int = 0
    reclaim_interval_ms: int = 30_000
    reclaim_idle_ms: int = 60_000
    max_delivery_attempts: float = 5
    in_flight_timeout_ms: int = 0
    dead_letters: bool = False
    dead_letter_max_length: int = 10_000
    publish_timeout: float = 10.0
    close_timeout: float = 10.0
    settings: TopicSettings = field(init=False)
    """The same as settings of a topic."""

    def __post_init__(self) -> None:
        check_key_prefix(self.key_prefix)
        _whole("block_ms", self.block_ms, least=1, why="0 would block for ever and never wake")
        _whole("max_stream_length", self.max_stream_length, zero="keeps all entries")
        _whole("stream_idle_ttl_ms", self.stream_idle_ttl_ms, zero="means no expiry")
        _whole("reclaim_interval_ms", self.reclaim_interval_ms, zero="switches reclaiming off")
        _whole("reclaim_idle_ms", self.reclaim_idle_ms, least=1, why="0 would take entries from running handlers")
        _whole("in_flight_timeout_ms", self.in_flight_timeout_ms, zero="means no timeout")
        _whole("dead_letter_max_length", self.dead_letter_max_length, zero="keeps all dead letters")
        _attempts("max_delivery_attempts", self.max_delivery_attempts)
        _seconds("publish_timeout", self.publish_timeout)
        _seconds("close_timeout", self.close_timeout)
        if not isinstance(self.dead_letters, bool):
            raise ConfigError("dead_letters", self.dead_letters, "must be True or False")
        if self.redis_options is not None and not isinstance(self.redis_options, Mapping):
            raise ConfigError("redis_options", type(self.redis_options), "must be a mapping of connection options")
        settings = TopicSettings(
            max_length=self.max_stream_length,
            idle_ttl_ms=self.stream_idle_ttl_ms,
            reclaim_interval_ms=self.reclaim_interval_ms,
            reclaim_idle_ms=self.reclaim_idle_ms,
            max_attempts=0 if math.isinf(self.max_delivery_attempts) else int(self.max_delivery_attempts),
            in_flight_timeout_ms=self.in_flight_timeout_ms,
            dead_letters=self.dead_letters,
            dead_letter_max_length=self.dead_letter_max_length,
        )
        object.__setattr__(self, "settings", settings)

    @classmethod
    def names(cls) -> frozenset[str]:
        """The options that a caller may give."""
        return frozenset(option.name for option in fields(cls) if option.init)


def check_group(group: object) -> str | None:
    """Return a usable group name, or None for none.

    Raises:
        ConfigError: it is empty, not text that UTF-8 can carry, or named like a private group.
    """
    if group is None:
        return None
    if not isinstance(group, str) or not group:
        raise ConfigError("group", group, "must be a non-empty string, or None for every event")
    try:
        group.encode()
    except UnicodeEncodeError:
        raise ConfigError("group", group, "must be text that UTF-8 can carry") from None
    if group.startswith("__fanout-"):
        raise ConfigError("group", group, "names that start with '__fanout-' are those of private groups")
    return group


def check_start_from(start_from: object) -> StartFrom:
    """Return where a new group begins.

    Raises:
        ConfigError: it is neither `earliest` nor `latest`.
    """
    if start_from == "earliest" or start_from == "latest":
        return start_from
    raise ConfigError("start_from", start_from, "must be 'earliest' or 'latest'")


def check_max_in_flight(limit: object) -> int | None:
    """Return a usable concurrency limit, None for none.

    Raises:
        ConfigError: it is not a positive integer.
    """
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError("max_in_flight", limit, "must be an integer of at least 1, or None for no limit")
    return limit


def _whole(option: str, value: object, *, least: int = 0, zero: str = "", why: str = "") -> None:
    if type(value) is not int or not least <= value <= _LARGEST_MS:
        explained = f"; {why}" if why else f"; 0 {zero}"
        raise ConfigError(option, value, f"must be an integer from {least} to 2**53{explained}")


def _attempts(option: str, value: object) -> None:
    if value == math.inf or (type(value) is int and 0 <= value <= _LARGEST_MS):
        return
    raise ConfigError(option, value, "must be a non-negative integer, or math.inf; 0 and math.inf mean no cap")


def _seconds(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_S:
        raise ConfigError(option, value, f"must be a number of seconds above 0, at most {_LONGEST_S}")

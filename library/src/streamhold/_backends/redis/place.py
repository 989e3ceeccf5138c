"""Where a topic is in Redis and how it is used: resolved once from the options or the binding."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamhold._backends.redis.client import Prepared
from streamhold._core.keys import companion, stream_key
from streamhold._core.options import TopicSettings

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """One topic."""

    topic: str
    """As code calls it."""
    key: str
    """Its stream."""
    settings: TopicSettings
    dead_key: str
    """The stream of its dead letters."""
    write: Prepared = field(init=False)
    """The command or transaction that publishes; the event's JSON completes it (C-11)."""

    def __post_init__(self) -> None:
        limit = self.settings.max_length
        trim = (b"MAXLEN", b"~", b"%d" % limit) if limit else ()
        ttl = self.settings.idle_ttl_ms
        expire = ((b"PEXPIRE", self.key, ttl),) if ttl else ()
        object.__setattr__(self, "write", Prepared((b"XADD", self.key.encode(), *trim, b"*", b"event"), *expire))

    @classmethod
    def of(cls, topic: str, prefix: str, name: str, settings: TopicSettings) -> Place:
        """The place of a topic.

        Args:
            topic: as code calls it.
            prefix: the key prefix.
            name: the topic in Redis.
            settings: how it is used.

        Raises:
            ConfigError: the name is not usable.
        """
        key = stream_key(prefix, name)
        return cls(topic, key, settings, companion(prefix, "dead", key))

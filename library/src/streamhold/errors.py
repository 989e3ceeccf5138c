"""Everything that Streamhold raises, in one tree.

    StreamholdError
    ├── ConfigError                  an option, argument or name is not usable (also a ValueError)
    │   ├── BindingError             the binding folder is missing, incomplete or not understood
    │   ├── TopicNotDeclared         the binding grants no topic of this name
    │   ├── LeaseNotDeclared         the binding grants no lease family for this key
    │   └── AccessNotGranted         the binding grants the topic, but not this access
    ├── HubClosed                    a call after close()
    ├── BackendError                 the server answered with an error
    │   ├── BackendUnavailable       no answer within the deadline; certainly not executed
    │   ├── OutcomeUnknown           sent, but no reply: it may or may not have been executed
    │   ├── AuthenticationFailed     user name or password refused
    │   ├── PermissionRefused        the user's ACL does not allow it
    │   ├── WrongKeyType             the key holds another type
    │   └── ServerFull               the server refuses writes for lack of memory
    ├── PublishError                 an event was not published
    │   └── PublishOutcomeUnknown    it may or may not have been published
    └── LeaseError                   a lease could not be taken, kept or used
        ├── LeaseHeld                another owner holds it
        ├── LeaseLost                it was held and is not any more
        ├── LeaseUnavailable         the server could not be asked in time
        └── FenceRejected            a newer holder has already been seen

A driver's own exceptions never leak: they are the `__cause__` of one of these.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

__all__ = [
    "AccessNotGranted",
    "AuthenticationFailed",
    "BackendError",
    "BackendUnavailable",
    "BindingError",
    "ConfigError",
    "FenceRejected",
    "HubClosed",
    "LeaseError",
    "LeaseHeld",
    "LeaseLost",
    "LeaseNotDeclared",
    "LeaseUnavailable",
    "OutcomeUnknown",
    "PermissionRefused",
    "PublishError",
    "PublishOutcomeUnknown",
    "ServerFull",
    "StreamholdError",
    "TopicNotDeclared",
    "WrongKeyType",
]


class _Short(reprlib.Repr):
    """Shows any value in a line: a caller's mistake may be huge, nested without end, or fail to show itself."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = 200

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # more digits than Python is willing to write
            return f"an integer of {x.bit_length()} bits"


_short = _Short().repr


class StreamholdError(Exception):
    """Base of all errors of this package."""

    retryable: bool = False
    """Whether the same call may be made again without harm."""


class ConfigError(StreamholdError, ValueError):
    """An option, argument or name is not usable; nothing was sent."""

    option: str
    """The option or argument, as the caller spells it."""
    value: object
    """What it was given."""

    def __init__(self, option: str, value: object, allowed: str) -> None:
        super().__init__(f"{option}={_short(value)}: {allowed}")
        self.option = option
        self.value = value


class BindingError(ConfigError):
    """The binding folder is missing, incomplete or not understood."""

    def __init__(self, folder: object, problem: str) -> None:
        StreamholdError.__init__(self, f"binding {folder}: {problem}")
        self.option = "binding"
        self.value = folder


def _names(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(repr(name) for name in listed) if listed else "none"


class TopicNotDeclared(ConfigError):
    """The binding grants no topic of this name."""

    def __init__(self, topic: str, declared: Iterable[str], client: str) -> None:
        StreamholdError.__init__(
            self,
            f"topic {_short(topic)} is not granted to client {client} (granted: {_names(declared)}); "
            "add it to spec.topics of the CoordinationClient",
        )
        self.option = "topic"
        self.value = topic


class LeaseNotDeclared(ConfigError):
    """The binding grants no lease family for this key."""

    def __init__(self, key: str, declared: Iterable[str], client: str) -> None:
        StreamholdError.__init__(
            self,
            f"lease key {_short(key)} is in no family granted to client {client} (granted: {_names(declared)}); "
            "add its LeasePolicy to spec.leases of the CoordinationClient",
        )
        self.option = "key"
        self.value = key


class AccessNotGranted(ConfigError):
    """The binding grants the topic, but not this access."""

    access: str
    """What was needed: Publish, Consume or Manage."""

    def __init__(self, topic: str, access: str, granted: Iterable[str], client: str) -> None:
        StreamholdError.__init__(
            self,
            f"topic {_short(topic)}: client {client} lacks the access {access} (granted: {_names(granted)}); "
            "add it to spec.topics[].access of the CoordinationClient",
        )
        self.option = "topic"
        self.value = topic
        self.access = access


class HubClosed(StreamholdError):
    """A call on a hub that was closed."""

    def __init__(self, call: str) -> None:
        super().__init__(f"{call}: the hub is closed")


class BackendError(StreamholdError):
    """The server answered with an error."""

    code: str
    """First word of the server's error reply, e.g. `NOPERM`; empty when there was no reply."""
    server: str
    """host:port/database, without credentials."""

    def __init__(self, message: str, *, server: str, code: str = "") -> None:
        super().__init__(f"{message} [{server}]")
        self.server = server
        self.code = code


class BackendUnavailable(BackendError):
    """The server did not answer within the deadline, and the command was certainly not executed."""

    retryable = True


class OutcomeUnknown(BackendError):
    """The command was sent and its reply lost: it may or may not have been executed."""


class AuthenticationFailed(BackendError):
    """The server refused the user name or password."""


class PermissionRefused(BackendError):
    """The user's ACL does not allow the command or the key."""


class WrongKeyType(BackendError):
    """The key exists and holds another type."""


class ServerFull(BackendError):
    """The server refuses writes for lack of memory (`OOM`)."""


class PublishError(StreamholdError):
    """An event was not published; the cause says why, and whether the same call may be made again."""

    topic: str

    def __init__(self, topic: str, problem: str, *, retryable: bool = False) -> None:
        super().__init__(f"publish to {_short(topic)}: {problem}")
        self.topic = topic
        self.retryable = retryable


class PublishOutcomeUnknown(PublishError):
    """The event may or may not have been published: the reply was lost.

    Publish again only if a duplicate does no harm.
    """


class LeaseError(StreamholdError):
    """A lease could not be taken, kept or used."""

    key: str

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"lease {key!r}: {problem}")
        self.key = key


class LeaseHeld(LeaseError):
    """Another owner holds the lease."""

    retryable = True
    holder: str | None
    """Who holds it, as far as known."""

    def __init__(self, key: str, holder: str | None) -> None:
        super().__init__(key, f"held by {holder!r}")
        self.holder = holder


class LeaseLost(LeaseError):
    """The lease was held and is not any more."""


class LeaseUnavailable(LeaseError):
    """The server could not be asked in time."""

    retryable = True


class FenceRejected(LeaseError):
    """A newer holder has been seen: this token is too old."""

    token: int
    seen: int

    def __init__(self, key: str, token: int, seen: int) -> None:
        super().__init__(key, f"token {token} is older than {seen}, which was seen already")
        self.token = token
        self.seen = seen

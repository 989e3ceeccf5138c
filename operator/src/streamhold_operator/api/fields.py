"""Field types that several kinds share: names, durations, label maps, and the rules over their text.

Each rule is CEL with a sentence that says what is allowed, never a bare `pattern`, whose message would be a regular
expression. The expressions are RE2 (the API server's); `\\p{Z}` and `\\p{C}` are separators and control characters.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streamhold_operator.api import duration
from streamhold_operator.api.markers import Cel

RESERVED_TOPICS = ("lease:", "lease-metadata:", "streamhold:")
"""Beginnings of topic names that would collide with keys of ours or of other clients of the same prefix."""

_LEGAL = r"[^\s\p{Z}\p{C}*?\[\]\\{}]"
_LABEL_NAME = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_SUBDOMAIN = f"{_DNS_LABEL}([.]{_DNS_LABEL})*"
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = "[A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?[.]?"
_ENDPOINT = rf"^({_HOST}|\[[0-9a-fA-F:.]+\]):{_PORT}$"
_RESERVED_TEXT = ", ".join(RESERVED_TOPICS)
_RESERVED_LIST = ", ".join(f"'{name}'" for name in RESERVED_TOPICS)


def matches(pattern: str, value: str = "self") -> str:
    """The CEL expression that says whether `value` matches the pattern."""
    return f"{value}.matches(r'{pattern}')"


def is_duration(value: str) -> str:
    """The CEL expression that says whether `value` is a duration of ours."""
    return f"{value} != '' && {matches(duration.PATTERN, value)}"


def duration_rule(low: str, high: str, *, zero: str | None = None) -> Cel:
    """A rule for a duration between two others, or `0s` where that means something (`zero` says what)."""
    within = f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"
    text = f"must be a duration from {low} to {high}"
    if zero is not None:
        within = f"(duration(self) == duration('0s') || {within})"
        text = f"must be 0s ({zero}) or a duration from {low} to {high}"
    return Cel(
        f"{is_duration('self')} && {within}", f"{text}, written with h, m, s and ms, such as 250ms, 30s or 1h30m"
    )


_duration_field = Field(max_length=duration.MAX_LENGTH)

IdleTtl = Annotated[str, _duration_field, duration_rule("1s", "87600h", zero="never")]
ReclaimInterval = Annotated[str, _duration_field, duration_rule("100ms", "24h", zero="off")]
ReclaimMinIdle = Annotated[str, _duration_field, duration_rule("100ms", "24h")]
InFlightTimeout = Annotated[str, _duration_field, duration_rule("100ms", "24h", zero="off")]
LeaseTtl = Annotated[str, _duration_field, duration_rule("1s", "24h")]
RenewInterval = Annotated[str, _duration_field, duration_rule("100ms", "12h")]
LockDelay = Annotated[str, _duration_field, duration_rule("1ms", "1h", zero="no delay")]
MaxHold = Annotated[str, _duration_field, duration_rule("1s", "87600h", zero="unlimited")]
RotationEvery = Annotated[str, _duration_field, duration_rule("10s", "87600h")]
RotationOverlap = Annotated[str, _duration_field, duration_rule("1s", "8760h")]
DeletionWait = Annotated[str, _duration_field, duration_rule("1s", "24h", zero="at once")]

ObjectName = Annotated[
    str,
    Field(max_length=253),
    Cel(
        matches(f"^{_DNS_SUBDOMAIN}$"),
        "must be an object's name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
    ),
]
NamespaceName = Annotated[
    str,
    Field(max_length=63),
    Cel(
        matches(f"^{_DNS_LABEL}$"),
        "must be a namespace's name: lower-case letters, digits and '-', with a letter or digit at both ends",
    ),
]
SecretKey = Annotated[
    str,
    Field(max_length=253),
    Cel(matches("^[-._a-zA-Z0-9]+$"), "must be the key of an entry in a Secret: letters, digits, '-', '_' and '.'"),
]
Endpoint = Annotated[
    str,
    Field(max_length=262),
    Cel(
        f"{matches(_ENDPOINT)} && (!self.startsWith('[') || isIP(self.substring(1, self.lastIndexOf(']'))))",
        "must be host:port, port 1 to 65535, such as redis.example.com:6379, 10.0.0.7:6379 or [2001:db8::7]:6379",
    ),
]
KeyPrefix = Annotated[
    str,
    Field(max_length=128),
    Cel(
        matches(rf"^({_LEGAL}|\{{namespace\}})+$"),
        "must have no whitespace, control characters, glob characters (* ? [ ] \\) or braces other than {namespace}",
    ),
    Cel("self != 'streamhold'", "must not be exactly 'streamhold', whose keys the operator keeps its own records in"),
]
TopicName = Annotated[
    str,
    Field(max_length=253),
    Cel(
        matches(f"^{_LEGAL}+$"),
        "must have no whitespace, control characters, glob characters (* ? [ ] \\) or braces",
    ),
    Cel(
        f"![{_RESERVED_LIST}].exists(reserved, self.startsWith(reserved))",
        f"must not start with a reserved name ({_RESERVED_TEXT})",
    ),
]
TopicPrefix = Annotated[
    str,
    Field(max_length=253),
    Cel(
        matches(f"^{_LEGAL}+$"),
        "must have no whitespace, control characters, glob characters (* ? [ ] \\) or braces",
    ),
    Cel(
        f"![{_RESERVED_LIST}].exists(reserved, self.startsWith(reserved) || reserved.startsWith(self))",
        f"must neither start with nor be the beginning of a reserved name ({_RESERVED_TEXT}): it would cover its keys",
    ),
]
LeaseKeys = Annotated[
    str,
    Field(max_length=254),
    Cel(
        matches(f"^{_LEGAL}+$"),
        "must have no whitespace, control characters, glob characters (* ? [ ] \\) or braces",
    ),
]
GroupName = Annotated[
    str,
    Field(max_length=128),
    Cel(matches(r"^[^\s\p{Z}\p{C}]+$"), "must have no whitespace or control characters"),
    Cel("!self.startsWith('__fanout-')", "must not start with '__fanout-', which names private groups of subscribers"),
]
AclUsername = Annotated[
    str,
    Field(max_length=256),
    Cel(
        matches(r"""^[^\s\p{Z}\p{C}"\\]+$""") + """ && !self.contains("'")""",
        "must have no whitespace, control characters, quotes or backslashes",
    ),
    Cel("self != 'default'", "must not be 'default', which is the user of connections that do not log in"),
]
ServerName = Annotated[
    str,
    Field(max_length=253),
    Cel(
        f"{matches(f'^{_HOST}$')} || isIP(self)",
        "must be the host name or IP address that the server's certificate names",
    ),
]
MasterName = Annotated[
    str,
    Field(max_length=128),
    Cel(matches("^[-._a-zA-Z0-9]+$"), "must be the name of a master in Sentinel: letters, digits, '-', '_' and '.'"),
]
QualifiedName = Annotated[
    str,
    Field(max_length=317),
    Cel(
        matches(f"^({_DNS_SUBDOMAIN}/)?{_LABEL_NAME}$"),
        "must be a label key: an optional DNS prefix and '/', then up to 63 letters, digits, '-', '_' and '.'",
    ),
]
LabelValue = Annotated[
    str,
    Field(max_length=63),
    Cel(
        matches(f"^({_LABEL_NAME})?$"),
        "must be a label value: letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    ),
]
LABEL_KEYS = Cel(
    f"self.all(key, {matches(f'^({_DNS_SUBDOMAIN}/)?{_LABEL_NAME}$', 'key')} && key.size() <= 317)",
    "keys must be an optional DNS prefix and '/', then up to 63 letters, digits, '-', '_' and '.'",
)
UNRESERVED_KEYS = Cel(
    "self.all(key, key != 'app.kubernetes.io/managed-by' && !key.startsWith('streamhold.dev/'))",
    "app.kubernetes.io/managed-by and keys that start with streamhold.dev/ are set by the operator: choose other keys",
)

"""The event as JSON: what goes over the wire (C-2, C-3) and what we accept from it.

msgspec does the work; the standard library's `json` takes over where msgspec refuses what JSON allows (a lone
surrogate, a number beyond a double), with the same result otherwise. Only what JSON itself has can be published: a
date, a set or bytes would come back as something else, so they are refused, with the path to the culprit.

Not guaranteed: the spelling of a number. 1.0 stays 1.0 here and becomes 1 on the TypeScript side, which also rounds
integers beyond 2**53.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import msgspec

from streamhold.errors import ConfigError
from streamhold.types import Event

__all__ = ["attempt_of", "decode", "encode", "envelope", "republished"]

_SCALARS = frozenset((str, int, float, bool, type(None)))
_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_DEEPEST = 500
"""Objects and arrays inside each other; every JSON reader has such a limit, and ours must not be the smallest."""


def envelope(event: Mapping[str, Any], event_id: str, created_at: str) -> Event:
    """Make the event to publish: the caller's members in their order, `id` and `createdAt` set or overwritten.

    Raises:
        ConfigError: it is no mapping, or its `deliveryAttempt` is not a non-negative integer.
    """
    if not isinstance(event, Mapping):
        raise ConfigError("event", event, "must be a mapping such as {'type': …, 'data': …, 'runId': …}")
    made = dict(event)
    made["id"] = event_id
    made["createdAt"] = created_at
    attempt = made.get("deliveryAttempt")
    if attempt is None:
        made["deliveryAttempt"] = 1
    elif type(attempt) is not int or attempt < 0:
        raise ConfigError("event.deliveryAttempt", attempt, "must be a non-negative integer; leave it out for 1")
    return made


def encode(event: Event) -> bytes:
    """Write an event as JSON: UTF-8, no spaces, non-ASCII as it is, NaN and infinities as null.

    Raises:
        ConfigError: a value in it is nothing that JSON can express; the message names where it is.
    """
    if not _plain(event, 0):
        _refuse(event)
    try:
        return _ENCODER.encode(event)
    except (ValueError, OverflowError, msgspec.MsgspecError):
        pass  # not a fault yet: it may be something that JSON allows
    try:
        return _encode_slowly(event)
    except ValueError as error:  # an integer of thousands of digits
        raise ConfigError("event", type(event), f"{error}; nothing was sent") from error


def decode(raw: bytes) -> Event | None:
    """Read an event; None when it is not one JSON object."""
    try:
        event = _DECODER.decode(raw)
    except RecursionError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        event = _decode_slowly(raw)
    return event if isinstance(event, dict) else None


def attempt_of(event: Event) -> int:
    """Which delivery this is, counted from 1, as the event itself says it; 1 when it does not say."""
    value = event.get("deliveryAttempt")
    if type(value) is int:
        return value
    if isinstance(value, float | str):
        try:
            return int(float(value))
        except (ValueError, OverflowError):
            return 1
    return 1


def republished(raw: bytes, attempt: int) -> bytes:
    """The same event with another `deliveryAttempt`: every other member exactly as it was read.

    Args:
        raw: JSON that `decode` accepts.
        attempt: the attempt to write.
    """
    try:
        members = _RAW_MEMBERS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        event = _decode_slowly(raw)
        event["deliveryAttempt"] = attempt
        return _encode_slowly(event, infinities=True)
    members["deliveryAttempt"] = msgspec.Raw(b"%d" % attempt)
    return _ENCODER.encode(members)


# ---- what JSON has ----


def _plain(value: Any, depth: int) -> bool:
    """Whether a value that is no scalar is made of what JSON has. Exact types: the hot path of every publish."""
    if depth > _DEEPEST:
        return False
    kind = type(value)
    if kind is dict:
        for key, member in value.items():
            if type(key) is not str or (type(member) not in _SCALARS and not _plain(member, depth + 1)):
                return False
        return True
    if kind is list or kind is tuple:
        for member in value:  # noqa: SIM110 (a generator expression takes twice as long)
            if type(member) not in _SCALARS and not _plain(member, depth + 1):
                return False
        return True
    return False


def _refuse(event: Event) -> NoReturn:
    """Say where the first value is that JSON cannot express."""
    path, value, reason = _culprit("event", event, 0) or ("event", event, "JSON cannot express this")
    shown = value if not isinstance(value, dict | list | tuple) else type(value)
    raise ConfigError(path if len(path) <= 200 else f"{path[:200]}…", shown, f"{reason}; nothing was sent")


def _culprit(path: str, value: object, depth: int) -> tuple[str, object, str] | None:
    if type(value) in _SCALARS:
        return None
    if depth > _DEEPEST:
        return path[:60] + "…", value, f"more than {_DEEPEST} levels deep, or a cycle"
    members: list[tuple[str, object]]
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                return path, key, f"member names must be plain strings, not {type(key).__name__}"
        members = [(f"{path}.{key}", member) for key, member in value.items()]
    elif type(value) in (list, tuple):
        members = [(f"{path}[{at}]", member) for at, member in enumerate(cast("list[object]", value))]
    else:
        return path, value, f"{type(value).__name__} is not a JSON type (dict, list, str, int, float, bool, None)"
    for where, member in members:
        if found := _culprit(where, member, depth + 1):
            return found
    return None


# ---- where msgspec refuses what JSON allows ----


def _encode_slowly(event: Event, *, infinities: bool = False) -> bytes:
    text = json.dumps(_without_nan(event, infinities), ensure_ascii=False, separators=(",", ":"), allow_nan=infinities)
    if infinities:
        # A number such as 1e999 was read as infinity: written so that it is read as one again, not as a bare word.
        text = _outside_strings(text)
    text = _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode()


_STRING_OR_INFINITY = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity', re.DOTALL)


def _outside_strings(text: str) -> str:
    return _STRING_OR_INFINITY.sub(
        lambda found: found[0] if found[0].startswith('"') else found[0].replace("Infinity", "1e999"), text
    )


def _without_nan(value: Any, infinities: bool) -> Any:
    if type(value) is float:
        return value if math.isfinite(value) or (infinities and not math.isnan(value)) else None
    if type(value) is dict:
        return {key: _without_nan(member, infinities) for key, member in value.items()}
    if type(value) in (list, tuple):
        return [_without_nan(member, infinities) for member in value]
    return value


def _decode_slowly(raw: bytes) -> Any:
    try:
        # From bytes, `json` would guess UTF-16 and accept a byte order mark: JSON between systems is UTF-8.
        return json.loads(raw.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

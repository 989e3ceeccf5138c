"""Which password a client has, which ones still work, and when that changes next. Pure.

Generated once and kept in the binding Secret; replaced by the imported one (`passwordSecretRef`), or by a new one when
its rotation is due. The one before keeps working for the overlap, so that pods that have not seen the new one are not
cut off. What is needed for that stands in annotations of the binding Secret: when the password was set, and the digest
of the one before.
"""

from __future__ import annotations

import base64
import datetime
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from streamhold_operator.api.conditions import timestamp
from streamhold_operator.domain.client import password_digest

SET_AT = "streamhold.dev/password-set-at"
PREVIOUS = "streamhold.dev/previous-password-sha256"
IMPORT_OVERLAP = 300.0
"""Seconds for which the password before an imported one keeps working."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """When to make a new password, in seconds."""

    every: float
    overlap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Password:
    """The password to hand out."""

    text: str
    accepted: tuple[str, ...]
    """Digests of all passwords that work."""
    annotations: Mapping[str, str]
    """For the binding Secret."""
    next_change: float | None
    """Seconds until something of this changes by itself."""


def generate() -> str:
    """Return a new password."""
    return secrets.token_urlsafe(32)


def choose(
    existing: Mapping[str, Any] | None,
    *,
    username: str,
    imported: str | None,
    rotation: Rotation | None,
    now: datetime.datetime,
    new: Callable[[], str] = generate,
) -> Password:
    """Return the password to hand out now.

    Args:
        existing: the binding Secret as it is.
        username: the client's user.
        imported: the text of `passwordSecretRef`.
        rotation: when to make new ones.
        now: the time.
        new: makes a password.
    """
    old = kept_password(existing, username)
    annotations = (existing or {}).get("metadata", {}).get("annotations") or {}
    previous = annotations.get(PREVIOUS, "")
    set_at = (
        _time(annotations.get(SET_AT)) or _time((existing or {}).get("metadata", {}).get("creationTimestamp")) or now
    )
    text = imported if imported is not None else old or new()
    if rotation is not None and imported is None and old and (now - set_at).total_seconds() >= rotation.every:
        text = new()
    if text != old:
        previous, set_at = password_digest(old) if old else "", now
    overlap = rotation.overlap if rotation is not None else IMPORT_OVERLAP
    age = (now - set_at).total_seconds()
    still_valid = bool(previous) and age < overlap
    changes = [overlap - age] if still_valid else []
    if rotation is not None and imported is None:
        changes.append(rotation.every - age)
    return Password(
        text=text,
        accepted=(password_digest(text), *((previous,) if still_valid else ())),
        annotations={SET_AT: timestamp(set_at), **({PREVIOUS: previous} if previous else {})},
        next_change=max(0.0, min(changes)) if changes else None,
    )


def kept_password(secret: Mapping[str, Any] | None, username: str) -> str:
    """Return the client's password in its binding Secret; "" where there is none, or only one that others share."""
    found = secret or {}
    data, annotations = found.get("data") or {}, found.get("metadata", {}).get("annotations") or {}
    if SET_AT not in annotations and _text(data.get("username")) != username:
        return ""  # of the time when the connection had shared access
    return _text(data.get("password"))


def _text(encoded: str | None) -> str:
    """Return an entry of a Secret, "" where it is no text: somebody edited it."""
    try:
        return base64.b64decode(encoded or "").decode()
    except ValueError:
        return ""


def _time(text: str | None) -> datetime.datetime | None:
    if not text:
        return None
    try:
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None  # edited by hand: the creation time of the Secret counts instead

"""Read the Secrets that users name in their objects; by `get`, so that no other Secret is ever seen."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from streamhold_operator.adapters.kube import ApiError
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.reconcile.base import Context
from streamhold_operator.store import SECRET


async def secret_entries(context: Context, namespace: str, name: str, field: str) -> Mapping[str, str]:
    """Return the entries of a Secret as they are kept: in base64.

    Raises:
        Refusal: there is no such Secret.
    """
    try:
        found = await context.kube.get(SECRET, namespace, name)
    except ApiError as exc:
        if exc.status != 403:
            raise
        raise Refusal(
            Reason.SECRET_NOT_FOUND,
            f"The operator has no right to read the Secret {namespace}/{name}, which spec.{field} names; grant it"
            " (the chart does, in the namespaces that it serves)",
        ) from exc
    if found is None:
        raise Refusal(
            Reason.SECRET_NOT_FOUND,
            f"There is no Secret {namespace}/{name}, which spec.{field} names; create it, or correct the name",
        )
    return found.get("data") or {}


def entry(entries: Mapping[str, str], name: str, namespace: str, secret: str, field: str) -> str:
    """Return one entry of a Secret as text.

    Raises:
        Refusal: it is missing, empty or no text.
    """
    try:
        text = base64.b64decode(entries.get(name, ""), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        text = ""
    if not text:
        there = ", ".join(sorted(entries)) or "none"
        raise Refusal(
            Reason.SECRET_INVALID,
            f"The Secret {namespace}/{secret}, which spec.{field} names, has no text in the entry {name!r}"
            f" (entries: {there}); add it, or name the right entry",
        )
    return text

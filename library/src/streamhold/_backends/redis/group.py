"""Consumer groups: made where they are needed, left without a trace (C-11, C-13, S13)."""

from __future__ import annotations

from streamhold._backends.redis.attachment import Attachment
from streamhold._backends.redis.scripts import Script
from streamhold._backends.store import Store

__all__ = ["open_group"]

_OPEN = Script("group_open")


async def open_group(
    client: Store, attachment: Attachment, start: str | bytes, *, make_stream: bool
) -> tuple[int, bytes]:
    """Make sure that the attachment's group exists; one that does keeps its place.

    Args:
        client: the server.
        attachment: whose group.
        start: where a new group begins: after this entry id, or `$` for the end.
        make_stream: whether to make a stream that is missing.

    Returns:
        1 made, 0 it was there, -1 there is no stream; and the entry after which the group reads on.

    Raises:
        BackendError: the server refused.
    """
    ttl = attachment.place.settings.idle_ttl_ms
    args = (attachment.group, start, ttl, int(make_stream))
    state, position = await client.run_script(_OPEN, [attachment.key], args, idempotent=True)
    return state, position

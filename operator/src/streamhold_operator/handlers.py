"""kopf and nothing else: remember what was seen, enqueue what it touches.

kopf lists, watches, reconnects and logs in. It keeps no state in the objects: there are only `on.event` handlers, so no
annotation, no finalizer and no event of its own is ever written. Everything is registered on an explicit registry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import kopf

from streamhold_operator.adapters.kube import MANAGED_SELECTOR, NAMESPACES, OWN, SECRETS, Resource
from streamhold_operator.store import Key, Store

WATCHED: tuple[Resource, ...] = (*OWN, NAMESPACES, SECRETS)


def register(
    registry: kopf.OperatorRegistry,
    store: Store,
    enqueue: Callable[[Iterable[Key]], None],
    login: Callable[[], Awaitable[kopf.ConnectionInfo]],
    alive: Callable[[str], None],
) -> None:
    """Have the store and the queue fed with what happens at the API server."""

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login()

    async def seen(event: kopf.RawEvent, resource: kopf.Resource, **_: Any) -> None:
        raw: dict[str, Any] = {**event["object"], "kind": resource.kind}
        enqueue(store.forget(raw) if event["type"] == "DELETED" else store.remember(raw))
        alive(str(resource.kind))

    for watched in WATCHED:
        kopf.on.event(watched.group, watched.version, watched.plural, registry=registry)(seen)


class _NoEssence(kopf.DiffBaseStorage):
    """What changed since last time is nothing that we ask kopf: without this it copies each object at each event."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def kopf_settings() -> kopf.OperatorSettings:
    """Return settings under which kopf only reads."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NoEssence()
    settings.watching.label_selectors[SECRETS.version, SECRETS.plural] = MANAGED_SELECTOR
    settings.queueing.exit_timeout = 0.5
    settings.networking.request_timeout = 30.0
    settings.process.ultimate_exiting_timeout = None
    return settings

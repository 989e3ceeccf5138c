"""Compare what was watched with what the API server lists: find what a watch stream lost, and prove streams alive.

An object that vanished while a stream was down gets no DELETED event; here it is missing from the list. A stream that
hangs shows as an object whose listed version stays newer than the watched one over two comparisons. Either way the
store is put right and the keys are looked at again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import anyio

from streamhold_operator.adapters.kube import (
    MANAGED_SELECTOR,
    NAMESPACES,
    RESOURCES,
    SECRETS,
    ApiError,
    ApiUnavailable,
    Kube,
)
from streamhold_operator.health import Health
from streamhold_operator.metrics import Metrics
from streamhold_operator.store import Key, Raw, Store

logger = logging.getLogger("streamhold_operator.compare")

_Place = tuple[str, str]


class Comparison:
    """Lists all kinds that are watched."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        enqueue: Callable[[Iterable[Key]], None],
        health: Health,
        metrics: Metrics,
        namespaces: Sequence[str] = (),
    ) -> None:
        self._kube = kube
        self._store = store
        self._enqueue = enqueue
        self._health = health
        self._metrics = metrics
        self._namespaces = namespaces
        self._behind: dict[tuple[str, _Place], int] = {}

    async def prime(self) -> None:
        """Fill the store for the first time, so that nothing is decided on half of the objects.

        Raises:
            ApiError: a list was refused.
            ApiUnavailable: the API server did not answer.
        """
        for kind in (NAMESPACES.kind, *(kind for kind in RESOURCES if kind != NAMESPACES.kind)):
            async for raw in self._listed(kind, metadata_only=False):
                self._store.remember({**raw, "kind": kind})
            self._health.alive(kind)

    async def run(self, interval: float) -> None:
        """Compare again and again until cancelled."""
        while True:
            await anyio.sleep(interval)
            for kind in RESOURCES:
                try:
                    if await self.compare(kind):
                        self._health.alive(kind)
                except (ApiError, ApiUnavailable) as exc:
                    logger.warning("%s could not be listed to compare it: %s", kind, exc)

    async def compare(self, kind: str) -> bool:
        """Compare one kind; return whether its watch stream has delivered all it should."""
        skipped = {namespace for namespace in self._namespaces if self._store.terminating(namespace)}
        held = {row[:2] for row in self._store.versions(kind) if row[0] not in skipped}
        listed: dict[_Place, int] = {}
        async for raw in self._listed(kind, metadata_only=True):
            metadata = raw["metadata"]
            listed[metadata.get("namespace") or "", metadata["name"]] = int(metadata["resourceVersion"])
        complete = True
        for place in held - listed.keys():
            complete &= not await self._put_right(kind, place)
        for place, noted in [(at[1], version) for at, version in self._behind.items() if at[0] == kind]:
            # Behind what the last comparison saw already: more than a little late.
            if place in listed and self._version(kind, place) < noted:
                complete &= not await self._put_right(kind, place)
        now_behind = {(kind, place): version for place, version in self._lagging(kind, listed)}
        self._behind = {at: version for at, version in self._behind.items() if at[0] != kind} | now_behind
        return complete

    def _version(self, kind: str, place: _Place) -> int:
        return next((row[3] for row in self._store.versions(kind) if row[:2] == place), 0)

    def _lagging(self, kind: str, listed: dict[_Place, int]) -> list[tuple[_Place, int]]:
        seen = {(namespace, name): version for namespace, name, _, version in self._store.versions(kind)}
        return [(place, version) for place, version in listed.items() if seen.get(place, 0) < version]

    async def _put_right(self, kind: str, place: _Place) -> bool:
        """Read one object; return whether the store had missed something."""
        namespace, name = place
        held = next((row for row in self._store.versions(kind) if row[:2] == place), None)
        found = await self._kube.get(kind, namespace or None, name)
        if found is not None:
            newer = held is None or int(found["metadata"]["resourceVersion"]) > held[3]
            affected = self._store.remember({**found, "kind": kind})
        elif held is not None:
            newer = True
            gone: Raw = {"kind": kind, "metadata": {"namespace": namespace, "name": name, "uid": held[2]}}
            affected = self._store.forget(gone)
        else:
            return False
        if newer:
            self._metrics.missed.labels(kind).inc()
            logger.warning("%s %s/%s: the watch did not tell of its last change; read again", kind, namespace, name)
        self._enqueue(affected)
        return newer

    async def _listed(self, kind: str, *, metadata_only: bool) -> AsyncIterator[Raw]:
        selector = MANAGED_SELECTOR if kind == SECRETS.kind else ""
        scopes: Sequence[str | None] = (self._namespaces or (None,)) if RESOURCES[kind].namespaced else (None,)
        for namespace in scopes:
            if namespace is not None and self._store.terminating(namespace):
                continue  # what grants us rights in it goes first
            async for raw in self._kube.list(kind, namespace, selector=selector, metadata_only=metadata_only):
                yield raw

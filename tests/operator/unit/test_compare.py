"""The comparison with the API server: what a watch lost is found, and only that."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from streamhold_operator.compare import Comparison
from streamhold_operator.health import Health
from streamhold_operator.metrics import Metrics
from streamhold_operator.store import TOPIC, Key, Store

pytestmark = pytest.mark.anyio

ORDERS, RECEIPTS = Key(TOPIC, "shop", "orders"), Key(TOPIC, "shop", "receipts")


def a_topic(key: Key, version: int, *, uid: str = "") -> dict[str, Any]:
    metadata = {"namespace": key.namespace, "name": key.name, "uid": uid or key.name, "resourceVersion": str(version)}
    return {"kind": key.kind, "metadata": metadata, "spec": {"version": version}}


class Listing:
    """An API server as the comparison sees it: objects by key."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {(raw["kind"], raw["metadata"]["name"]): raw for raw in objects}

    async def list(self, kind: str, namespace: str | None = None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        for raw in [raw for (its, _name), raw in self.objects.items() if its == kind]:
            yield raw

    async def get(self, kind: str, namespace: str | None, name: str) -> dict[str, Any] | None:
        return self.objects.get((kind, name))


class Bench:
    def __init__(self, *listed: dict[str, Any]) -> None:
        self.store, self.enqueued = Store(), list[Key]()
        self.server = Listing(*listed)
        health = Health(clock=lambda: 0.0)
        kube: Any = self.server
        self.comparison = Comparison(kube, self.store, self.enqueue, health, Metrics())

    def enqueue(self, keys: Iterable[Key]) -> None:
        self.enqueued += keys


async def test_the_first_list_fills_the_store() -> None:
    bench = Bench(a_topic(ORDERS, 1), a_topic(RECEIPTS, 2))
    await bench.comparison.prime()
    assert set(bench.store.keys()) == {ORDERS, RECEIPTS}
    assert await bench.comparison.compare(TOPIC)
    assert bench.enqueued == []


async def test_an_object_that_vanished_unseen_is_forgotten_and_looked_at() -> None:
    bench = Bench(a_topic(ORDERS, 1), a_topic(RECEIPTS, 2))
    await bench.comparison.prime()
    del bench.server.objects[TOPIC, "orders"]
    assert not await bench.comparison.compare(TOPIC)
    assert bench.store.keys() == [RECEIPTS]
    assert bench.enqueued == [ORDERS]
    assert await bench.comparison.compare(TOPIC)


async def test_a_change_is_left_to_the_watch_at_first_and_read_when_it_stays_away() -> None:
    bench = Bench(a_topic(ORDERS, 1))
    await bench.comparison.prime()
    bench.server.objects[TOPIC, "orders"] = a_topic(ORDERS, 5)
    assert await bench.comparison.compare(TOPIC)
    assert bench.enqueued == []
    assert not await bench.comparison.compare(TOPIC)
    assert bench.enqueued == [ORDERS]
    held = bench.store.get(ORDERS)
    assert held is not None
    assert held["spec"]["version"] == 5


async def test_a_change_that_the_watch_delivers_meanwhile_is_not_read() -> None:
    bench = Bench(a_topic(ORDERS, 1))
    await bench.comparison.prime()
    bench.server.objects[TOPIC, "orders"] = a_topic(ORDERS, 5)
    assert await bench.comparison.compare(TOPIC)
    bench.store.remember(a_topic(ORDERS, 5))
    bench.server.objects[TOPIC, "orders"] = a_topic(ORDERS, 6)
    assert await bench.comparison.compare(TOPIC)
    assert bench.enqueued == []


async def test_an_object_made_anew_unseen_replaces_the_one_before() -> None:
    bench = Bench(a_topic(ORDERS, 1))
    await bench.comparison.prime()
    bench.server.objects[TOPIC, "orders"] = a_topic(ORDERS, 9, uid="another")
    await bench.comparison.compare(TOPIC)
    await bench.comparison.compare(TOPIC)
    held = bench.store.get(ORDERS)
    assert held is not None
    assert held["metadata"]["uid"] == "another"

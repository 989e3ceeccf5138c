"""The store: what was last seen, who is touched by a change, and that older news never replaces newer."""

from __future__ import annotations

import base64
from typing import Any

from streamhold_operator.store import CLIENT, CONNECTION, TOPIC, Key, Store

MAIN = Key(CONNECTION, "shop", "main")
ORDERS = Key(TOPIC, "shop", "orders")
APP = Key(CLIENT, "shop", "app")


def an_object(key: Key, version: int, *, uid: str = "", status: dict[str, Any] | None = None, **spec: Any) -> Any:
    metadata = {
        "namespace": key.namespace,
        "name": key.name,
        "uid": uid or f"uid-of-{key.name}",
        "resourceVersion": str(version),
    }
    return {"kind": key.kind, "metadata": metadata, "spec": spec, "status": status or {}}


def a_topic(version: int, **rest: Any) -> Any:
    return an_object(ORDERS, version, connectionRef={"name": "main"}, **rest)


def a_client(version: int, **rest: Any) -> Any:
    return an_object(APP, version, connectionRef={"name": "main"}, topics=[{"name": "orders"}], **rest)


def a_namespace(version: int, labels: dict[str, str], *, deleted: bool = False) -> Any:
    metadata: dict[str, Any] = {"name": "shop", "uid": "n", "resourceVersion": str(version), "labels": labels}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"kind": "Namespace", "metadata": metadata}


def a_secret(version: int, *, uid: str = "s", client: str = "app", **data: str) -> Any:
    return {
        "kind": "Secret",
        "metadata": {
            "namespace": "shop",
            "name": "app-streamhold",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {"streamhold.dev/client": client},
            "ownerReferences": [{"uid": "uid-of-app", "controller": True}],
        },
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()},
    }


def a_full_store() -> Store:
    store = Store()
    for raw in (an_object(MAIN, 1), a_topic(2), a_client(3), a_namespace(4, {}), a_secret(5, password="p")):
        store.remember(raw)
    return store


def test_a_new_object_touches_itself_and_who_refers_to_it() -> None:
    store = Store()
    assert store.remember(a_client(3)) == {APP}
    assert store.remember(a_topic(4)) == {ORDERS, APP}
    assert store.remember(an_object(MAIN, 5)) == {MAIN, ORDERS, APP}
    assert store.users_of(MAIN) == {ORDERS, APP}
    assert store.connection_of(APP) == MAIN == store.connection_of(MAIN)


def test_the_same_or_an_older_version_touches_nothing_and_changes_nothing() -> None:
    store = a_full_store()
    store.remember(a_topic(10, maxLength=5))
    assert store.remember(a_topic(10, maxLength=5)) == frozenset()
    assert store.remember(a_topic(9, maxLength=4)) == frozenset()
    held = store.get(ORDERS)
    assert held is not None
    assert held["spec"]["maxLength"] == 5


def test_a_status_written_by_us_touches_nothing_but_one_by_others_does() -> None:
    store = a_full_store()
    assert store.remember(a_topic(10, status={"ready": True}), ours=True) == frozenset()
    assert store.remember(a_topic(11, status={"ready": False})) == {ORDERS}


def test_a_change_by_others_that_our_own_write_brought_along_is_not_lost() -> None:
    store = a_full_store()
    assert ORDERS in store.remember(a_topic(10, maxLength=5, status={"ready": True}), ours=True)


def test_a_deleted_object_touches_its_users_and_late_news_does_not_bring_it_back() -> None:
    store = a_full_store()
    assert store.forget(a_topic(9)) == {ORDERS, APP}
    assert store.remember(a_topic(8)) == frozenset()
    assert store.remember(a_topic(10)) == frozenset()
    assert store.get(ORDERS) is None
    assert store.remember(a_topic(11, uid="another")) == {ORDERS, APP}


def test_news_of_the_end_of_an_earlier_object_does_not_remove_its_successor() -> None:
    store = a_full_store()
    store.remember(a_topic(10, uid="another"))
    assert store.forget(a_topic(9)) == frozenset()
    assert store.get(ORDERS) is not None


def test_a_reference_that_was_taken_back_touches_no_longer() -> None:
    store = a_full_store()
    store.remember(an_object(APP, 10, connectionRef={"name": "main"}))
    assert store.users_of(ORDERS) == frozenset()


def test_labels_and_the_end_of_a_namespace_touch_everything_in_it() -> None:
    store = a_full_store()
    assert store.remember(a_namespace(10, {"team": "a"})) == {MAIN, ORDERS, APP}
    assert store.remember(a_namespace(11, {"team": "a"})) == frozenset()
    assert not store.terminating("shop")
    store.remember(a_namespace(12, {"team": "a"}, deleted=True))
    assert store.terminating("shop")
    assert store.terminating("never-seen")


def test_a_secret_touches_its_client_when_it_changes_or_goes() -> None:
    store = a_full_store()
    assert store.remember(a_secret(10, password="p")) == frozenset()
    assert store.remember(a_secret(11, password="q")) == {APP}
    assert store.forget(a_secret(11, uid="another")) == frozenset()
    assert store.forget(a_secret(12)) == {APP}
    assert store.secret("shop", "app-streamhold") is None


def test_of_a_secret_no_entry_is_kept() -> None:
    store = Store()
    store.remember(a_secret(1, password="very-secret-password", uri="redis://very-secret-password@host"))
    seen = store.secret("shop", "app-streamhold")
    assert seen is not None
    assert "very-secret-password" not in repr(seen)
    assert store.secrets_of(APP, "uid-of-app") == [("app-streamhold", seen)]
    assert store.secrets_of(APP, "another") == []


def test_bulky_members_are_not_kept() -> None:
    store = Store()
    raw = a_topic(1)
    raw["metadata"]["managedFields"] = [{}]
    raw["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{…}", "mine": "1"}
    store.remember(raw)
    held = store.get(ORDERS)
    assert held is not None
    assert "managedFields" not in held["metadata"]
    assert held["metadata"]["annotations"] == {"mine": "1"}
    assert raw["metadata"]["managedFields"] == [{}]

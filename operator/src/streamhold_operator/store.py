"""The last seen state of everything the operator watches, and who depends on whom.

Filled by watch events, by lists and by the answers to our own writes, in whatever order they come: an older version
of an object never replaces a newer one. `remember` and `forget` answer with the keys that should be looked at again,
so that the callers (handlers, comparison, reconcilers) enqueue and decide nothing.

Of Secrets only those that carry our label are seen, and of these only a digest and a few names are kept.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Raw = dict[str, Any]

CONNECTION, TOPIC, LEASE, CLIENT = "RedisConnection", "StreamTopic", "LeasePolicy", "CoordinationClient"
KINDS = (CONNECTION, TOPIC, LEASE, CLIENT)
NAMESPACE, SECRET = "Namespace", "Secret"
CLIENT_LABEL = "streamhold.dev/client"

_GONE_KEPT = 10_000
"""Uids of deleted objects kept, so that a late answer to a write of ours does not bring one back."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_NOTHING: frozenset[Key] = frozenset()


class Key(NamedTuple):
    """Names one object."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class NamespaceSeen:
    """What matters of a namespace."""

    labels: Mapping[str, str]
    terminating: bool


@dataclass(frozen=True, slots=True)
class SecretSeen:
    """What matters of a Secret that carries our label."""

    uid: str
    version: int
    client: str
    """Name of the client it was made for, from its label."""
    owner_uid: str
    digest: str
    """Over type, owners, labels, annotations and entries."""
    password_sha256: str


class Store:
    """All objects by key, with the indexes that answer who depends on whom."""

    def __init__(self) -> None:
        self._objects: dict[Key, Raw] = {}
        self._gone: dict[str, None] = {}
        self._uids: dict[str, Key] = {}
        self._users_of: defaultdict[Key, set[Key]] = defaultdict(set)
        self._uses: dict[Key, frozenset[Key]] = {}
        self._namespaces: dict[str, NamespaceSeen] = {}
        self._namespace_versions: dict[str, int] = {}
        self._in_namespace: defaultdict[str, set[Key]] = defaultdict(set)
        self._secrets: dict[tuple[str, str], SecretSeen] = {}

    # ---- reading

    def get(self, key: Key) -> Raw | None:
        """Return the object as last seen."""
        return self._objects.get(key)

    def keys(self, kind: str | None = None) -> list[Key]:
        """Return the keys of all objects, or of one kind."""
        return [key for key in self._objects if kind is None or key.kind == kind]

    def users_of(self, key: Key) -> frozenset[Key]:
        """Return who refers to the object: of a connection its topics, policies and clients; of a topic its clients."""
        return frozenset(self._users_of.get(key, ()))

    def connection_of(self, key: Key) -> Key | None:
        """Return the connection that the object refers to (itself for a connection)."""
        if key.kind == CONNECTION:
            return key
        return next((used for used in self._uses.get(key, ()) if used.kind == CONNECTION), None)

    def uids(self) -> Collection[str]:
        """Return the uids of all objects: a view, which costs nothing and follows what is seen later."""
        return self._uids.keys()

    def namespace(self, name: str) -> NamespaceSeen | None:
        """Return what is known of a namespace."""
        return self._namespaces.get(name)

    def terminating(self, name: str) -> bool:
        """Whether the namespace is being deleted (or gone): nothing can be created in it."""
        seen = self._namespaces.get(name)
        return seen is None or seen.terminating

    def secret(self, namespace: str, name: str) -> SecretSeen | None:
        """Return what is known of a labelled Secret."""
        return self._secrets.get((namespace, name))

    def secrets_of(self, client: Key, owner_uid: str) -> list[tuple[str, SecretSeen]]:
        """Return the Secrets that were made for this client: name and what is known."""
        return [
            (name, seen)
            for (namespace, name), seen in self._secrets.items()
            if namespace == client.namespace and seen.client == client.name and seen.owner_uid == owner_uid
        ]

    def versions(self, kind: str) -> Iterator[tuple[str, str, str, int]]:
        """Yield namespace, name, uid and resource version of all that is held of a kind."""
        if kind == SECRET:
            for (namespace, name), seen in self._secrets.items():
                yield namespace, name, seen.uid, seen.version
        elif kind == NAMESPACE:
            for name, version in self._namespace_versions.items():
                yield "", name, "", version
        else:
            for key in self.keys(kind):
                metadata = self._objects[key]["metadata"]
                yield key.namespace, key.name, str(metadata["uid"]), int(metadata["resourceVersion"])

    # ---- writing

    def remember(self, raw: Raw, *, ours: bool = False) -> frozenset[Key]:
        """Take in an object as the API server showed it; return the keys to look at again.

        Args:
            raw: the object.
            ours: it is the answer to a write of ours, which by itself gives no reason to look again; what others
                changed in it meanwhile does.
        """
        kind = str(raw["kind"])
        if kind == NAMESPACE:
            return self._remember_namespace(raw)
        if kind == SECRET:
            return self._remember_secret(raw)
        return self._remember_object(Key(kind, raw["metadata"]["namespace"], raw["metadata"]["name"]), raw, ours)

    def forget(self, raw: Raw) -> frozenset[Key]:
        """Take in that the object is gone; return the keys to look at again."""
        kind, metadata = str(raw["kind"]), raw["metadata"]
        if kind == NAMESPACE:
            self._namespaces.pop(metadata["name"], None)
            self._namespace_versions.pop(metadata["name"], None)
            return _NOTHING
        if kind == SECRET:
            place = (metadata["namespace"], metadata["name"])
            seen = self._secrets.get(place)
            if seen is None or seen.uid != metadata["uid"]:
                return _NOTHING
            del self._secrets[place]
            return self._owner_of(place[0], seen)
        key = Key(kind, metadata["namespace"], metadata["name"])
        held = self._objects.get(key)
        self._note_gone(str(metadata["uid"]))
        if held is None or held["metadata"]["uid"] != metadata["uid"]:
            return _NOTHING
        affected = {key} | self._users_of.get(key, set())
        del self._objects[key]
        self._uids.pop(str(metadata["uid"]), None)
        self._in_namespace[key.namespace].discard(key)
        self._index(key, frozenset())
        return frozenset(affected)

    def _note_gone(self, uid: str) -> None:
        self._gone[uid] = None
        while len(self._gone) > _GONE_KEPT:
            del self._gone[next(iter(self._gone))]

    def _remember_object(self, key: Key, raw: Raw, ours: bool) -> frozenset[Key]:
        metadata = raw["metadata"]
        if str(metadata["uid"]) in self._gone:
            return _NOTHING
        held = self._objects.get(key)
        if held is not None and int(held["metadata"]["resourceVersion"]) >= int(metadata["resourceVersion"]):
            return _NOTHING
        slim = _slim(raw)
        self._objects[key] = slim
        if held is not None:
            self._uids.pop(str(held["metadata"]["uid"]), None)
        self._uids[str(metadata["uid"])] = key
        self._in_namespace[key.namespace].add(key)
        if held is not None and _wish(held, ours) == _wish(slim, ours):
            return _NOTHING if ours or held.get("status") == slim.get("status") else frozenset({key})
        self._index(key, frozenset(_references(key, slim)))
        return frozenset({key} | self._users_of.get(key, set()))

    def _remember_namespace(self, raw: Raw) -> frozenset[Key]:
        metadata = raw["metadata"]
        name, version = str(metadata["name"]), int(metadata["resourceVersion"])
        if self._namespace_versions.get(name, 0) >= version:
            return _NOTHING
        seen = NamespaceSeen(dict(metadata.get("labels") or {}), bool(metadata.get("deletionTimestamp")))
        before, self._namespaces[name] = self._namespaces.get(name), seen
        self._namespace_versions[name] = version
        return _NOTHING if before == seen else frozenset(self._in_namespace.get(name, ()))

    def _remember_secret(self, raw: Raw) -> frozenset[Key]:
        metadata = raw["metadata"]
        place = (str(metadata["namespace"]), str(metadata["name"]))
        seen, before = seen_of(raw), self._secrets.get(place)
        if before is not None and before.version >= seen.version:
            return _NOTHING
        self._secrets[place] = seen
        if before is not None and before.digest == seen.digest and before.uid == seen.uid:
            return _NOTHING
        affected = self._owner_of(place[0], seen)
        return affected | self._owner_of(place[0], before) if before is not None else affected

    def _owner_of(self, namespace: str, seen: SecretSeen) -> frozenset[Key]:
        key = Key(CLIENT, namespace, seen.client)
        return frozenset({key}) if key in self._objects else _NOTHING

    def _index(self, key: Key, uses: frozenset[Key]) -> None:
        before = self._uses.pop(key, frozenset())
        for used in before - uses:
            self._users_of[used].discard(key)
            if not self._users_of[used]:
                del self._users_of[used]
        for used in uses - before:
            self._users_of[used].add(key)
        if uses:
            self._uses[key] = uses


def seen_of(raw: Raw) -> SecretSeen:
    """Reduce a Secret to what is kept of it."""
    metadata = raw["metadata"]
    labels = metadata.get("labels") or {}
    owners = metadata.get("ownerReferences") or ()
    data = raw.get("data") or {}
    password = base64.b64decode(str(data.get("password") or ""), validate=False)
    return SecretSeen(
        uid=str(metadata["uid"]),
        version=int(metadata["resourceVersion"]),
        client=str(labels.get(CLIENT_LABEL, "")),
        owner_uid=next((str(owner["uid"]) for owner in owners if owner.get("controller")), ""),
        digest=_digest(str(raw.get("type")), str(owners), labels, metadata.get("annotations") or {}, data),
        password_sha256=hashlib.sha256(password).hexdigest() if password else "",
    )


def _digest(*parts: str | Mapping[str, str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        items: Iterable[str] = [part] if isinstance(part, str) else (f"{k}\0{v}" for k, v in sorted(part.items()))
        for item in items:
            digest.update(item.encode() + b"\1")
        digest.update(b"\2")
    return digest.hexdigest()


def _slim(raw: Raw) -> Raw:
    metadata = {name: value for name, value in raw["metadata"].items() if name != "managedFields"}
    if _LAST_APPLIED in (metadata.get("annotations") or {}):
        metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != _LAST_APPLIED}
    return {**raw, "metadata": metadata}


def _wish(raw: Raw, ours: bool) -> tuple[object, ...]:
    """Return what of an object can change what has to be done for it: all but its status (and what we write)."""
    metadata = raw["metadata"]
    return (
        metadata["uid"],
        raw.get("spec"),
        metadata.get("deletionTimestamp"),
        None if ours else metadata.get("finalizers"),
        metadata.get("annotations"),
    )


def _references(key: Key, raw: Raw) -> Iterator[Key]:
    spec = raw.get("spec") or {}
    reference = spec.get("connectionRef")
    if key.kind != CONNECTION and isinstance(reference, dict):
        yield Key(CONNECTION, str(reference.get("namespace") or key.namespace), str(reference.get("name")))
    if key.kind == CLIENT:
        for member, kind in (("topics", TOPIC), ("leases", LEASE)):
            for entry in spec.get(member) or ():
                yield Key(kind, str(entry.get("namespace") or key.namespace), str(entry.get("name")))

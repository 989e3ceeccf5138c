"""Who owns a key: claims that every operator writes into one Redis hash, and a pure function that says who wins.

Each object registers its claim, reads all claims and decides for itself; as the winner depends on nothing but the
claims, all operators of all clusters come to the same answer without a lock. Claims in the order (created, uid): each
wins if it overlaps no earlier winner, a loser blocks nobody.

Not guaranteed: between the first sight of a claim and the next resync of another cluster both may think they own a
key; and "older" is what the API servers' clocks say.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from streamhold.keys import OWNERS_KEY
from streamhold_operator.api.base import KubeObject

__all__ = [
    "Claim",
    "OwnerRecord",
    "Owners",
    "area_claim",
    "forbidden",
    "key_claim",
    "lease_claim",
    "overlaps",
    "prefix_claim",
    "stale",
    "user_claim",
    "usernames",
]

Claim = str
"""`key:<full key>`, `prefix:<full key prefix>`, `lease:<full lease key prefix>`, `area:<prefix of companions>` or
`user:<ACL user>`."""


def key_claim(key: str) -> Claim:
    """Return the claim on one key."""
    return f"key:{key}"


def prefix_claim(key_prefix: str) -> Claim:
    """Return the claim on all keys that start like this."""
    return f"prefix:{key_prefix}"


def lease_claim(key_prefix: str) -> Claim:
    """Return the claim on all leases whose key starts like this."""
    return f"lease:{key_prefix}"


def area_claim(prefix: str) -> Claim:
    """Return the claim on the companion keys of a key prefix: its objects share them, others may not have them."""
    return f"area:{prefix}:streamhold:"


def user_claim(username: str) -> Claim:
    """Return the claim on an ACL user."""
    return f"user:{username}"


def usernames(claims: Iterable[Claim]) -> list[str]:
    """Return the ACL users among what is claimed."""
    return [name for kind, name in map(_split, claims) if kind == "user"]


def overlaps(one: Claim, other: Claim) -> bool:
    """Whether two claims cannot both be held."""
    kind, name = _split(one)
    other_kind, other_name = _split(other)
    if "user" in (kind, other_kind):
        return kind == other_kind and name == other_name
    if kind == other_kind == "area":
        return False
    if kind == other_kind == "key":
        return name == other_name
    if kind == "key":
        return name.startswith(other_name)
    if other_kind == "key":
        return other_name.startswith(name)
    return name.startswith(other_name) or other_name.startswith(name)


def forbidden(claims: Iterable[Claim]) -> Claim | None:
    """Return the first claim that nobody may hold since it covers the owner record itself."""
    return next((claim for claim in claims if overlaps(claim, key_claim(OWNERS_KEY))), None)


@dataclass(frozen=True, slots=True, kw_only=True, order=False)
class OwnerRecord:
    """What one object of one cluster claims."""

    cluster: str
    uid: str
    kind: str
    namespace: str
    name: str
    created: str
    """creationTimestamp, RFC 3339 in UTC."""
    claims: tuple[Claim, ...]

    @classmethod
    def of(cls, owner: KubeObject, *, cluster: str, claims: tuple[Claim, ...]) -> Self:
        """Return the record of an object with these claims."""
        metadata = owner.metadata
        return cls(
            cluster=cluster,
            uid=metadata.uid,
            kind=owner.KIND,
            namespace=metadata.namespace,
            name=metadata.name,
            created=metadata.creation_timestamp,
            claims=claims,
        )

    @property
    def field(self) -> str:
        """Its field in the hash."""
        return f"{self.cluster}/{self.uid}"

    @property
    def rank(self) -> tuple[str, str, str]:
        """What the order of winning goes by."""
        return (self.created, self.uid, self.cluster)

    def value(self) -> str:
        """Return the value in the hash: the same text for the same record."""
        members = {
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "created": self.created,
            "claims": list(self.claims),
        }
        return json.dumps(members, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, field: str, value: str) -> OwnerRecord | None:
        """Return the record in a field of the hash, or None where it is not one of ours."""
        cluster, slash, uid = field.partition("/")
        try:
            members = json.loads(value)
        except ValueError:
            return None
        if not (slash and cluster and uid and isinstance(members, dict)):
            return None
        texts = [members.get(name) for name in ("kind", "namespace", "name", "created")]
        claims = members.get("claims")
        if not isinstance(claims, list) or not all(isinstance(text, str) for text in [*texts, *claims]):
            return None
        kind, namespace, name, created = (str(text) for text in texts)
        return cls(
            cluster=cluster,
            uid=uid,
            kind=kind,
            namespace=namespace,
            name=name,
            created=created,
            claims=tuple(str(claim) for claim in claims),
        )

    def told(self, *, cluster: str) -> str:
        """Return how a message names it, seen from a cluster."""
        where = "" if self.cluster == cluster else f" of the cluster {self.cluster}"
        return f"{self.kind} {self.namespace}/{self.name}{where}"


class Owners:
    """The owner record of one database at one time. Immutable; the winners are found when first asked for."""

    def __init__(self, records: Iterable[OwnerRecord] = (), *, unreadable: Collection[str] = ()) -> None:
        self._records = {record.field: record for record in records}
        self.unreadable = tuple(sorted(unreadable))
        """Fields that hold no record; they claim nothing."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owners) and self._records == other._records and self.unreadable == other.unreadable

    @property
    def records(self) -> Mapping[str, OwnerRecord]:
        """All records by their field."""
        return self._records

    def registered(self, record: OwnerRecord) -> bool:
        """Whether exactly this record is there."""
        return self._records.get(record.field) == record

    def holder(self, record: OwnerRecord) -> OwnerRecord | None:
        """Return an older record that stands in the way of a registered one; None when it wins itself."""
        holder = self._decided.holders[record.field]
        return None if holder is None else self._records[holder]

    @cached_property
    def winners(self) -> frozenset[str]:
        """The fields of all records that hold what they claim."""
        return frozenset(field for field, holder in self._decided.holders.items() if holder is None)

    @cached_property
    def _decided(self) -> _Decided:
        held, everything = _Index(), _Index()
        holders: dict[str, str | None] = {}
        for record in sorted(self._records.values(), key=lambda record: record.rank):
            holder = holders[record.field] = held.first_overlap(record.claims)
            if holder is None:
                held.add(record)
            everything.add(record)
        return _Decided(holders, everything)

    def with_records(self, added: Collection[OwnerRecord], *, unreadable: Collection[str] = ()) -> Owners:
        """Return the owners after these records were written, and these fields found unreadable.

        Records that are new and in nobody's way cost little, however many others there are: thousands arrive in a row
        when an operator meets an empty server.
        """
        fields = {record.field for record in added}
        left = (set(self.unreadable) - fields) | set(unreadable)
        after = Owners((), unreadable=left)
        after._records = self._records | {record.field: record for record in added}
        if "_decided" in self.__dict__ and fields.isdisjoint(self._records):
            decided = self._decided.joined_by(added)
            if decided is not None:
                after.__dict__["_decided"] = decided
        return after

    def without(self, field: str) -> Owners:
        """Return the owners after this field was removed."""
        kept = [record for record in self._records.values() if record.field != field]
        return Owners(kept, unreadable=set(self.unreadable) - {field})


@dataclass(frozen=True, slots=True)
class _Decided:
    """Who won, and what it takes to let others join."""

    holders: Mapping[str, str | None]
    """For each record the older winner that it overlaps; None for the winners."""
    everything: _Index
    """The claims of all records, winners or not."""

    def joined_by(self, added: Collection[OwnerRecord]) -> _Decided | None:
        """Return the decision with these records in it, if they change nothing for the others; else None."""
        index = self.everything.copy()
        for record in added:
            if index.first_overlap(record.claims) is not None:
                return None
            index.add(record)
        return _Decided(dict(self.holders) | dict.fromkeys((record.field for record in added), None), index)


class _Index:
    """Claims, kept so that whether another overlaps one of them is found in logarithmic time."""

    def __init__(self) -> None:
        self._users: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._prefixes: dict[str, str] = {}
        self._areas: dict[str, str] = {}
        self._sorted: dict[str, list[str]] = {"keys": [], "prefixes": [], "areas": []}
        self._lengths: dict[str, dict[int, None]] = {"prefixes": {}, "areas": {}}

    def copy(self) -> _Index:
        """Return one that can grow on its own."""
        other = _Index()
        other._users, other._keys = dict(self._users), dict(self._keys)
        other._prefixes, other._areas = dict(self._prefixes), dict(self._areas)
        other._sorted = {order: list(names) for order, names in self._sorted.items()}
        other._lengths = {order: dict(lengths) for order, lengths in self._lengths.items()}
        return other

    def add(self, record: OwnerRecord) -> None:
        for claim in record.claims:
            kind, name = _split(claim)
            if kind == "user":
                self._users[name] = record.field
            elif kind == "key":
                self._insert("keys", self._keys, name, record.field)
            elif kind == "area":
                self._insert("areas", self._areas, name, record.field)
            else:
                self._insert("prefixes", self._prefixes, name, record.field)

    def first_overlap(self, claims: Iterable[Claim]) -> str | None:
        """Return the field of a record in here that overlaps one of these claims."""
        for claim in claims:
            found = self._overlap(*_split(claim))
            if found is not None:
                return found
        return None

    def _overlap(self, kind: str, name: str) -> str | None:
        if kind == "user":
            return self._users.get(name)
        found = self._above("prefixes", self._prefixes, name)
        if found is None and kind != "area":
            found = self._above("areas", self._areas, name)
        if kind == "key":
            return found or self._keys.get(name)
        found = found or self._below("keys", self._keys, name) or self._below("prefixes", self._prefixes, name)
        if kind != "area":
            found = found or self._below("areas", self._areas, name)
        return found

    def _insert(self, order: str, held: dict[str, str], name: str, field: str) -> None:
        if name not in held:
            insort(self._sorted[order], name)
            if order in self._lengths:
                self._lengths[order][len(name)] = None
            held[name] = field

    def _above(self, order: str, held: dict[str, str], name: str) -> str | None:
        """Return the holder of a prefix that `name` starts with."""
        for length in self._lengths[order]:
            field = held.get(name[:length]) if length <= len(name) else None
            if field is not None:
                return field
        return None

    def _below(self, order: str, held: dict[str, str], name: str) -> str | None:
        """Return the holder of something that starts with `name`."""
        names = self._sorted[order]
        at = bisect_left(names, name)
        return held[names[at]] if at < len(names) and names[at].startswith(name) else None


def stale(owners: Owners, *, cluster: str, alive: Collection[str], namespaces: Collection[str] | None) -> list[str]:
    """Return the fields whose object is gone: claims of this cluster that no living object stands behind.

    Args:
        owners: what is registered.
        cluster: the id of this cluster; claims of others are never judged.
        alive: uids of all objects that this operator sees.
        namespaces: those it watches; None for all. An object elsewhere is not judged either.
    """
    return sorted(
        record.field
        for record in owners.records.values()
        if record.cluster == cluster
        and record.uid not in alive
        and (namespaces is None or record.namespace in namespaces)
    )


def _split(claim: Claim) -> tuple[str, str]:
    kind, _, name = claim.partition(":")
    return kind, name

"""The claims of all that uses a connection, registered in one batch where the owner record lost them or never had them.

Each object registers its own claim too. But on an empty server the first to do so would be decided on before the older
ones are there: it would become Ready, make its groups, and give way a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator

from streamhold_operator.adapters.kube import FINALIZER
from streamhold_operator.api import CoordinationClient, InvalidObject, LeasePolicy, RedisConnection, StreamTopic
from streamhold_operator.api.v1alpha1.redisconnection import AccessMode
from streamhold_operator.domain import client as clients
from streamhold_operator.domain import topic as topics
from streamhold_operator.domain.actions import RegisterClaim
from streamhold_operator.domain.claims import OwnerRecord
from streamhold_operator.reconcile import lease, topic
from streamhold_operator.reconcile.base import Context
from streamhold_operator.reconcile.sessions import Session
from streamhold_operator.reconcile.settling import applied
from streamhold_operator.store import LEASE, TOPIC, Key, Raw


async def register_all(context: Context, session: Session, connection: RedisConnection) -> bool:
    """Register what is not registered; return whether there was anything.

    Raises:
        Refusal: the server could not be reached.
    """
    known = session.interests.values()
    if known and all(session.owners.registered(interest.record) for interest in known):
        return False
    missing = [
        RegisterClaim(record)
        for record in _records(context, session.key, connection)
        if not session.owners.registered(record)
    ]
    await applied(context, session, missing)
    return bool(missing)


def _records(context: Context, reference: Key, connection: RedisConnection) -> Iterator[OwnerRecord]:
    for key in context.store.users_of(reference):
        raw = context.store.get(key)
        if raw is None or raw["metadata"].get("deletionTimestamp") or raw["spec"].get("suspend"):
            continue
        seen = context.store.namespace(key.namespace)
        labels = seen.labels if seen is not None else {}
        if not connection.spec.allowed_namespaces.allows(reference.namespace, key.namespace, labels):
            continue
        try:
            record = _record(context, key, raw, connection)
        except InvalidObject:
            continue  # its own pass says so
        if record is not None:
            yield record


def _record(context: Context, key: Key, raw: Raw, connection: RedisConnection) -> OwnerRecord | None:
    """Return what the object claims; None where its own pass has to come to that first."""
    if key.kind == TOPIC:
        want = topic.want_of(context, key, StreamTopic.parse(raw), connection)
        return want.record if topics.unusable(want) is None else None
    if key.kind == LEASE:
        return lease.want_of(context, key, LeasePolicy.parse(raw), connection).record
    begun = FINALIZER in (raw["metadata"].get("finalizers") or ())
    if connection.spec.access is AccessMode.SHARED or not begun:
        return None
    client = clients.Want.of(CoordinationClient.parse(raw), cluster=context.cluster)
    return client.record if client.username != clients.NOBODYS else None

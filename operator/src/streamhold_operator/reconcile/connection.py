"""RedisConnection: log in, see what the server is, and re-read all that its users need of it.

The one place that connects and retries. Its pass runs again every resync interval; each run asks for the Secret (its
change is seen there), probes the server, and reads the state of all topics and users in one batch. Whoever is not as
it was left is looked at again, everybody when the server was restarted (another run id).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from streamhold_operator.adapters.redis import AdminTarget, Tls
from streamhold_operator.api import RECONCILE_ANNOTATION, RedisConnection
from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.redisconnection import AccessMode, Topology
from streamhold_operator.domain import connection as domain
from streamhold_operator.domain.outcome import Outcome, Refusal
from streamhold_operator.reconcile.base import Again, Context, publish
from streamhold_operator.reconcile.claims import register_all
from streamhold_operator.reconcile.secrets import entry, secret_entries
from streamhold_operator.reconcile.sessions import Session
from streamhold_operator.reconcile.settling import clear_leftovers
from streamhold_operator.store import Key, Raw

RETIRED = 60.0
"""Seconds for which a session outlives its object, so that what is deleted together with it can still be cleaned up."""


async def reconcile(context: Context, key: Key) -> Again:
    """Bring the session of a connection up to date, and its status."""
    raw = context.store.get(key)
    if raw is None:
        return await _gone(context, key)
    connection = RedisConnection.parse(raw)
    session = context.sessions.ensure(key)
    session.connection, session.retired = connection, False
    if connection.spec.suspend:
        return await _suspended(context, key, raw, connection, session)
    _note_force(session, connection)
    try:
        outcome = await _connect(context, key, connection, session)
    except Refusal as refusal:
        session.down(refusal)
        outcome = Outcome.refused(refusal, status=_kept(connection))
    context.metrics.connection_up.labels(key.namespace, key.name).set(session.usable)
    await publish(context, key, raw, outcome, generation=connection.metadata.generation)
    if session.announce():
        context.wake(context.store.users_of(key))
    if not outcome.ready:
        return Again(outcome.retry_after, failed=True)
    # Sooner than the interval, which is a promise: what this pass finds has to be carried out as well.
    return Again(context.settings.resync_interval * random.uniform(0.75, 0.85))


def _note_force(session: Session, connection: RedisConnection) -> None:
    """Have everything checked anew when the spec changed, or a pass was forced by the annotation."""
    forced = (connection.metadata.generation, connection.metadata.annotations.get(RECONCILE_ANNOTATION))
    if session.forced != forced:
        session.forced, session.recheck = forced, True


async def _connect(context: Context, key: Key, connection: RedisConnection, session: Session) -> Outcome:
    """Log in, probe, re-read.

    Raises:
        Refusal: one of these failed; nothing can be done for the users of the connection.
    """
    if connection.spec.topology is not Topology.STANDALONE:
        raise domain.unsupported(connection.spec.topology)
    target = await _target(context, key, connection)
    admin = await session.open(target)
    facts = await admin.probe()
    want = domain.Want(endpoint=target.endpoint, username=target.username)
    refusal = domain.check(want, facts)
    if refusal is not None:
        session.down(refusal)
        return domain.conclude(want, facts, refusal)
    session.up(facts)
    await _resync(context, session, connection)
    outcome, moved = domain.conclude(want, facts), session.moved()
    return outcome if moved is None else replace(outcome, warnings=(*outcome.warnings, moved))


async def _resync(context: Context, session: Session, connection: RedisConnection) -> None:
    """Read what everybody needs in one batch; remove the claims of objects that are gone."""
    interests = session.interests.values()
    streams = {interest.stream_key: interest.groups for interest in interests if interest.stream_key is not None}
    users = [interest.username for interest in interests if interest.username is not None]
    snapshot = await session.observe(streams, users)
    registered = await register_all(context, session, connection)
    if await clear_leftovers(context, session) or registered:
        snapshot = await session.observe(streams, users)
    context.wake(session.changed(snapshot))


async def _suspended(context: Context, key: Key, raw: Raw, connection: RedisConnection, session: Session) -> Again:
    message = "Nothing is done for this connection and what uses it while spec.suspend is true"
    session.down(Refusal(Reason.SUSPENDED, message))
    await session.close()
    outcome = Outcome(ready=False, reason=Reason.SUSPENDED, message=message, status=_kept(connection))
    await publish(context, key, raw, outcome, generation=connection.metadata.generation)
    if session.announce():
        context.wake(context.store.users_of(key))
    return Again()


def _kept(connection: RedisConnection) -> Mapping[str, object]:
    status = connection.status.to_dict()
    return {name: status[name] for name in ("server", "nodes", "capabilities") if name in status}


async def _gone(context: Context, key: Key) -> Again:
    """Tell the users; end the session a little later."""
    context.warned.pop(key, None)
    session = context.sessions.get(key)
    if session is None:
        return Again()
    if not session.retired:
        session.retired = True
        context.wake(context.store.users_of(key))
        return Again(RETIRED)
    context.metrics.connection_up.remove(key.namespace, key.name)
    await context.sessions.remove(key)
    return Again()


async def _target(context: Context, key: Key, connection: RedisConnection) -> AdminTarget:
    spec = connection.spec
    shared = spec.access is AccessMode.SHARED
    reference, field = spec.admin_secret_ref, "adminSecretRef"
    if reference is None and shared:
        reference, field = spec.shared_secret_ref, "sharedSecretRef"
    username = password = None
    if reference is not None:
        entries = await secret_entries(context, key.namespace, reference.name, field)
        password = entry(entries, reference.effective_password_key, key.namespace, reference.name, field)
        if reference.username_key is not None or reference.effective_username_key in entries:
            username = entry(entries, reference.effective_username_key, key.namespace, reference.name, field)
    return AdminTarget(
        endpoint=domain.parse_endpoint(spec.endpoints[0]),
        topology=spec.topology,
        database=spec.database,
        username=username,
        password=password,
        tls=await _tls(context, key, connection),
        acl=not shared,
        sample_prefix=spec.effective_key_prefix(key.namespace),
    )


async def _tls(context: Context, key: Key, connection: RedisConnection) -> Tls | None:
    """Return what TLS needs, from the Secrets that the connection names.

    Raises:
        Refusal: one is missing, or an entry of it.
    """
    tls = connection.spec.tls
    if tls is None:
        return None
    ca = cert = private = None
    if tls.ca_secret_ref is not None:
        name, field = tls.ca_secret_ref.name, "tls.caSecretRef"
        entries = await secret_entries(context, key.namespace, name, field)
        ca = entry(entries, tls.ca_secret_ref.effective_key, key.namespace, name, field).encode()
    if tls.client_cert_secret_ref is not None:
        name, field = tls.client_cert_secret_ref.name, "tls.clientCertSecretRef"
        entries = await secret_entries(context, key.namespace, name, field)
        cert = entry(entries, "tls.crt", key.namespace, name, field).encode()
        private = entry(entries, "tls.key", key.namespace, name, field).encode()
    return Tls(ca=ca, cert=cert, key=private, server_name=tls.server_name)

"""CoordinationClient: an ACL user with exactly the rights of its grants, and the binding Secret that carries its login.

The order is always: finalizer, then the user in Redis, then the Secret; a password that a pod can read already works.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from streamhold_operator.adapters.kube import FINALIZER
from streamhold_operator.adapters.redis import AdminTarget
from streamhold_operator.api import CoordinationClient, RedisConnection
from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.redisconnection import AccessMode
from streamhold_operator.domain import client as domain
from streamhold_operator.domain.acl import AclAbilities
from streamhold_operator.domain.binding import BindingConnection, binding_data
from streamhold_operator.domain.connection import parse_endpoint
from streamhold_operator.domain.outcome import Outcome, Refusal
from streamhold_operator.reconcile import binding
from streamhold_operator.reconcile.base import (
    DONE,
    Again,
    Context,
    Vanished,
    connection_for,
    keep_finalizer,
    namespace_ends,
    publish,
)
from streamhold_operator.reconcile.grants import Grants, resolve
from streamhold_operator.reconcile.password import Password, Rotation, choose, kept_password
from streamhold_operator.reconcile.removal import Removal, finish
from streamhold_operator.reconcile.secrets import entry, secret_entries
from streamhold_operator.reconcile.sessions import NOT_TRIED, Interest, Session
from streamhold_operator.reconcile.settling import applied, release, release_gone, settle
from streamhold_operator.store import Key, Raw

SHARE = 0.8
"""Of the resync interval, after which to look at a Secret again: the interval is a promise of when a change is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """As whom the client logs in."""

    username: str
    password: Password
    outcome: Outcome
    problem: Refusal | None = None
    """Why it is not the login that was asked for; the one before is kept."""


async def reconcile(context: Context, key: Key) -> Again:
    """Bring a client to what its object says.

    Raises:
        Refusal: something stands in the way; the caller says so in the status.
    """
    raw = context.store.get(key)
    if raw is None:
        await release_gone(context, key)
        return DONE
    client = CoordinationClient.parse(raw)
    if client.metadata.is_deleting:
        return await _delete(context, key, raw, client)
    if client.spec.suspend:
        message = "The ACL user and the Secret are left as they are while spec.suspend is true"
        outcome = Outcome(ready=False, reason=Reason.SUSPENDED, message=message, status=kept_status(client))
        await publish(context, key, raw, outcome, generation=client.metadata.generation)
        return DONE
    connection, session = await _connection(context, key, client)
    grants = resolve(context, key, client, connection, session)
    if grants.problem is not None and (grants.problem.retry_after is not None or client.status.binding is None):
        raise grants.problem
    return await _provide(context, key, raw, client, connection, session, grants)


async def _provide(
    context: Context,
    key: Key,
    raw: Raw,
    client: CoordinationClient,
    connection: RedisConnection,
    session: Session,
    grants: Grants,
) -> Again:
    """Have the login and the binding Secret, and say so."""
    found = await binding.find(context, key, client)
    username = client.spec.effective_username(key.namespace, key.name)
    if found.taken is not None and not kept_password(found.source, username):
        raise found.taken
    if connection.spec.access is AccessMode.SHARED:
        login = await _shared_login(context, key, connection)
    else:
        raw = await keep_finalizer(context, raw, wanted=True)
        login = await _own_login(context, key, client, session, grants, found)
    outcome = login.outcome
    if outcome.ready:
        # Whatever is wrong besides: rights that were withdrawn are gone by now.
        repairs = () if found.taken else await _bind(context, key, client, session, grants, login, found)
        outcome = replace(outcome, repairs=outcome.repairs + repairs)
        if connection.spec.access is AccessMode.SHARED:
            raw, warnings = await _without_own_user(context, key, raw, client, session)
            outcome = replace(outcome, warnings=outcome.warnings + warnings)
        problem = found.taken or login.problem or grants.problem
        if problem is not None:
            refused = Outcome.refused(problem, status=outcome.status)
            outcome = replace(refused, repairs=outcome.repairs, warnings=outcome.warnings)
    bound = {} if found.taken else _binding_status(client, login)
    outcome = replace(outcome, status={**kept_status(client), **bound, **outcome.status})
    await publish(context, key, raw, outcome, generation=client.metadata.generation)
    if outcome.retry_after is not None:
        return Again(outcome.retry_after, failed=True)
    return _look_again(context, client, login)


async def _delete(context: Context, key: Key, raw: Raw, client: CoordinationClient) -> Again:
    """Delete the binding Secret and the user, then let the client go."""
    username = client.spec.effective_username(key.namespace, key.name)
    removal = Removal(what=f"the ACL user {username!r}", remove=lambda *found: _remove(context, key, client, found[1]))
    # With a namespace goes every Secret in it, and maybe our right to delete them.
    secrets = [] if context.store.terminating(key.namespace) else context.store.secrets_of(key, client.metadata.uid)
    for name, seen in secrets:
        await context.kube.delete_secret(key.namespace, name, seen.uid)
    return await finish(context, key, raw, removal)


def _look_again(context: Context, client: CoordinationClient, login: Login) -> Again:
    """Return when the password changes next, or may have been changed in a Secret that is not watched."""
    times = [] if login.password.next_change is None else [login.password.next_change]
    if client.spec.password_secret_ref is not None:
        times.append(context.settings.resync_interval * SHARE)
    return Again(min(times, default=None))


def kept_status(client: CoordinationClient) -> dict[str, object]:
    """Return what the status says of Redis and the Secret: it stays true while nothing is changed there."""
    status = client.status.to_dict()
    return {name: value for name, value in status.items() if name not in ("conditions", "observedGeneration")}


def _binding_status(client: CoordinationClient, login: Login) -> dict[str, object]:
    if not login.outcome.ready:
        return {}
    return {"binding": {"name": client.spec.effective_secret_name(client.metadata.name)}, "username": login.username}


async def _connection(context: Context, key: Key, client: CoordinationClient) -> tuple[RedisConnection, Session]:
    """Return the connection and its session; take the user away where the client may not use it any more."""
    reference = context.store.connection_of(key)
    assert reference is not None  # the schema requires connectionRef
    try:
        return connection_for(context, key, reference)
    except Refusal as refusal:
        session = context.sessions.get(reference)
        if refusal.reason == Reason.CONNECTION_NOT_ALLOWED and session is not None and session.usable:
            await _remove(context, key, client, session)
        raise


async def _own_login(
    context: Context,
    key: Key,
    client: CoordinationClient,
    session: Session,
    grants: Grants,
    found: binding.Found,
) -> Login:
    """Have the client's ACL user with its rights and passwords."""
    username = client.spec.effective_username(key.namespace, key.name)
    if session.facts is None:
        raise session.refusal or NOT_TRIED  # its connection has changed since this pass began
    abilities = session.facts.abilities
    imported, problem = None, None
    try:
        imported = await _imported(context, key, client)
    except Refusal as refusal:
        if not kept_password(found.source, username):
            raise
        problem = refusal
    password = choose(
        found.source,
        username=username,
        imported=imported,
        rotation=_rotation(client),
        now=context.clock().astimezone(datetime.UTC),
    )
    want = domain.Want.of(
        client,
        cluster=context.cluster,
        topics=grants.topics,
        leases=grants.leases,
        passwords=password.accepted,
        database=session.admin.target.database if session.admin is not None else 0,
    )
    settled = await settle(
        context,
        session,
        users=(username,),
        observed=lambda snapshot: domain.Observed(
            owners=snapshot.owners, user=snapshot.users[username], abilities=abilities, alive=context.store.uids()
        ),
        plan=lambda have: domain.plan(want, have),
    )
    outcome = domain.conclude(want, settled.todo, settled.failure)
    before = session.interests.get(key)
    seen_before = before.user if before is not None else None
    if settled.have.user is not None and seen_before in (None, settled.have.user):
        outcome = replace(outcome, repairs=())  # the wish has changed, not the user, as far as is known
    if settled.failure is None:
        holder = settled.have.owners.holder(want.record)
        foreign = settled.todo.refusal is not None
        session.interests[key] = Interest(
            record=want.record,
            holder=holder.field if holder is not None else None,
            username=username,
            user=settled.have.user if foreign else want.rule(abilities),
        )
    outcome = replace(outcome, warnings=outcome.warnings + settled.warnings)
    return Login(username=username, password=password, outcome=outcome, problem=problem)


async def _shared_login(context: Context, key: Key, connection: RedisConnection) -> Login:
    """Take the login that all clients of the connection share."""
    reference = connection.spec.shared_secret_ref
    assert reference is not None  # the schema requires it for access Shared
    namespace, field = connection.metadata.namespace, "sharedSecretRef"
    entries = await secret_entries(context, namespace, reference.name, field)
    text = entry(entries, reference.effective_password_key, namespace, reference.name, field)
    username = "default"
    if reference.username_key is not None or reference.effective_username_key in entries:
        username = entry(entries, reference.effective_username_key, namespace, reference.name, field)
    password = Password(text=text, accepted=(), annotations={}, next_change=context.settings.resync_interval * SHARE)
    message = f"The client shares the login of {connection.metadata.name!r} as the user {username!r}"
    outcome = Outcome(ready=True, reason=Reason.READY, message=message, status={"username": username})
    return Login(username=username, password=password, outcome=outcome)


async def _without_own_user(
    context: Context, key: Key, raw: Raw, client: CoordinationClient, session: Session
) -> tuple[Raw, tuple[str, ...]]:
    """Remove the user that the client had before its connection became shared; return what to warn of."""
    if FINALIZER not in (raw["metadata"].get("finalizers") or ()):
        return raw, ()
    warnings: tuple[str, ...] = ()
    try:
        await _remove(context, key, client, session)
    except Refusal as refusal:
        warnings = (f"The ACL user of before the connection was shared is left behind: {refusal.message}",)
    return await keep_finalizer(context, raw, wanted=False), warnings


async def _bind(
    context: Context,
    key: Key,
    client: CoordinationClient,
    session: Session,
    grants: Grants,
    login: Login,
    found: binding.Found,
) -> tuple[str, ...]:
    """Have the binding Secret say how to log in and what is granted; return what was put right."""
    if session.admin is None:
        raise session.refusal or NOT_TRIED  # its connection has changed since this pass began
    data = binding_data(
        namespace=key.namespace,
        client=key.name,
        username=login.username,
        password=login.password.text,
        connection=_seen_by_pods(session.admin.target, session),
        topics=grants.topics,
        leases=grants.leases,
    )
    wanted = binding.body(client, data, login.password.annotations, found.secret)
    repairs: tuple[str, ...] = ()
    if found.secret is None or binding.differs(found.secret, wanted):
        if found.secret is not None and found.secret.get("immutable"):
            raise binding.fixed(key, wanted["metadata"]["name"])
        if found.secret is None and await namespace_ends(context, key.namespace):
            raise Vanished
        context.metrics.api_writes.labels("secret").inc()
        written = await context.kube.apply_secret(wanted)
        if written is None:
            raise binding.foreign(key, wanted["metadata"]["name"])
        context.store.remember(written, ours=True)
        if found.source is None and client.status.binding is not None:
            repairs = (f"The binding Secret {wanted['metadata']['name']!r} was gone and is back with a new password",)
    if found.earlier is not None:
        metadata = found.earlier["metadata"]
        await context.kube.delete_secret(key.namespace, metadata["name"], metadata["uid"])
    return repairs


def _seen_by_pods(target: AdminTarget, session: Session) -> BindingConnection:
    assert session.connection is not None  # set by the connection's pass
    return BindingConnection(
        endpoints=tuple(parse_endpoint(endpoint) for endpoint in session.connection.spec.endpoints),
        topology=target.topology,
        database=target.database,
        tls=target.tls is not None,
        server_name=target.tls.server_name if target.tls is not None else None,
        ca=target.tls.ca if target.tls is not None else None,
    )


async def _imported(context: Context, key: Key, client: CoordinationClient) -> str | None:
    reference = client.spec.password_secret_ref
    if reference is None:
        return None
    entries = await secret_entries(context, key.namespace, reference.name, "passwordSecretRef")
    return entry(entries, reference.effective_key, key.namespace, reference.name, "passwordSecretRef")


def _rotation(client: CoordinationClient) -> Rotation | None:
    rotation = client.spec.rotation
    return None if rotation is None else Rotation(every=rotation.every_ms / 1000, overlap=rotation.overlap_ms / 1000)


async def _remove(context: Context, key: Key, client: CoordinationClient, session: Session) -> None:
    """Take the user and the claim away; nothing is asked of a server that never heard of the client.

    Raises:
        Refusal: the server could not be reached, or refused.
    """
    want = domain.Want.of(client, cluster=context.cluster)
    if want.record.field not in session.owners.records and session.usable and not client.metadata.is_deleting:
        return
    snapshot = await session.observe({}, (want.username,))
    abilities = session.facts.abilities if session.facts is not None else AclAbilities(selectors=False)
    have = domain.Observed(owners=snapshot.owners, user=snapshot.users[want.username], abilities=abilities)
    for result in await applied(context, session, domain.plan_removal(want, have).actions):
        if result.failure is not None:
            raise result.failure
    session.take(session.owners.without(want.record.field))
    await release(context, session, key, want.record.field)

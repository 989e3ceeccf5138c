"""StreamTopic: claim the key, provision the groups, say where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamhold_operator.adapters.redis import Snapshot
from streamhold_operator.api import RedisConnection, StreamTopic
from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.streamtopic import TopicDeletion
from streamhold_operator.domain import topic as domain
from streamhold_operator.domain.actions import CreateGroup
from streamhold_operator.domain.outcome import Outcome
from streamhold_operator.reconcile.base import (
    DONE,
    Again,
    Context,
    connection_for,
    keep_finalizer,
    publish,
)
from streamhold_operator.reconcile.removal import Removal, finish
from streamhold_operator.reconcile.sessions import Interest, Session, stream_state
from streamhold_operator.reconcile.settling import Settled, applied, release, release_gone, settle
from streamhold_operator.store import Key


async def reconcile(context: Context, key: Key) -> Again:
    """Bring a topic to what its object says.

    Raises:
        Refusal: something stands in the way; the caller says so in the status.
    """
    raw = context.store.get(key)
    if raw is None:
        await release_gone(context, key)
        return DONE
    topic = StreamTopic.parse(raw)
    if topic.metadata.is_deleting:
        removal = Removal(what="its stream", remove=lambda *found: _remove(context, key, topic, *found))
        return await finish(context, key, raw, removal)
    if topic.spec.suspend:
        message = "Nothing is changed in Redis for this topic while spec.suspend is true"
        outcome = Outcome(ready=False, reason=Reason.SUSPENDED, message=message, status=kept_status(topic))
        await publish(context, key, raw, outcome, generation=topic.metadata.generation)
        return DONE
    delete = topic.spec.deletion_policy is TopicDeletion.DELETE
    if not delete:
        raw = await keep_finalizer(context, raw, wanted=False)
    reference = context.store.connection_of(key)
    assert reference is not None  # the schema requires connectionRef
    connection, session = connection_for(context, key, reference)
    if delete:
        raw = await keep_finalizer(context, raw, wanted=True)
    want = want_of(context, key, topic, connection)
    settled = await settle(
        context,
        session,
        streams=_streams(want),
        observed=lambda snapshot: _observed(want, topic, snapshot),
        plan=lambda have: domain.plan(want, have),
    )
    outcome = domain.conclude(want, settled.have, settled.todo, settled.failure)
    status = {**kept_status(topic), **outcome.status, "effectiveName": want.topic + ("*" if want.family else "")}
    outcome = replace(outcome, status=status, warnings=outcome.warnings + settled.warnings)
    if settled.failure is None:
        session.interests[key] = _interest(want, settled)
    await publish(context, key, raw, outcome, generation=topic.metadata.generation)
    return Again(outcome.retry_after, failed=not outcome.ready) if outcome.retry_after is not None else DONE


def want_of(context: Context, key: Key, topic: StreamTopic, connection: RedisConnection) -> domain.Want:
    """Return what a topic asks for, in the words of the domain."""
    prefix = connection.spec.effective_key_prefix(key.namespace)
    return domain.Want.of(topic, prefix=prefix, cluster=context.cluster)


def _streams(want: domain.Want) -> Mapping[str, frozenset[str]]:
    """Return what to look at: nothing for a family, whose streams come and go."""
    return {} if want.family else {want.key: frozenset(group.name for group in want.spec.groups)}


def kept_status(topic: StreamTopic) -> dict[str, object]:
    """Return what the status says of Redis: it stays true while nothing is changed there."""
    status = topic.status.to_dict()
    return {name: value for name, value in status.items() if name not in ("conditions", "observedGeneration")}


def _observed(want: domain.Want, topic: StreamTopic, snapshot: Snapshot) -> domain.Observed:
    stream = domain.StreamState() if want.family else snapshot.streams[want.key]
    same = topic.status.stream_key in (None, want.key)
    provisioned = frozenset(topic.status.groups if same else ())  # at another key there was nothing yet
    return domain.Observed(owners=snapshot.owners, stream=stream, provisioned=provisioned)


def _interest(want: domain.Want, settled: Settled[domain.Observed, domain.Plan]) -> Interest:
    holder = settled.have.owners.holder(want.record)
    stream = None
    if holder is None and not want.family:
        kind, groups = stream_state(settled.have.stream)
        created = {action.group for action in settled.todo.actions if isinstance(action, CreateGroup)}
        stream = ("stream" if created else kind, groups | created)
    return Interest(
        record=want.record,
        holder=holder.field if holder is not None else None,
        stream_key=want.key if stream is not None else None,
        groups=frozenset(group.name for group in want.spec.groups),
        stream=stream,
    )


async def _remove(
    context: Context, key: Key, topic: StreamTopic, connection: RedisConnection, session: Session
) -> None:
    want = want_of(context, key, topic, connection)
    snapshot = await session.observe(_streams(want))
    todo = domain.plan_removal(want, _observed(want, topic, snapshot))
    for result in await applied(context, session, todo.actions):
        if result.failure is not None:
            raise result.failure
    await release(context, session, key, want.record.field)

"""Resolve what a client asks for: its topics and lease policies, as far as it may have them now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamhold_operator.api import CoordinationClient, LeasePolicy, RedisConnection, StreamTopic
from streamhold_operator.api.base import AllowedNamespaces, Condition
from streamhold_operator.api.conditions import Reason, find
from streamhold_operator.domain.claims import OwnerRecord
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.reconcile import lease, topic
from streamhold_operator.reconcile.base import Context
from streamhold_operator.reconcile.sessions import Session
from streamhold_operator.store import LEASE, TOPIC, Key

SETTLED = (Reason.SUSPENDED, Reason.CONNECTION_NOT_ALLOWED, Reason.CONFLICT, Reason.WRONG_TYPE)
"""Reasons for which an object has no claim and gets none by itself: nothing to wait for."""
FINE = (Reason.READY, Reason.SUSPENDED, Reason.CONNECTION_NOT_READY, Reason.CONNECTION_NOT_FOUND)
"""Reasons with which an object that holds its keys is used: its connection is the client's, and that is usable now."""
UNDECIDED = 1.0
"""Seconds after which to look again at what has not been decided yet."""
_TOLD = 3
"""How many problems a message tells; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grants:
    """What a client gets now."""

    topics: tuple[TopicGrant, ...]
    leases: tuple[LeaseGrant, ...]
    problem: Refusal | None
    """Why it does not get all it asked for; with `retry_after` when that is not decided yet."""


@dataclass(frozen=True, slots=True)
class _Words:
    """How messages of one kind say it."""

    kind: str
    not_found: Reason
    not_allowed: Reason
    not_ready: Reason


_TOPIC = _Words(TOPIC, Reason.TOPIC_NOT_FOUND, Reason.TOPIC_NOT_ALLOWED, Reason.TOPIC_NOT_READY)
_LEASE = _Words(LEASE, Reason.LEASE_POLICY_NOT_FOUND, Reason.LEASE_POLICY_NOT_ALLOWED, Reason.LEASE_POLICY_NOT_READY)


def resolve(
    context: Context, key: Key, client: CoordinationClient, connection: RedisConnection, session: Session
) -> Grants:
    """Return what the client gets: everything that is there, allowed, and held by its own object."""
    topics: list[TopicGrant] = []
    leases: list[LeaseGrant] = []
    problems: list[Refusal] = []
    for wanted in client.spec.topics:
        target = Key(TOPIC, wanted.namespace_from(key.namespace), wanted.name)
        found = context.store.get(target)
        parsed = StreamTopic.parse(found) if found is not None else None
        rule = parsed.spec.allowed_namespaces if parsed is not None else None
        refusal = _usable(context, key, target, rule, _TOPIC)
        if parsed is not None and refusal is None:
            want = topic.want_of(context, target, parsed, connection)
            held, refusal = _held(session, target, want.record, parsed.status.conditions, _TOPIC)
            if held:
                topics.append(TopicGrant.of(parsed, prefix=want.prefix, access=frozenset(wanted.access)))
        problems += [refusal] if refusal is not None else []
    for asked in client.spec.leases:
        target = Key(LEASE, asked.namespace_from(key.namespace), asked.name)
        found = context.store.get(target)
        policy = LeasePolicy.parse(found) if found is not None else None
        rule = policy.spec.allowed_namespaces if policy is not None else None
        refusal = _usable(context, key, target, rule, _LEASE)
        if policy is not None and refusal is None:
            family = lease.want_of(context, target, policy, connection)
            held, refusal = _held(session, target, family.record, policy.status.conditions, _LEASE)
            if held:
                leases.append(LeaseGrant.of(policy, prefix=family.prefix))
        problems += [refusal] if refusal is not None else []
    return Grants(topics=tuple(topics), leases=tuple(leases), problem=together(problems))


def _usable(context: Context, key: Key, target: Key, rule: AllowedNamespaces | None, words: _Words) -> Refusal | None:
    at = f"{words.kind} {target.namespace}/{target.name}"
    if rule is None:
        return Refusal(words.not_found, f"There is no {at}; create it, or take it out of this client's spec")
    seen = context.store.namespace(key.namespace)
    labels: Mapping[str, str] = seen.labels if seen is not None else {}
    if not rule.allows(target.namespace, key.namespace, labels):
        return Refusal(
            words.not_allowed,
            f"{at} does not allow the namespace {key.namespace}; have its owner list it in spec.allowedNamespaces",
        )
    if context.store.connection_of(target) != context.store.connection_of(key):
        return Refusal(
            words.not_allowed,
            f"{at} is on another RedisConnection than this client; use a client for each connection",
        )
    return None


def _held(
    session: Session, target: Key, record: OwnerRecord, conditions: tuple[Condition, ...], words: _Words
) -> tuple[bool, Refusal | None]:
    """Return whether the object holds its keys, and what is wrong with it otherwise."""
    ready = find(conditions, "Ready")
    reason = ready.reason if ready is not None else Reason.PROGRESSING
    message = ready.message if ready is not None else "it has not been looked at yet"
    registered = session.owners.registered(record)
    refusal = Refusal(
        words.not_ready,
        f"{words.kind} {target.namespace}/{target.name} is not ready: {reason}: {message}",
        retry_after=None if reason in SETTLED or (registered and ready is not None) else UNDECIDED,
    )
    if not registered or session.owners.holder(record) is not None:
        return False, refusal
    return True, None if reason in FINE else refusal


def together(problems: list[Refusal]) -> Refusal | None:
    """Return one refusal that tells the problems: the first few, and how many more there are; undecided if one is."""
    if not problems:
        return None
    ordered = sorted(problems, key=lambda problem: problem.retry_after is None)  # the undecided ones first
    told = [problem.message for problem in ordered[:_TOLD]]
    if len(problems) > _TOLD:
        told.append(f"and {len(problems) - _TOLD} more")
    return Refusal(ordered[0].reason, "; ".join(told), retry_after=ordered[0].retry_after)

"""LeasePolicy: claim the family of lease keys; the leases themselves are made by the library."""

from __future__ import annotations

from dataclasses import replace

from streamhold_operator.api import LeasePolicy, RedisConnection
from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain import lease as domain
from streamhold_operator.domain.outcome import Outcome
from streamhold_operator.reconcile.base import DONE, Again, Context, connection_for, publish
from streamhold_operator.reconcile.sessions import Interest
from streamhold_operator.reconcile.settling import release_gone, settle
from streamhold_operator.store import Key


async def reconcile(context: Context, key: Key) -> Again:
    """Bring a lease policy to what its object says.

    Raises:
        Refusal: something stands in the way; the caller says so in the status.
    """
    raw = context.store.get(key)
    if raw is None:
        await release_gone(context, key)
        return DONE
    policy = LeasePolicy.parse(raw)
    if policy.metadata.is_deleting:
        return DONE
    generation = policy.metadata.generation
    if policy.spec.suspend:
        message = "Nothing is changed in Redis for this policy while spec.suspend is true"
        kept = {"keyPrefix": policy.status.key_prefix} if policy.status.key_prefix else {}
        outcome = Outcome(ready=False, reason=Reason.SUSPENDED, message=message, status=kept)
        await publish(context, key, raw, outcome, generation=generation)
        return DONE
    reference = context.store.connection_of(key)
    assert reference is not None  # the schema requires connectionRef
    connection, session = connection_for(context, key, reference)
    want = want_of(context, key, policy, connection)
    settled = await settle(
        context,
        session,
        observed=lambda snapshot: domain.Observed(owners=snapshot.owners),
        plan=lambda have: domain.plan(want, have),
    )
    outcome = domain.conclude(want, settled.todo, settled.failure)
    if settled.failure is None:
        holder = settled.have.owners.holder(want.record)
        session.interests[key] = Interest(record=want.record, holder=holder.field if holder is not None else None)
    outcome = replace(outcome, warnings=outcome.warnings + settled.warnings)
    await publish(context, key, raw, outcome, generation=generation)
    return Again(outcome.retry_after, failed=True) if outcome.retry_after is not None else DONE


def want_of(context: Context, key: Key, policy: LeasePolicy, connection: RedisConnection) -> domain.Want:
    """Return what a policy asks for, in the words of the domain."""
    prefix = connection.spec.effective_key_prefix(key.namespace)
    return domain.Want.of(policy, prefix=prefix, cluster=context.cluster)

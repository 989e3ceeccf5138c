"""CoordinationClient: its ACL user, with exactly the rights of its grants.

A user that exists and does not carry this client's marker is somebody else's: it is never changed and never deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.coordinationclient import CoordinationClient
from streamhold_operator.domain.acl import MARKER_PREFIX, AclAbilities, UserRule, client_rule, owner_marker
from streamhold_operator.domain.actions import Action, DeleteUser, RegisterClaim, RemoveClaim, SetUser
from streamhold_operator.domain.claims import Claim, OwnerRecord, Owners, user_claim
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant
from streamhold_operator.domain.outcome import Outcome, Refusal

__all__ = [
    "NOBODYS",
    "Observed",
    "Plan",
    "Want",
    "claims",
    "conclude",
    "password_digest",
    "plan",
    "plan_removal",
]


NOBODYS = "default"
"""The user that every server has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """What a CoordinationClient asks for."""

    record: OwnerRecord
    """With the claims from `claims`."""
    username: str
    topics: tuple[TopicGrant, ...] = ()
    leases: tuple[LeaseGrant, ...] = ()
    passwords: tuple[str, ...] = ()
    """`password_digest` of each password that shall work."""
    database: int = 0
    provisioned: bool = False
    """Whether the status says that the user was there before: its absence is a drift, not a beginning."""

    @classmethod
    def of(
        cls,
        client: CoordinationClient,
        *,
        cluster: str,
        topics: tuple[TopicGrant, ...] = (),
        leases: tuple[LeaseGrant, ...] = (),
        passwords: tuple[str, ...] = (),
        database: int = 0,
    ) -> Self:
        """Return what a CoordinationClient asks for, with its references resolved."""
        metadata = client.metadata
        username = client.spec.effective_username(metadata.namespace, metadata.name)
        return cls(
            record=OwnerRecord.of(client, cluster=cluster, claims=claims(username)),
            username=username,
            topics=topics,
            leases=leases,
            passwords=passwords,
            database=database,
            provisioned=client.status.username == username,
        )

    @property
    def marker(self) -> str:
        """The ownership marker in the user's rule."""
        return owner_marker(self.record.cluster, self.record.uid)

    def rule(self, abilities: AclAbilities) -> UserRule:
        """Return the rule the user shall have."""
        return client_rule(
            marker=self.marker,
            topics=self.topics,
            leases=self.leases,
            passwords=self.passwords,
            abilities=abilities,
            database=self.database,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is there."""

    owners: Owners
    user: UserRule | None
    """None: no such user."""
    abilities: AclAbilities
    alive: Collection[str] = ()
    """Uids of the objects of this cluster: a user of one of them is not left behind, wherever its claim is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do."""

    actions: tuple[Action, ...] = ()
    again: bool = False
    """Observe and plan once more after these: a claim is decided only after it was registered."""
    refusal: Refusal | None = None
    repairs: tuple[str, ...] = ()
    """What the actions put right that had been there before."""


def claims(username: str) -> tuple[Claim, ...]:
    """Return what a client claims: its user."""
    return (user_claim(username),)


def password_digest(password: str) -> str:
    """Return a password as an ACL rule holds it."""
    return hashlib.sha256(password.encode()).hexdigest()


def plan(want: Want, have: Observed) -> Plan:
    """Return the steps that bring `have` to `want`; none when nothing is to be done."""
    if want.username == NOBODYS:
        return Plan(refusal=_foreign(want, "is the one that every server has"))
    if not have.owners.registered(want.record):
        return Plan(actions=(RegisterClaim(want.record),), again=True)
    holder = have.owners.holder(want.record)
    if holder is not None:
        return Plan(
            refusal=Refusal(
                Reason.CONFLICT,
                f"The ACL user {want.username!r} belongs to {holder.told(cluster=want.record.cluster)}, which is older;"
                " this client takes over by itself when that one is deleted, or set another spec.username in a new one",
            )
        )
    if have.user is not None and not _ours(want, have.user, have):
        return Plan(refusal=_foreign(want, "exists on the server and was not made for this client"))
    rule = want.rule(have.abilities)
    if have.user == rule:
        return Plan()
    return Plan(actions=(SetUser(username=want.username, rule=rule),), repairs=_repairs(want, have.user, rule))


def _ours(want: Want, user: UserRule, have: Observed) -> bool:
    """Whether the user is this client's, one that a client of this cluster left behind, or one won from a younger."""
    if user.carries(want.marker):
        return True
    local = owner_marker(want.record.cluster, "")
    fields = [marker.removeprefix(MARKER_PREFIX) for marker in user.markers if marker.startswith(local)]
    free = all(_is_free(want, field, have) for field in fields)
    return bool(fields) and len(fields) == len(user.markers) and free


def _is_free(want: Want, field: str, have: Observed) -> bool:
    """Whether the client with this field in the owner record gives way. Users are one for all databases of a server."""
    record = have.owners.records.get(field)
    if record is not None:
        return user_claim(want.username) in record.claims  # it lost: ours is the claim that holds
    return field.partition("/")[2] not in have.alive


def _repairs(want: Want, found: UserRule | None, rule: UserRule) -> tuple[str, ...]:
    if not want.provisioned:
        return ()
    if found is None:
        return (f"The ACL user {want.username!r} was gone and is back",)
    if found.flags or (found.root, found.selectors) != (rule.root, rule.selectors):
        return (f"The ACL user {want.username!r} had other rights than its grants and has them again",)
    return ()


def plan_removal(want: Want, have: Observed) -> Plan:
    """Return the steps after which the object leaves no user and no claim behind."""
    actions: list[Action] = []
    if have.user is not None and have.user.carries(want.marker):
        actions.append(DeleteUser(username=want.username, marker=want.marker))
    field = want.record.field
    if field in have.owners.records or field in have.owners.unreadable:
        actions.append(RemoveClaim(field))
    return Plan(actions=tuple(actions))


def conclude(want: Want, todo: Plan, failure: Refusal | None = None) -> Outcome:
    """Return what the status shall say, `failure` being the first action that failed."""
    status = {"username": want.username}
    refusal = todo.refusal or failure
    if refusal is not None:
        return Outcome.refused(refusal, status=status)
    message = (
        f"The ACL user {want.username!r} has the rights of {_count(len(want.topics), 'topic')}"
        f" and {_count(len(want.leases), 'lease policy', 'lease policies')}"
    )
    return Outcome(ready=True, reason=Reason.READY, message=message, status=status, repairs=todo.repairs)


def _foreign(want: Want, why: str) -> Refusal:
    return Refusal(
        Reason.CONFLICT,
        f"The ACL user {want.username!r} {why}, so it is left alone; declare a client with another spec.username,"
        f" or remove that user (ACL DELUSER {want.username})",
    )


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number} {one}" if number == 1 else f"{number} {many or one + 's'}"

"""What a client's ACL user needs, and the rule it gets."""

from __future__ import annotations

from typing import Any

import pytest

from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.acl import AclAbilities, Rights, UserRule, client_rule, owner_marker
from streamhold_operator.domain.actions import DeleteUser, RegisterClaim, RemoveClaim, SetUser
from streamhold_operator.domain.claims import Owners
from streamhold_operator.domain.client import Observed, Plan, Want, conclude, password_digest, plan, plan_removal
from streamhold_operator.domain.outcome import Refusal
from support.operator_objects import CLUSTER, a_client, lease_grant, topic_grant

SELECTORS = AclAbilities(selectors=True, client_setinfo=True)
FLAT = AclAbilities(selectors=False)


def want(provisioned: bool = False, **rest: Any) -> Want:
    return Want.of(
        a_client(provisioned=provisioned, **rest),
        cluster=CLUSTER,
        topics=(topic_grant("orders", "Publish"),),
        leases=(lease_grant("jobs/"),),
        passwords=(password_digest("secret"),),
    )


def owned(client: Want, user: UserRule | None, *others: Want) -> Observed:
    owners = Owners([client.record, *(other.record for other in others)])
    return Observed(owners=owners, user=user, abilities=SELECTORS)


def a_user(*markers: str, **rest: Any) -> UserRule:
    return UserRule(enabled=True, passwords=frozenset(), root=Rights(channels=frozenset(markers)), **rest)


def test_a_claim_comes_first_then_the_user() -> None:
    client = want()
    have = Observed(owners=Owners(), user=None, abilities=SELECTORS)
    assert plan(client, have) == Plan(actions=(RegisterClaim(client.record),), again=True)
    assert plan(client, owned(client, None)) == Plan(
        actions=(SetUser(username="shop.checkout", rule=client.rule(SELECTORS)),)
    )
    assert plan(client, owned(client, client.rule(SELECTORS))) == Plan()


def test_a_password_is_kept_as_its_digest() -> None:
    client = want()
    assert client.rule(SELECTORS).passwords == {"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"}
    assert "secret" not in " ".join(client.rule(SELECTORS).tokens())


@pytest.mark.parametrize(
    ("found", "told"),
    [(None, "gone"), (a_user(), None), ("flags", "other rights"), ("passwords", None), ("rights", "other rights")],
)
def test_a_drift_is_told_if_the_user_was_there_before(found: Any, told: str | None) -> None:
    client = want(provisioned=True)
    rule = client.rule(SELECTORS)
    changed = {
        "flags": UserRule(
            enabled=True,
            passwords=rule.passwords,
            root=rule.root,
            selectors=rule.selectors,
            flags=frozenset({"nopass"}),
        ),
        "passwords": UserRule(enabled=True, passwords=frozenset(), root=rule.root, selectors=rule.selectors),
        "rights": UserRule(enabled=True, passwords=rule.passwords, root=rule.root),
    }
    user = changed[found] if isinstance(found, str) else found
    todo = plan(client, owned(client, user))
    if isinstance(found, UserRule):
        assert todo.refusal is not None  # not ours at all
        return
    assert todo.actions == (SetUser(username="shop.checkout", rule=rule),)
    assert bool(todo.repairs) == (told is not None)
    assert told is None or told in todo.repairs[0]
    assert plan(want(), owned(want(), None)).repairs == ()


def test_a_user_of_somebody_else_is_a_conflict() -> None:
    client = want()
    for markers in ((), (owner_marker("far", "gone"),), (owner_marker(CLUSTER, "gone"), owner_marker("far", "x"))):
        todo = plan(client, owned(client, a_user(*markers)))
        assert todo.actions == ()
        assert todo.refusal is not None
        assert todo.refusal.reason == Reason.CONFLICT
        assert "ACL DELUSER shop.checkout" in todo.refusal.message
        assert plan_removal(client, owned(client, a_user(*markers))).actions == (RemoveClaim(client.record.field),)


def test_a_user_that_a_gone_client_of_this_cluster_left_is_taken_over() -> None:
    client, other = want(), want()
    left = a_user(owner_marker(CLUSTER, other.record.uid))
    assert plan(client, owned(client, left)).actions == (
        SetUser(username="shop.checkout", rule=client.rule(SELECTORS)),
    )
    another = Want.of(a_client("third", uid=other.record.uid), cluster=CLUSTER)
    assert plan(client, owned(client, left, another)).refusal is not None


def test_two_clients_with_one_username_conflict() -> None:
    first, second = want(username="app"), want(username="app")
    todo = plan(second, owned(second, first.rule(SELECTORS), first))
    assert todo.refusal is not None
    assert "CoordinationClient shop/checkout" in todo.refusal.message
    assert plan(first, owned(first, first.rule(SELECTORS), second)) == Plan()


def test_the_default_user_is_nobodys() -> None:
    client = Want(record=want().record, username="default")
    todo = plan(client, owned(client, None))
    assert todo.actions == ()
    assert todo.refusal is not None


def test_removal_takes_its_user_and_its_claim() -> None:
    client = want()
    assert plan_removal(client, owned(client, client.rule(SELECTORS))).actions == (
        DeleteUser(username="shop.checkout", marker=client.marker),
        RemoveClaim(client.record.field),
    )
    assert plan_removal(client, Observed(owners=Owners(), user=None, abilities=SELECTORS)) == Plan()


def test_the_conclusion_counts_what_was_granted() -> None:
    client = want()
    outcome = conclude(client, Plan())
    assert outcome.ready
    assert outcome.message == "The ACL user 'shop.checkout' has the rights of 1 topic and 1 lease policy"
    assert outcome.status == {"username": "shop.checkout"}
    none = conclude(Want(record=client.record, username="u"), Plan())
    assert none.message.endswith("0 topics and 0 lease policies")
    failed = conclude(client, Plan(), Refusal(Reason.SERVER_REFUSED, "no"))
    assert failed.reason == Reason.SERVER_REFUSED


def test_a_rule_with_selectors_keeps_each_kind_of_access_apart() -> None:
    rule = client_rule(
        marker="streamhold:owner:c/u",
        topics=[topic_grant("orders", "Publish"), topic_grant("bills", "Publish")],
        leases=[],
        passwords=["b" * 64, "a" * 64],
        abilities=SELECTORS,
        database=3,
    )
    assert rule.tokens() == (
        "reset",
        "on",
        "#" + "a" * 64,
        "#" + "b" * 64,
        "resetchannels",
        "&streamhold:owner:c/u",
        "-@all",
        *("+auth", "+client|id", "+client|setinfo", "+client|setname", "+discard", "+exec", "+hello", "+multi"),
        *("+ping", "+select", "+wait"),
        "(~streamhold:shop:bills ~streamhold:shop:orders -@all +pexpire +xadd +xlen)",
    )


def test_a_flat_rule_is_the_union_and_names_no_subcommand_twice() -> None:
    rule = client_rule(
        marker="m",
        topics=[topic_grant("orders", "Consume"), topic_grant("bills", "Manage")],
        leases=[lease_grant("jobs/")],
        passwords=[],
        abilities=FLAT,
    )
    assert rule.selectors == frozenset()
    assert {"xgroup", "xinfo", "xreadgroup", "set"} <= rule.root.commands
    assert not any(command.startswith(("xgroup|", "xinfo|")) for command in rule.root.commands)
    assert "~streamhold:shop:orders" in rule.root.keys
    assert "~streamhold:shop:lease:jobs/*" in rule.root.keys


def test_a_rule_without_grants_reaches_no_key() -> None:
    for abilities in (SELECTORS, FLAT):
        empty = client_rule(marker="m", topics=[], leases=[], passwords=[], abilities=abilities)
        assert (empty.root.keys, empty.selectors) == (frozenset(), frozenset())


def test_glob_characters_in_names_are_taken_literally() -> None:
    rule = client_rule(
        marker="m", topics=[topic_grant("a*b", "Publish", prefix="p")], leases=[], passwords=[], abilities=SELECTORS
    )
    (selector,) = rule.selectors
    assert selector.keys == {"~p:a\\*b"}


def test_a_user_that_a_living_client_has_through_another_database_is_left_alone() -> None:
    client, other = want(), want()
    theirs = a_user(owner_marker(CLUSTER, other.record.uid))
    have = Observed(owners=Owners([client.record]), user=theirs, abilities=SELECTORS, alive={other.record.uid})
    assert plan(client, have).refusal is not None
    assert plan(client, have).actions == ()


def test_the_older_of_two_clients_wins_a_user_back_that_the_younger_made_first() -> None:
    first, second = want(username="app"), want(username="app")
    have = Observed(
        owners=Owners([first.record, second.record]),
        user=second.rule(SELECTORS),
        abilities=SELECTORS,
        alive={first.record.uid, second.record.uid},
    )
    assert plan(first, have).actions == (SetUser(username="app", rule=first.rule(SELECTORS)),)

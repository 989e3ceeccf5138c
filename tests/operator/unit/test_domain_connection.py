"""Judging a server, reading endpoints, and the lease policies."""

from __future__ import annotations

import pytest

from streamhold_operator.api.conditions import Reason
from streamhold_operator.api.v1alpha1.redisconnection import Topology
from streamhold_operator.domain import client, lease
from streamhold_operator.domain.acl import AclAbilities
from streamhold_operator.domain.actions import DeleteUser, RegisterClaim, RemoveClaim
from streamhold_operator.domain.claims import Owners
from streamhold_operator.domain.connection import (
    UNKNOWN,
    Endpoint,
    Leftover,
    ServerFacts,
    Want,
    check,
    conclude,
    open_default_user,
    parse_endpoint,
    plan,
)
from streamhold_operator.domain.outcome import Outcome, Refusal
from support.operator_objects import CLUSTER, a_client, a_policy

ENDPOINT = Endpoint("redis", 6379)


def facts(**rest: object) -> ServerFacts:
    base = {
        "product": "Valkey",
        "version": "9.1.2",
        "run_id": "r",
        "role": "master",
        "abilities": AclAbilities(selectors=True, client_setinfo=True),
    }
    return ServerFacts(**{**base, **rest})  # type: ignore[arg-type]


def test_a_master_with_all_rights_is_ready_and_described() -> None:
    outcome = conclude(Want(endpoint=ENDPOINT), facts(acl_file=True))
    assert outcome == Outcome(
        ready=True,
        reason=Reason.READY,
        message="Logged in to Valkey 9.1.2 at redis:6379",
        status={
            "server": {"product": "Valkey", "version": "9.1.2"},
            "nodes": 1,
            "capabilities": ["AclFile", "AclSelectors", "ClientSetInfo"],
        },
    )


def test_a_server_that_does_not_tell_its_version_is_not_called_by_a_product_either() -> None:
    outcome = conclude(Want(endpoint=ENDPOINT), facts(version=UNKNOWN, missing_rights=("INFO",)))
    assert outcome.reason is Reason.MISSING_RIGHTS
    assert "server" not in outcome.status


def test_an_open_default_user_is_a_warning() -> None:
    outcome = conclude(Want(endpoint=ENDPOINT), facts(default_user_open=True))
    assert outcome.ready
    assert outcome.warnings == (open_default_user(ENDPOINT),)


@pytest.mark.parametrize(
    ("changes", "topology", "reason", "told"),
    [
        ({"mode": "cluster"}, "Standalone", "WrongTopology", "Cluster"),
        ({"mode": "sentinel", "role": "sentinel"}, "Standalone", "WrongTopology", "Sentinel"),
        ({"role": "slave", "master": "other:6380"}, "Standalone", "ReadOnly", "replica of other:6380"),
        ({"role": "slave"}, "Standalone", "ReadOnly", "a replica and"),
        ({"missing_rights": ("HSET", "ACL SETUSER")}, "Standalone", "MissingRights", "HSET, ACL SETUSER"),
        ({}, "Sentinel", "TopologyNotSupported", "Sentinel"),
        ({}, "Cluster", "TopologyNotSupported", "Cluster"),
    ],
)
def test_what_makes_a_server_unusable_has_its_own_reason(
    changes: dict[str, object], topology: str, reason: str, told: str
) -> None:
    want = Want(endpoint=ENDPOINT, topology=Topology(topology))
    refusal = check(want, facts(**changes))
    assert refusal is not None
    assert refusal.reason == reason
    assert told in refusal.message
    outcome = conclude(want, facts(**changes))
    assert (outcome.ready, outcome.reason) == (False, reason)
    assert outcome.status["nodes"] == 1


def test_a_failure_before_any_fact_is_told_as_it_is() -> None:
    failure = Refusal(Reason.UNREACHABLE, "gone", retry_after=5.0, warnings=("look",))
    outcome = conclude(Want(endpoint=ENDPOINT), None, failure)
    assert (outcome.reason, outcome.retry_after, outcome.warnings, outcome.status) == (
        "Unreachable",
        5.0,
        ("look",),
        {},
    )
    with pytest.raises(ValueError, match="either facts or a failure"):
        conclude(Want(endpoint=ENDPOINT), None)


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("redis:6379", Endpoint("redis", 6379)),
        ("10.0.0.1:1", Endpoint("10.0.0.1", 1)),
        ("[2001:db8::1]:6380", Endpoint("2001:db8::1", 6380)),
        ("redis", Endpoint("redis", 6379)),
        ("[::1]", Endpoint("::1", 6379)),
    ],
)
def test_endpoints_are_read(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize("text", ["", ":6379", "redis:", "redis:0", "redis:65536", "redis:x", "redis:６３７９"])
def test_other_texts_are_refused_by_name(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        parse_endpoint(text)
    assert repr(text) in caught.value.message


def test_claims_of_gone_objects_are_removed() -> None:
    here = lease.Want.of(a_policy(), prefix="p", cluster=CLUSTER).record
    there = lease.Want.of(a_policy(), prefix="p", cluster="far").record
    owners = Owners([here, there])
    assert plan(owners, cluster=CLUSTER, alive={here.uid}, namespaces=None) == ()
    left = Leftover(users=(), claim=RemoveClaim(here.field))
    assert plan(owners, cluster=CLUSTER, alive=(), namespaces=None) == (left,)
    assert plan(owners, cluster=CLUSTER, alive=(), namespaces=["other"]) == ()


def test_a_gone_client_leaves_no_user_behind() -> None:
    want = client.Want.of(a_client("app", username="shop-app"), cluster=CLUSTER)
    (left,) = plan(Owners([want.record]), cluster=CLUSTER, alive=(), namespaces=None)
    assert left.users == (DeleteUser(username="shop-app", marker=want.marker),)
    assert left.claim == RemoveClaim(want.record.field)


def test_a_lease_policy_claims_its_family_and_is_ready() -> None:
    want = lease.Want.of(a_policy(), prefix="streamhold:shop", cluster=CLUSTER)
    assert want.record.claims == ("lease:streamhold:shop:lease:jobs/", "area:streamhold:shop:streamhold:")
    todo = lease.plan(want, lease.Observed(owners=Owners()))
    assert todo == lease.Plan(actions=(RegisterClaim(want.record),), again=True)
    done = lease.plan(want, lease.Observed(owners=Owners([want.record])))
    outcome = lease.conclude(want, done)
    assert outcome.ready
    assert outcome.status == {"keyPrefix": "streamhold:shop:lease:jobs/"}
    failed = lease.conclude(want, todo, Refusal(Reason.READ_ONLY, "no"))
    assert failed.reason == Reason.READ_ONLY


def test_overlapping_lease_families_conflict_and_the_younger_waits() -> None:
    older = lease.Want.of(a_policy("first", keys="jobs/"), prefix="p", cluster=CLUSTER)
    younger = lease.Want.of(a_policy("second", keys="jobs/nightly/"), prefix="p", cluster=CLUSTER)
    owners = Owners([older.record, younger.record])
    assert lease.plan(older, lease.Observed(owners=owners)) == lease.Plan()
    outcome = lease.conclude(younger, lease.plan(younger, lease.Observed(owners=owners)))
    assert outcome.reason == Reason.CONFLICT
    assert "LeasePolicy shop/first" in outcome.message


def test_a_lease_policy_leaves_its_claim_only_while_it_lives() -> None:
    want = lease.Want.of(a_policy(), prefix="p", cluster=CLUSTER)
    there = lease.Observed(owners=Owners([want.record]))
    assert lease.plan_removal(want, there).actions == (RemoveClaim(want.record.field),)
    assert lease.plan_removal(want, lease.Observed(owners=Owners())).actions == ()


def test_a_refusal_compares_by_what_it_says() -> None:
    one = Refusal(Reason.CONFLICT, "x")
    assert one == Refusal(Reason.CONFLICT, "x")
    assert one != Refusal(Reason.CONFLICT, "x", retry_after=1.0)
    assert one != "x"
    assert len({one, Refusal(Reason.CONFLICT, "x")}) == 1
    assert str(one) == "Conflict: x"

"""What a topic needs, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from streamhold_operator.api.conditions import Reason
from streamhold_operator.domain.actions import (
    CreateGroup,
    DeleteStream,
    DeleteStreamFamily,
    RegisterClaim,
    RemoveClaim,
)
from streamhold_operator.domain.claims import Owners
from streamhold_operator.domain.outcome import Refusal
from streamhold_operator.domain.topic import Observed, Plan, StreamState, Want, conclude, plan, plan_removal
from support.operator_objects import CLUSTER, a_topic

EXISTS = StreamState(type="stream")


def want(**spec: Any) -> Want:
    return Want.of(a_topic(**spec), prefix="streamhold:shop", cluster=CLUSTER)


def owned(topic: Want, **rest: Any) -> Observed:
    return Observed(owners=Owners([topic.record]), **rest)


def test_a_claim_comes_first_and_nothing_else_with_it() -> None:
    topic = want(groups=("billing",))
    assert plan(topic, Observed(owners=Owners())) == Plan(actions=(RegisterClaim(topic.record),), again=True)


def test_a_claim_that_says_something_else_is_written_again() -> None:
    topic = want(uid="u", created="2026-01-01T00:00:00Z")
    older = want(name="before", uid="u", created="2026-01-01T00:00:00Z")
    assert plan(topic, Observed(owners=Owners([older.record]))).actions == (RegisterClaim(topic.record),)


def test_the_claim_names_key_and_companions() -> None:
    assert want().record.claims == ("key:streamhold:shop:orders", "area:streamhold:shop:streamhold:")
    family = want(topicPrefix="run.")
    assert family.record.claims == ("prefix:streamhold:shop:run.", "area:streamhold:shop:streamhold:")


@pytest.mark.parametrize(
    ("provisioned", "stream", "start"),
    [
        ((), StreamState(), ("0", "$")),
        ((), EXISTS, ("0", "$")),
        # They were there, and with them the stream: whatever comes is new to them.
        (("early", "late"), StreamState(), ("0", "0")),
        # They were there and were never seen by this process.
        (("early", "late"), EXISTS, ("0", "$")),
        (
            ("early", "late"),
            StreamState(type="stream", last_id="9-1", remembered={"early": "5-0", "late": "10-0"}),
            ("5-0", "0"),
        ),
    ],
)
def test_a_missing_group_starts_where_it_loses_and_repeats_the_least(
    provisioned: tuple[str, ...], stream: StreamState, start: tuple[str, str]
) -> None:
    topic = want(groups=("early",), latest=("late",))
    todo = plan(topic, owned(topic, stream=stream, provisioned=frozenset(provisioned)))
    assert [action.start for action in todo.actions if isinstance(action, CreateGroup)] == list(start)
    assert bool(todo.repairs) == bool(provisioned)


def test_ids_are_compared_as_numbers() -> None:
    topic = want(groups=("g",))
    stream = StreamState(type="stream", last_id="100-10", remembered={"g": "100-9"})
    (action,) = plan(topic, owned(topic, stream=stream, provisioned=frozenset("g"))).actions
    assert isinstance(action, CreateGroup)
    assert action.start == "100-9"


def test_only_missing_groups_are_created_and_others_are_left_alone() -> None:
    topic = want(groups=("a", "b"), idleTtl="1m")
    stream = StreamState(type="stream", groups=frozenset({"a", "foreign"}))
    assert plan(topic, owned(topic, stream=stream)).actions == (
        CreateGroup(key="streamhold:shop:orders", group="b", start="0", idle_ttl_ms=60_000),
    )


def test_an_expired_topic_is_healthy_until_a_new_group_needs_it() -> None:
    topic = want(groups=("a", "b"), idleTtl="1m")
    expired = owned(topic, provisioned=frozenset("ab"))
    assert plan(topic, expired) == Plan()
    outcome = conclude(topic, expired, Plan())
    assert outcome.ready
    assert "expired" in outcome.message
    todo = plan(topic, owned(topic, provisioned=frozenset("a")))
    assert [action.group for action in todo.actions if isinstance(action, CreateGroup)] == ["a", "b"]


def test_a_family_needs_its_claim_only() -> None:
    topic = want(topicPrefix="run.", groups=("workers",))
    assert plan(topic, owned(topic)) == Plan()
    outcome = conclude(topic, owned(topic), Plan())
    assert outcome.status == {"effectiveName": "run.*", "keyPattern": "streamhold:shop:run.*", "groups": []}


def test_the_older_claim_has_the_key_and_is_named() -> None:
    older, younger = want(name="first", topic="orders"), want(name="second", topicPrefix="ord")
    owners = Owners([younger.record, older.record])
    assert plan(older, Observed(owners=owners)) == Plan()
    todo = plan(younger, Observed(owners=owners))
    assert todo.actions == ()
    assert todo.refusal is not None
    assert todo.refusal.reason == Reason.CONFLICT
    assert "StreamTopic shop/first" in todo.refusal.message
    far = Want.of(a_topic(), prefix="streamhold:shop", cluster="far")
    seen = plan(far, Observed(owners=Owners([older.record, far.record])))
    assert seen.refusal is not None
    assert f"of the cluster {CLUSTER}" in seen.refusal.message


def test_a_key_of_another_type_is_a_refusal_that_names_both() -> None:
    topic = want(groups=("g",))
    todo = plan(topic, owned(topic, stream=StreamState(type="zset")))
    assert todo.actions == ()
    assert todo.refusal is not None
    assert todo.refusal.reason == Reason.WRONG_TYPE
    assert "zset" in todo.refusal.message
    assert topic.key in todo.refusal.message


@pytest.mark.parametrize(
    "spec", [{"topic": "lease:x"}, {"topicPrefix": "lease:x"}, {"topicPrefix": "stream"}, {"topicPrefix": "l"}]
)
def test_names_that_reach_into_reserved_ones_are_refused_unclaimed(spec: dict[str, str]) -> None:
    topic = want(**spec)
    todo = plan(topic, Observed(owners=Owners()))
    assert todo.actions == ()
    assert todo.refusal is not None
    assert "reserved" in todo.refusal.message


@pytest.mark.parametrize("spec", [{"topic": "owners"}, {"topicPrefix": "own"}])
def test_the_owner_record_is_nobodys(spec: dict[str, str]) -> None:
    topic = Want.of(a_topic(**spec), prefix="streamhold", cluster=CLUSTER)
    todo = plan(topic, Observed(owners=Owners([topic.record])))
    assert todo.actions == ()
    assert todo.refusal is not None
    assert "owner record" in todo.refusal.message


def test_removal_with_retain_leaves_the_stream() -> None:
    topic = want()
    todo = plan_removal(topic, owned(topic, stream=EXISTS))
    assert todo.actions == (RemoveClaim(topic.record.field),)
    assert plan_removal(topic, Observed(owners=Owners(), stream=EXISTS)) == Plan()


def test_removal_with_delete_takes_the_stream_and_its_companions() -> None:
    topic = want(deletionPolicy="Delete")
    deletion, claim = plan_removal(topic, owned(topic, stream=EXISTS)).actions
    assert deletion == DeleteStream(
        key="streamhold:shop:orders",
        companions=(
            "streamhold:shop:streamhold:dead:{streamhold:shop:orders}",
            "streamhold:shop:streamhold:delayed:{streamhold:shop:orders}",
        ),
    )
    assert claim == RemoveClaim(topic.record.field)
    family = want(topicPrefix="run.", deletionPolicy="Delete")
    assert plan_removal(family, owned(family)).actions[0] == DeleteStreamFamily(
        prefix="streamhold:shop", key_prefix="streamhold:shop:run."
    )


def test_removal_deletes_nothing_that_belongs_to_another_or_is_of_another_type() -> None:
    older, younger = want(name="first", topic="orders"), want(name="second", topic="orders", deletionPolicy="Delete")
    lost = Observed(owners=Owners([older.record, younger.record]), stream=EXISTS)
    assert plan_removal(younger, lost).actions == (RemoveClaim(younger.record.field),)
    strange = owned(younger, stream=StreamState(type="hash"))
    assert plan_removal(younger, strange).actions == (RemoveClaim(younger.record.field),)


def test_an_unreadable_claim_of_its_own_is_removed_with_it() -> None:
    topic = want()
    garbage = Observed(owners=Owners(unreadable=[topic.record.field]))
    assert plan_removal(topic, garbage).actions == (RemoveClaim(topic.record.field),)


def test_the_conclusion_says_where_the_topic_is_and_what_failed() -> None:
    topic = want(groups=("b", "a"))
    have = owned(topic, stream=EXISTS)
    outcome = conclude(topic, have, plan(topic, have))
    assert outcome.message == "The topic is kept at streamhold:shop:orders, groups: a, b"
    assert outcome.status == {
        "effectiveName": "orders",
        "streamKey": "streamhold:shop:orders",
        "groups": ["a", "b"],
    }
    failure = Refusal(Reason.SERVER_REFUSED, "full", retry_after=10.0)
    failed = conclude(topic, have, plan(topic, have), failure)
    assert (failed.ready, failed.reason, failed.message, failed.retry_after) == (False, "ServerRefused", "full", 10.0)
    assert failed.status["streamKey"] == "streamhold:shop:orders"

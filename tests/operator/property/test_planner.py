"""The planners on a simulated Redis: what was carried out leaves nothing to do, and nothing foreign changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from hypothesis import given
from hypothesis import strategies as st

from streamhold_operator.domain import client as clients
from streamhold_operator.domain import lease as leases
from streamhold_operator.domain import topic as topics
from streamhold_operator.domain.acl import AclAbilities, Rights, UserRule, owner_marker
from streamhold_operator.domain.actions import (
    Action,
    CreateGroup,
    DeleteStream,
    DeleteStreamFamily,
    DeleteUser,
    RegisterClaim,
    RemoveClaim,
    SetUser,
)
from streamhold_operator.domain.claims import OwnerRecord, Owners, key_claim, user_claim
from streamhold_operator.domain.topic import StreamState
from support.operator_objects import CLUSTER, a_client, a_policy, a_topic, lease_grant, topic_grant


@dataclass
class Server:
    """As much of a Redis as the actions touch."""

    owners: Owners = field(default_factory=Owners)
    streams: dict[str, StreamState] = field(default_factory=dict)
    users: dict[str, UserRule] = field(default_factory=dict)

    def apply(self, actions: Sequence[Action]) -> None:
        """Carry out actions, one after the other."""
        for action in actions:
            match action:
                case RegisterClaim(record):
                    self.owners = self.owners.with_records([record])
                case RemoveClaim(name):
                    self.owners = self.owners.without(name)
                case SetUser(username=name, rule=rule):
                    self.users[name] = rule
                case DeleteUser(username=name, marker=marker):
                    if name in self.users and self.users[name].carries(marker):
                        del self.users[name]
                case CreateGroup() | DeleteStream() | DeleteStreamFamily():
                    self._apply_to_streams(action)
                case _:
                    assert_never(action)

    def _apply_to_streams(self, action: CreateGroup | DeleteStream | DeleteStreamFamily) -> None:
        match action:
            case CreateGroup(key=key, group=group):
                state = self.streams.get(key, StreamState())
                assert state.type in ("none", "stream")
                self.streams[key] = replace(state, type="stream", groups=state.groups | {group})
            case DeleteStream(key=key):
                assert self.streams.get(key, StreamState()).type in ("none", "stream")
                self.streams.pop(key, None)
            case DeleteStreamFamily(key_prefix=prefix):
                below = [key for key, state in self.streams.items() if key.startswith(prefix)]
                for key in below:
                    if self.streams[key].type == "stream":
                        del self.streams[key]


GROUPS = st.lists(st.sampled_from(["a", "b", "c"]), unique=True, max_size=3).map(tuple)
STREAM_IDS = st.builds("{}-{}".format, st.integers(0, 9), st.integers(0, 3))
STATES = st.one_of(
    st.builds(
        StreamState,
        type=st.just("stream"),
        groups=st.frozensets(st.sampled_from("abcd")),
        last_id=st.none() | STREAM_IDS,
        remembered=st.dictionaries(st.sampled_from("abc"), STREAM_IDS),
    ),
    st.builds(StreamState, type=st.sampled_from(["none", "string", "zset"])),
)


@st.composite
def wanted_topics(draw: st.DrawFn) -> topics.Want:
    name = draw(st.sampled_from(["orders", "orders.eu", "o", "lease:x", "str"]))
    where = {"topicPrefix": name} if draw(st.booleans()) else {"topic": name}
    made = a_topic(
        groups=draw(GROUPS),
        idleTtl=draw(st.sampled_from(["0s", "1h"])),
        deletionPolicy=draw(st.sampled_from(["Retain", "Delete"])),
        **where,
    )
    return topics.Want.of(made, prefix=draw(st.sampled_from(["p", "streamhold:shop"])), cluster=CLUSTER)


RIVALS = st.lists(
    st.builds(
        OwnerRecord,
        cluster=st.sampled_from([CLUSTER, "other"]),
        uid=st.sampled_from(["rival-1", "rival-2"]),
        kind=st.just("StreamTopic"),
        namespace=st.just("n"),
        name=st.just("rival"),
        created=st.sampled_from(["2020-01-01T00:00:00Z", "2030-01-01T00:00:00Z"]),
        claims=st.sampled_from(
            [(key_claim("p:orders"),), (key_claim("streamhold:shop:orders.eu"),), (user_claim("shop.checkout"),)]
        ),
    ),
    max_size=2,
)


@given(wanted_topics(), STATES, st.frozensets(st.sampled_from("abc")), RIVALS, st.booleans())
def test_after_the_plan_of_a_topic_was_carried_out_nothing_is_to_be_done(
    want: topics.Want, state: StreamState, provisioned: frozenset[str], rivals: list[OwnerRecord], known: bool
) -> None:
    server = Server(owners=Owners([*rivals, want.record] if known else rivals), streams={want.key: state})

    def observed() -> topics.Observed:
        stream = server.streams.get(want.key, StreamState())
        return topics.Observed(owners=server.owners, stream=stream, provisioned=provisioned)

    for _ in range(2):
        todo = topics.plan(want, observed())
        server.apply(todo.actions)
        if not todo.again:
            break
    done = topics.plan(want, observed())
    assert done.actions == ()
    assert done.refusal == todo.refusal
    assert not done.again
    if todo.refusal is not None:
        assert server.streams[want.key] == state
    outcome = topics.conclude(want, observed(), done)
    assert outcome.ready == (todo.refusal is None)
    assert {record.field for record in rivals} <= set(server.owners.records)


@given(wanted_topics(), STATES, RIVALS, st.booleans())
def test_after_the_removal_of_a_topic_nothing_of_it_is_left_and_nothing_is_to_be_done(
    want: topics.Want, state: StreamState, rivals: list[OwnerRecord], known: bool
) -> None:
    server = Server(owners=Owners([*rivals, want.record] if known else rivals), streams={want.key: state})
    have = topics.Observed(owners=server.owners, stream=state)
    server.apply(topics.plan_removal(want, have).actions)
    assert want.record.field not in server.owners.records
    after = topics.Observed(owners=server.owners, stream=server.streams.get(want.key, StreamState()))
    assert topics.plan_removal(want, after).actions == ()
    if want.spec.deletion_policy == "Retain" or state.type not in ("stream", "none"):
        assert server.streams == {want.key: state}


USER_RULES = st.builds(
    UserRule,
    enabled=st.booleans(),
    passwords=st.frozensets(st.sampled_from("ab")),
    root=st.builds(
        Rights,
        commands=st.frozensets(st.sampled_from(["ping", "get"])),
        keys=st.frozensets(st.sampled_from(["~*", "~a"])),
        channels=st.frozensets(
            st.sampled_from(
                ["*", owner_marker(CLUSTER, "gone"), owner_marker(CLUSTER, "rival-1"), owner_marker("other", "gone")]
            )
        ),
    ),
    flags=st.frozensets(st.sampled_from(["nopass", "allkeys"])),
)


@given(
    st.none() | USER_RULES,
    RIVALS,
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "checkout", "somebody"]),
)
def test_after_the_plan_of_a_client_was_carried_out_nothing_is_to_be_done(
    found: UserRule | None,
    rivals: list[OwnerRecord],
    known: bool,
    selectors: bool,
    username: str | None,
) -> None:
    want = clients.Want.of(
        a_client(username=username),
        cluster=CLUSTER,
        topics=(topic_grant("orders", "Publish"), topic_grant("run.", "Consume", family=True)),
        leases=(lease_grant("jobs/"),),
        passwords=("a" * 64,),
    )
    server = Server(owners=Owners([*rivals, want.record] if known else rivals))
    if found is not None:
        server.users[want.username] = found

    def observed() -> clients.Observed:
        abilities = AclAbilities(selectors=selectors)
        return clients.Observed(owners=server.owners, user=server.users.get(want.username), abilities=abilities)

    for _ in range(2):
        todo = clients.plan(want, observed())
        server.apply(todo.actions)
        if not todo.again:
            break
    done = clients.plan(want, observed())
    assert done.actions == ()
    assert done.refusal == todo.refusal
    if todo.refusal is None:
        assert server.users[want.username] == want.rule(AclAbilities(selectors=selectors))
        server.apply(clients.plan_removal(want, observed()).actions)
        assert want.username not in server.users
        assert want.record.field not in server.owners.records
    else:
        before = server.users.get(want.username)
        server.apply(clients.plan_removal(want, observed()).actions)
        assert server.users.get(want.username) == before
    assert clients.plan_removal(want, observed()).actions == ()


@given(RIVALS, st.booleans())
def test_after_the_plan_of_a_lease_policy_was_carried_out_nothing_is_to_be_done(
    rivals: list[OwnerRecord], known: bool
) -> None:
    want = leases.Want.of(a_policy(), prefix="p", cluster=CLUSTER)
    server = Server(owners=Owners([*rivals, want.record] if known else rivals))
    server.apply(leases.plan(want, leases.Observed(owners=server.owners)).actions)
    assert leases.plan(want, leases.Observed(owners=server.owners)) == leases.Plan()
    server.apply(leases.plan_removal(want, leases.Observed(owners=server.owners)).actions)
    assert leases.plan_removal(want, leases.Observed(owners=server.owners)) == leases.Plan()

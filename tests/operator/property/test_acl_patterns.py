"""The patterns of one client match its own keys, and never the keys of what somebody else owns."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import assume, given
from hypothesis import strategies as st

from streamhold.keys import OWNERS_KEY, companion, floor_key
from streamhold_operator.api.v1alpha1.coordinationclient import Access
from streamhold_operator.domain import lease as leases
from streamhold_operator.domain import topic as topics
from streamhold_operator.domain.acl import AclAbilities, client_rule
from streamhold_operator.domain.claims import OwnerRecord, Owners
from streamhold_operator.domain.grants import LeaseGrant, TopicGrant
from support.globs import matches
from support.operator_objects import CLUSTER, a_policy, a_topic

PREFIXES = st.sampled_from(
    ["p", "p:q", "p:q:r", "p:lease", "p:streamhold", "streamhold", "streamhold:shop", "streamhold:streamhold", "pq"]
)
PARTS = [
    "q",
    "r",
    "orders",
    "o",
    "s",
    "l",
    "lease",
    "streamhold",
    "dead",
    "delayed",
    "fence",
    "floor",
    "jobs/",
    "owners",
]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map(":".join) | st.text(
    "pq:r.", min_size=1, max_size=5
)
RUN_TIME = st.text("pq:{}0*?[", max_size=6)
"""What names made at run time have after a family's beginning: anything."""


@dataclass(frozen=True, slots=True)
class Owned:
    """One topic, family of topics or family of leases, with a few of its keys."""

    record: OwnerRecord
    refused: bool
    grant: TopicGrant | LeaseGrant
    keys: tuple[str, ...]


@st.composite
def owned(draw: st.DrawFn) -> Owned:
    prefix, name = draw(PREFIXES), draw(NAMES)
    if draw(st.integers(0, 2)) == 0:
        policy = a_policy(keys=name)
        want = leases.Want.of(policy, prefix=prefix, cluster=CLUSTER)
        mains = [want.key + draw(RUN_TIME) for _ in range(3)]
        keys = [*mains, floor_key(prefix, name), *(companion(prefix, "fence", key) for key in mains)]
        refused = leases.plan(want, leases.Observed(owners=Owners([want.record]))).refusal is not None
        return Owned(want.record, refused, LeaseGrant.of(policy, prefix=prefix), tuple(keys))
    family = draw(st.booleans())
    topic = a_topic(**({"topicPrefix": name} if family else {"topic": name}))
    wanted = topics.Want.of(topic, prefix=prefix, cluster=CLUSTER)
    mains = [wanted.key + draw(RUN_TIME) for _ in range(3)] if family else [wanted.key]
    keys = [*mains, *(companion(prefix, kind, key) for kind in ("dead", "delayed") for key in mains)]
    refused = topics.plan(wanted, topics.Observed(owners=Owners([wanted.record]))).refusal is not None
    return Owned(wanted.record, refused, TopicGrant.of(topic, prefix=prefix, access=frozenset(Access)), tuple(keys))


def patterns(one: Owned, *, selectors: bool) -> set[str]:
    """All key patterns in the rule of a client that may do anything with it."""
    rule = client_rule(
        marker="marker",
        topics=[one.grant] if isinstance(one.grant, TopicGrant) else [],
        leases=[one.grant] if isinstance(one.grant, LeaseGrant) else [],
        passwords=[],
        abilities=AclAbilities(selectors=selectors),
    )
    found = rule.root.keys.union(*(selector.keys for selector in rule.selectors))
    assert all(pattern.startswith("~") for pattern in found)
    return {pattern[1:] for pattern in found}


@given(owned(), st.booleans())
def test_a_client_reaches_all_keys_of_what_it_was_granted(one: Owned, selectors: bool) -> None:
    assume(not one.refused)
    granted = patterns(one, selectors=selectors)
    for key in one.keys:
        assert any(matches(pattern, key) for pattern in granted), key


@given(owned(), owned(), st.booleans())
def test_a_client_reaches_no_key_of_what_somebody_else_owns(one: Owned, other: Owned, selectors: bool) -> None:
    assume(not one.refused and not other.refused)
    assume(len(Owners([one.record, other.record]).winners) == 2)
    for pattern in patterns(one, selectors=selectors):
        assert not matches(pattern, OWNERS_KEY)
        for key in other.keys:
            assert not matches(pattern, key), (pattern, key)


@given(owned(), st.booleans())
def test_no_client_reaches_the_owner_record(one: Owned, selectors: bool) -> None:
    assume(not one.refused)
    assert not any(matches(pattern, OWNERS_KEY) for pattern in patterns(one, selectors=selectors))

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


def owned_lease(prefix: str, keys: str, tails: list[str]) -> Owned:
    policy = a_policy(keys=keys)
    want = leases.Want.of(policy, prefix=prefix, cluster=CLUSTER)
    mains = [want.key + tail for tail in tails]
    refused = leases.plan(want, leases.Observed(owners=Owners([want.record]))).refusal is not None
    grant = LeaseGrant.of(policy, prefix=prefix)
    fences = [companion(prefix, "fence", key) for key in mains]
    return Owned(want.record, refused, grant, (*mains, *fences, floor_key(prefix, keys)))


def owned_topic(prefix: str, name: str, tails: list[str] | None) -> Owned:
    """A topic, or with `tails` a family and the ends of some of its topics' names."""
    topic = a_topic(**({"topic": name} if tails is None else {"topicPrefix": name}))
    want = topics.Want.of(topic, prefix=prefix, cluster=CLUSTER)
    mains = [want.key] if tails is None else [want.key + tail for tail in tails]
    refused = topics.plan(want, topics.Observed(owners=Owners([want.record]))).refusal is not None
    grant = TopicGrant.of(topic, prefix=prefix, access=frozenset(Access))
    kept = [companion(prefix, kind, key) for kind in ("dead", "delayed") for key in mains]
    return Owned(want.record, refused, grant, (*mains, *kept))


@st.composite
def owned(draw: st.DrawFn) -> Owned:
    prefix, name = draw(PREFIXES), draw(NAMES)
    tails = draw(st.lists(RUN_TIME, min_size=1, max_size=3))
    match draw(st.integers(0, 2)):
        case 0:
            return owned_lease(prefix, name, tails)
        case 1:
            return owned_topic(prefix, name, tails)
        case _:
            return owned_topic(prefix, name, None)


@st.composite
def intruders(draw: st.DrawFn, victim: Owned) -> Owned:
    """Something whose keys begin as one of the victim's does, as far as names may say so."""
    key = draw(st.sampled_from(victim.keys))
    cuts = [at for at, character in enumerate(key) if character == ":" and at > 0]
    prefix_end = draw(st.sampled_from(cuts))
    name = key[prefix_end + 1 : draw(st.integers(prefix_end + 2, max(prefix_end + 2, len(key))))]
    assume(name and not set(name) & set("{}*?[\\") and not set(key[:prefix_end]) & set("{}*?[\\"))
    if draw(st.booleans()) and name.startswith("lease:") and name != "lease:":
        return owned_lease(key[:prefix_end], name.removeprefix("lease:"), [""])
    return owned_topic(key[:prefix_end], name, draw(st.none() | st.just([""])))


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


@given(st.data(), owned(), st.booleans())
def test_a_client_reaches_no_key_of_somebody_else_by_choosing_its_names(
    data: st.DataObject, victim: Owned, selectors: bool
) -> None:
    intruder = data.draw(intruders(victim))
    assume(not victim.refused and not intruder.refused)
    assume(len(Owners([victim.record, intruder.record]).winners) == 2)
    for pattern in patterns(intruder, selectors=selectors):
        for key in victim.keys:
            assert not matches(pattern, key), (pattern, key)


@given(owned(), st.booleans())
def test_no_client_reaches_the_owner_record(one: Owned, selectors: bool) -> None:
    assume(not one.refused)
    assert not any(matches(pattern, OWNERS_KEY) for pattern in patterns(one, selectors=selectors))

"""Ownership as a pure function: one winner per overlap, whatever the order in which anybody looks (O07)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from streamhold_operator.domain.claims import (
    OwnerRecord,
    Owners,
    area_claim,
    key_claim,
    lease_claim,
    overlaps,
    prefix_claim,
    stale,
    user_claim,
)

NAMES = st.text(alphabet="ab:", min_size=1, max_size=4)
CLAIMS = st.one_of(
    NAMES.map(key_claim), NAMES.map(prefix_claim), NAMES.map(lease_claim), NAMES.map(area_claim), NAMES.map(user_claim)
)


@st.composite
def records(draw: st.DrawFn) -> list[OwnerRecord]:
    """Records of several clusters, with claims that often collide and creation times that often tie."""
    count = draw(st.integers(0, 12))
    return [
        OwnerRecord(
            cluster=draw(st.sampled_from(["c1", "c2"])),
            uid=f"uid-{number}",
            kind="StreamTopic",
            namespace=draw(st.sampled_from(["n1", "n2"])),
            name=f"o{number}",
            created=draw(st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"])),
            claims=tuple(draw(st.lists(CLAIMS, min_size=1, max_size=3))),
        )
        for number in range(count)
    ]


def collide(one: OwnerRecord, other: OwnerRecord) -> bool:
    return any(overlaps(claim, another) for claim in one.claims for another in other.claims)


@given(CLAIMS, CLAIMS)
def test_overlap_goes_both_ways(one: str, other: str) -> None:
    assert overlaps(one, other) == overlaps(other, one)


@given(NAMES, NAMES, st.text(alphabet="ab:", max_size=3))
def test_a_prefix_overlaps_whatever_lies_below_it(prefix: str, other: str, rest: str) -> None:
    for below in (key_claim(prefix + rest), prefix_claim(prefix + rest), lease_claim(prefix + rest)):
        assert overlaps(prefix_claim(prefix), below)
        assert overlaps(lease_claim(prefix), below)
    assert overlaps(key_claim(prefix), key_claim(other)) == (prefix == other)
    assert not overlaps(user_claim(prefix), prefix_claim(prefix))
    assert not overlaps(area_claim(prefix), area_claim(prefix))


@given(records(), st.randoms())
def test_the_winners_do_not_depend_on_the_order(found: list[OwnerRecord], chance: random.Random) -> None:
    shuffled = list(found)
    chance.shuffle(shuffled)
    assert Owners(found).winners == Owners(shuffled).winners
    assert Owners(found) == Owners(shuffled)


@given(records())
def test_winners_never_overlap_and_each_loser_is_told_an_older_winner_in_its_way(found: list[OwnerRecord]) -> None:
    owners = Owners(found)
    winners = [record for record in found if record.field in owners.winners]
    for at, one in enumerate(winners):
        assert not any(collide(one, other) for other in winners[at + 1 :])
    for record in found:
        holder = owners.holder(record)
        if record in winners:
            assert holder is None
        else:
            assert holder is not None
            assert holder in winners
            assert collide(holder, record)
            assert holder.rank < record.rank


@given(records())
def test_the_winners_are_those_of_the_plain_definition(found: list[OwnerRecord]) -> None:
    won: list[OwnerRecord] = []
    for record in sorted(found, key=lambda record: record.rank):
        if not any(collide(record, winner) for winner in won):
            won.append(record)
    assert Owners(found).winners == {record.field for record in won}


@given(records())
def test_when_a_winner_goes_somebody_in_its_way_wins_or_nobody_was(found: list[OwnerRecord]) -> None:
    owners = Owners(found)
    for field in owners.winners:
        after = owners.without(field)
        assert field not in after.winners
        freed = [record for record in found if owners.holder(record) is not None]
        assert owners.winners - {field} <= after.winners | {record.field for record in found if record not in freed}


@given(records())
def test_a_record_survives_its_way_through_redis(found: list[OwnerRecord]) -> None:
    for record in found:
        assert OwnerRecord.parse(record.field, record.value()) == record


FIELDS = st.text(max_size=30) | st.just("cluster/uid")
VALUES = st.text(max_size=30) | st.sampled_from(["{}", "[]", '{"claims": [1]}', '{"claims": 1}', "null", "7"])


@given(FIELDS, VALUES)
def test_anything_else_in_the_hash_is_no_record(field: str, value: str) -> None:
    assert OwnerRecord.parse(field, value) is None


@given(records(), st.sets(st.integers(0, 11).map("uid-{}".format)))
def test_only_claims_of_gone_objects_of_this_cluster_and_scope_are_stale(
    found: list[OwnerRecord], alive: set[str]
) -> None:
    owners = Owners(found)
    everywhere = stale(owners, cluster="c1", alive=alive, namespaces=None)
    assert everywhere == sorted(r.field for r in found if r.cluster == "c1" and r.uid not in alive)
    scoped = stale(owners, cluster="c1", alive=alive, namespaces=["n1"])
    assert scoped == sorted(r.field for r in found if r.cluster == "c1" and r.uid not in alive and r.namespace == "n1")


@given(records(), records(), st.sets(st.text("xy", max_size=2), max_size=2), st.booleans())
def test_records_that_arrive_later_are_decided_as_if_all_had_been_there(
    first: list[OwnerRecord], later: list[OwnerRecord], garbage: set[str], asked: bool
) -> None:
    owners = Owners(first, unreadable=garbage)
    if asked:
        assert owners.winners is not None
    grown = owners.with_records(later, unreadable=[])
    fields = {record.field for record in later}
    fresh = Owners([*first, *later], unreadable=garbage - fields)
    assert grown == fresh
    assert grown.winners == fresh.winners
    assert [grown.holder(r) for r in grown.records.values()] == [fresh.holder(r) for r in grown.records.values()]
    assert owners == Owners(first, unreadable=garbage)
    assert owners.winners == Owners(first).winners

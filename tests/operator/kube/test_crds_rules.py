"""Rules that look at several fields, at the whole object or at its change; and that no constraint lacks examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from support.crd_rules import Admission, Constraint, constraints
from support.crd_values import BASES, PLACES, an_object

_REF = {"connectionRef": {"name": "main"}}
_ONE = {"endpoints": ["a:1"]}
_TWO = {"endpoints": ["a:1", "b:1"]}
_SENTINEL = {"sentinel": {"masterName": "mymaster"}}
_SHARED = {"sharedSecretRef": {"name": "shared"}}

Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """A rule over several fields, with specs that keep it and specs that break it."""

    kind: str
    message: str
    accepted: Sequence[Spec]
    refused: Sequence[Spec]
    name: str = "probe"
    refused_name: str = "probe"
    path: str = "spec"


_STANDALONE = "topology Standalone has exactly one endpoint; several belong to topology Sentinel or Cluster"
_NEEDS_SENTINEL = "sentinel belongs to topology Sentinel, which needs it; the other topologies have none"
_CLUSTER = "topology Cluster has only database 0"
_NEEDS_SHARED = "sharedSecretRef belongs to access Shared, which needs it; access Managed has none"
_ONE_OR_FAMILY = "topic (one topic) and topicPrefix (a family of them) exclude each other: write one of them"
_RENEW = "renewInterval must be at most half of ttl (15s when left out): a failed renewal can then be tried again"
_MAX_HOLD = "maxHold must be 0s (unlimited) or at least ttl (15s when left out)"
_OVERLAP = "overlap must be shorter than every, so that at most two passwords are valid at a time"
_PASSWORD = "rotation and passwordSecretRef exclude each other: rotate a password of your own by changing its Secret"
_LONG = "metadata.name must have at most 63 characters: it becomes a label of the binding Secret"
_OTHER_SECRET = "passwordSecretRef must name another Secret than the binding (secretName, or <name>-streamhold)"

RULES = [
    Rule(
        "RedisConnection",
        _STANDALONE,
        accepted=[_ONE, {"topology": "Standalone", **_ONE}, {"topology": "Cluster", **_TWO}],
        refused=[_TWO, {"topology": "Standalone", **_TWO}],
    ),
    Rule(
        "RedisConnection",
        _NEEDS_SENTINEL,
        accepted=[{"topology": "Sentinel", **_TWO, **_SENTINEL}, {"topology": "Cluster", **_TWO}],
        refused=[
            {"topology": "Sentinel", **_TWO},
            {**_ONE, **_SENTINEL},
            {"topology": "Standalone", **_ONE, **_SENTINEL},
            {"topology": "Cluster", **_TWO, **_SENTINEL},
        ],
    ),
    Rule(
        "RedisConnection",
        _CLUSTER,
        accepted=[
            {"topology": "Cluster", **_TWO, "database": 0},
            {"topology": "Standalone", **_ONE, "database": 1},
            {**_ONE, "database": 15},
        ],
        refused=[{"topology": "Cluster", **_TWO, "database": 1}],
    ),
    Rule(
        "RedisConnection",
        _NEEDS_SHARED,
        accepted=[{**_ONE, "access": "Shared", **_SHARED}, {**_ONE, "access": "Managed"}],
        refused=[{**_ONE, "access": "Shared"}, {**_ONE, **_SHARED}, {**_ONE, "access": "Managed", **_SHARED}],
    ),
    Rule(
        "StreamTopic",
        _ONE_OR_FAMILY,
        accepted=[_REF, {**_REF, "topic": "a"}, {**_REF, "topicPrefix": "a."}],
        refused=[{**_REF, "topic": "a", "topicPrefix": "b."}],
    ),
    Rule(
        "LeasePolicy",
        _RENEW,
        accepted=[
            {**_REF, "renewInterval": "7500ms"},
            {**_REF, "ttl": "1h", "renewInterval": "30m"},
            {**_REF, "ttl": "1m30s", "renewInterval": "45s"},
        ],
        refused=[
            {**_REF, "renewInterval": "7501ms"},
            {**_REF, "ttl": "1s", "renewInterval": "501ms"},
            {**_REF, "ttl": "30m", "renewInterval": "1h"},
        ],
    ),
    Rule(
        "LeasePolicy",
        _MAX_HOLD,
        accepted=[{**_REF, "maxHold": "15s"}, {**_REF, "ttl": "1h", "maxHold": "0s"}, {**_REF, "maxHold": "0ms"}],
        refused=[{**_REF, "maxHold": "14999ms"}, {**_REF, "ttl": "1h", "maxHold": "59m59s"}],
    ),
    Rule(
        "CoordinationClient",
        _OVERLAP,
        accepted=[{**_REF, "rotation": {"every": "10s", "overlap": "9999ms"}}, {**_REF, "rotation": {"every": "10s"}}],
        refused=[
            {**_REF, "rotation": {"every": "1h", "overlap": "60m"}},
            {**_REF, "rotation": {"every": "1h", "overlap": "2h"}},
        ],
        path="spec.rotation",
    ),
    Rule(
        "CoordinationClient",
        _PASSWORD,
        accepted=[{**_REF, "rotation": {"every": "1h"}}, {**_REF, "passwordSecretRef": {"name": "a"}}],
        refused=[{**_REF, "rotation": {"every": "1h"}, "passwordSecretRef": {"name": "a"}}],
    ),
    Rule("CoordinationClient", _LONG, accepted=[_REF], refused=[_REF], name="a" * 63, refused_name="a" * 64, path=""),
    Rule(
        "CoordinationClient",
        _OTHER_SECRET,
        accepted=[
            {**_REF, "passwordSecretRef": {"name": "probe"}},
            {**_REF, "passwordSecretRef": {"name": "probe-streamhold"}, "secretName": "other"},
        ],
        refused=[
            {**_REF, "passwordSecretRef": {"name": "probe-streamhold"}},
            {**_REF, "passwordSecretRef": {"name": "same"}, "secretName": "same"},
        ],
        path="",
    ),
    Rule("RedisConnection", "endpoints: Required value", accepted=[_ONE], refused=[{}]),
    Rule("StreamTopic", "connectionRef: Required value", accepted=[_REF], refused=[{}]),
    Rule("LeasePolicy", "connectionRef: Required value", accepted=[_REF], refused=[{}]),
    Rule("CoordinationClient", "connectionRef: Required value", accepted=[_REF], refused=[{}]),
]


@dataclass(frozen=True)
class Immutable:
    """A field that cannot be changed, with changes of other fields that can."""

    kind: str
    field: str
    before: Spec
    accepted: Sequence[Spec]
    refused: Sequence[Spec]

    @property
    def message(self) -> str:
        """What the API server says."""
        return f"{self.field} is immutable: delete the object and create it again to change it"


_ELSEWHERE = {"connectionRef": {"name": "other"}}
_SPELT_OUT = {"connectionRef": {"name": "main", "namespace": "shop"}}
_OPTIONAL = (
    ("StreamTopic", "topic"),
    ("StreamTopic", "topicPrefix"),
    ("LeasePolicy", "keys"),
    ("CoordinationClient", "username"),
)
IMMUTABLE = [
    Immutable(
        "RedisConnection",
        "keyPrefix",
        {**_ONE, "keyPrefix": "a"},
        [{**_ONE, "keyPrefix": "a", "database": 1}],
        [{**_ONE, "keyPrefix": "b"}, _ONE],
    ),
    Immutable("RedisConnection", "keyPrefix", _ONE, [{"endpoints": ["b:1"]}], [{**_ONE, "keyPrefix": "a"}]),
    *(
        Immutable(kind, "connectionRef", _REF, [{**_REF, "suspend": True}], [_ELSEWHERE, _SPELT_OUT])
        for kind in ("StreamTopic", "LeasePolicy", "CoordinationClient")
    ),
    *(
        Immutable(
            kind, field, {**_REF, field: "a"}, [{**_REF, field: "a", "suspend": True}], [{**_REF, field: "b"}, _REF]
        )
        for kind, field in _OPTIONAL
    ),
    *(Immutable(kind, field, _REF, [{**_REF, "suspend": True}], [{**_REF, field: "a"}]) for kind, field in _OPTIONAL),
]


def _immutable_id(field: Immutable) -> str:
    return f"{field.kind}:{field.field}:{'set' if field.field in field.before else 'unset'}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}:{rule.message[:40]}")
def test_a_rule_over_several_fields_says_what_is_allowed(rule: Rule, admission: Admission) -> None:
    for spec in rule.accepted:
        assert admission.refusals(an_object(rule.kind, spec, rule.name)) == [], spec
    for spec in rule.refused:
        answer = admission.refusals(an_object(rule.kind, spec, rule.refused_name))
        assert any(rule.message in complaint for complaint in answer), (spec, answer)


@pytest.mark.parametrize("prefix", ["", "*", "shop:*", "shop?", "[a-z]", "a\\*", "{shop}", "{namespace", "shop:{team}"])
def test_case_O28_a_key_prefix_that_could_widen_an_acl_is_refused(prefix: str, admission: Admission) -> None:
    answer = admission.refusals(an_object("RedisConnection", {**_ONE, "keyPrefix": prefix}))
    assert len(answer) == 1
    assert answer[0].startswith("spec.keyPrefix: Invalid value")
    assert "glob characters (* ? [ ] \\) or braces other than {namespace}" in answer[0]


@pytest.mark.parametrize("field", IMMUTABLE, ids=_immutable_id)
def test_case_O16_an_immutable_field_can_be_neither_changed_nor_set_nor_unset(
    field: Immutable, admission: Admission
) -> None:
    before = an_object(field.kind, field.before)
    for spec in field.accepted:
        assert admission.refusals_of_update(before, an_object(field.kind, spec)) == [], spec
    for spec in field.refused:
        answer = admission.refusals_of_update(before, an_object(field.kind, spec))
        assert any(field.message in complaint for complaint in answer), (spec, answer)


@pytest.mark.parametrize("kind", list(PLACES))
def test_an_object_without_a_spec_or_with_an_unknown_field_is_refused(kind: str, admission: Admission) -> None:
    whole = an_object(kind, {})
    del whole["spec"]
    assert "spec: Required value" in admission.refusals(whole)
    typo = an_object(kind, {**BASES[kind][0], "maxLenght": 1})
    assert any('unknown field "spec.maxLenght"' in complaint for complaint in admission.refusals(typo))


@pytest.mark.parametrize("kind", list(PLACES))
def test_every_constraint_of_the_crds_has_its_examples_and_every_example_a_constraint(kind: str) -> None:
    covered = {
        Constraint(kind, path, says)
        for path, sort in PLACES[kind].items()
        for _, says in sort.refused
        if sort.accepted and not says.startswith("must be of type")
    }
    covered |= {Constraint(kind, rule.path, rule.message) for rule in RULES if rule.kind == kind}
    covered |= {Constraint(kind, "spec", field.message) for field in IMMUTABLE if field.kind == kind}
    covered.add(Constraint(kind, "", "spec: Required value"))
    wanted = set(constraints(kind))
    assert sorted(wanted - covered) == []
    assert sorted(covered - wanted) == []

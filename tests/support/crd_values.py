"""One accepted and one refused example for every constraint on a single field of the CRDs.

`PLACES` says which sort of value each place takes; a sort lists what the API server accepts there, and what it refuses
with which words. The constraints that look at several fields are in tests/operator/kube/test_crds_rules.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamhold_operator.api import API_VERSION
from support.crd_rules import Object


@dataclass(frozen=True)
class Sort:
    """A sort of value: accepted examples, and refused ones with the words of the refusal."""

    accepted: Sequence[Any]
    refused: Sequence[tuple[Any, str]]


def _too_long(limit: int) -> tuple[str, str]:
    return "a" * (limit + 1), f"may not be more than {limit} bytes"


def _too_many(values: Sequence[Any]) -> tuple[Any, str]:
    return values, f"must have at most {len(values) - 1} items"


def _enum(*values: str) -> Sort:
    return Sort(values, [(values[0].lower(), "supported values: " + ", ".join(f'"{value}"' for value in values))])


def _number(low: int, high: int) -> Sort:
    return Sort(
        [low, high],
        [
            (low - 1, f"should be greater than or equal to {low}"),
            (high + 1, f"should be less than or equal to {high}"),
            (1.5, 'must be of type integer: "number"'),
            ("1", 'must be of type integer: "string"'),
        ],
    )


_UNITS = ", written with h, m, s and ms, such as 250ms, 30s or 1h30m"
_NO_DURATIONS = ("", "30", "1d", "1.5h", "-1s", "1us", "30 s", "1s1h", "1h 30m", "P1D", "٣s")


def _duration(low: str, high: str, below: str, above: str, zero: str = "") -> Sort:
    text = f"must be 0s ({zero}) or a duration" if zero else "must be a duration"
    says = f"{text} from {low} to {high}{_UNITS}"
    wrong = [*_NO_DURATIONS, below, above, *([] if zero else ["0s"])]
    accepted = [low, high, *(["0s", "0ms", "0h0m"] if zero else [])]
    return Sort(accepted, [*((value, says) for value in wrong), ("0" * 40 + "s", "may not be more than 40 bytes")])


def _required(members: Mapping[str, Any]) -> Sort:
    """An object with all its required members, and without each of them."""
    return Sort(
        [members],
        [
            ({other: value for other, value in members.items() if other != name}, f"{name}: Required value")
            for name in members
        ],
    )


_BAD_TEXT = (" ", "a b", "a\tb", "a\nb", "a\x00b", "a\x7fb", "a\u00a0b", "a\u2003b", "a\u200bb", "a\u2028b")
_BAD_KEYS = (*_BAD_TEXT, "", "a*", "a?", "[a]", "a]", "a\\b", "{a}", "a{", "}")
_NAME = "must be an object's name: lower-case letters, digits, '-' and '.', with a letter or digit at both ends"
_NO_GLOBS = "must have no whitespace, control characters, glob characters (* ? [ ] \\) or braces"
_RESERVED = "lease:, lease-metadata:, streamhold:"
_COVERS_RESERVED = (
    f"must neither start with nor be the beginning of a reserved name ({_RESERVED}): it would cover its keys"
)
_LABEL_VALUE = "must be a label value: letters, digits, '-', '_' and '.', with a letter or digit at both ends"
_LONG_NAME = ".".join(["a" * 63] * 3 + ["a" * 61])

OBJECT_NAME = Sort(
    ["a", "main", "my-redis.v2", "0", _LONG_NAME],
    [*((bad, _NAME) for bad in ("", "A", "a_b", "-a", "a-", "a..b", ".a", "a b", "a/b", "a" * 64)), _too_long(253)],
)
NAMESPACE = Sort(
    ["a", "team-1", "a" * 63],
    [
        *(
            (bad, "must be a namespace's name: lower-case letters, digits and '-', with a letter or digit at both ends")
            for bad in ("", "A", "a.b", "-a", "a-", "a_b", "{namespace}")
        ),
        _too_long(63),
    ],
)
SECRET_KEY = Sort(
    ["a", "tls.crt", "ADMIN_password-2", "a" * 253],
    [
        *(
            (bad, "must be the key of an entry in a Secret: letters, digits, '-', '_' and '.'")
            for bad in ("", "a b", "a/b")
        ),
        _too_long(253),
    ],
)
_ENDPOINT_SAYS = (
    "must be host:port, port 1 to 65535, such as redis.example.com:6379, 10.0.0.7:6379 or [2001:db8::7]:6379"
)
ENDPOINT = Sort(
    [
        "a:1", "redis:6379", "redis.shop.svc.cluster.local.:6379", "10.0.0.7:65535", "[::1]:6379", "[2001:db8::7]:6379",
        "my_redis:6379", "a" * 256 + ":65535",
    ],
    [
        *(
            (bad, _ENDPOINT_SAYS)
            for bad in (
                "", "redis", "redis:", ":6379", "redis:0", "redis:65536", "redis:99999", "redis:06379", "redis:-1",
                "redis:x", "redis:6379 ", "a b:6379", "redis://redis:6379", "user@redis:6379", "::1:6379", "[::1]",
                "[::::]:6379", "[redis]:6379", "[1.2.3.4.5]:1", "-a:1", "a*:1",
            )
        ),
        _too_long(262),
    ],
)  # fmt: skip
KEY_PREFIX = Sort(
    [
        "a", "streamhold:{namespace}", "{namespace}", "mastra:topic", "a:{namespace}:{namespace}", "ключ:é",
        "streamhold:", "a" * 128,
    ],
    [
        *(
            (bad, f"{_NO_GLOBS} other than {{namespace}}")
            for bad in (
                *_BAD_KEYS, "{}", "{namespace", "namespace}", "{{namespace}}", "{Namespace}", "{name}", "a:{tag}:b",
            )
        ),
        ("streamhold", "must not be exactly 'streamhold', whose keys the operator keeps its own records in"),
        _too_long(128),
    ],
)  # fmt: skip
TOPIC = Sort(
    ["a", "orders", "agent.run.1", "a:b", "lease", "releases:1", "Bestellung-é", "a" * 253],
    [
        *((bad, _NO_GLOBS) for bad in (*_BAD_KEYS, "{namespace}")),
        *(
            (bad, f"must not start with a reserved name ({_RESERVED})")
            for bad in ("lease:", "lease:jobs", "lease-metadata:a", "streamhold:dead", "streamhold:")
        ),
        _too_long(253),
    ],
)
TOPIC_PREFIX = Sort(
    ["a", "agent.run.", "leases", "leases:", "streams", "a" * 253],
    [
        *((bad, _NO_GLOBS) for bad in (*_BAD_KEYS, "{namespace}")),
        *(
            (
                bad,
                _COVERS_RESERVED,
            )
            for bad in ("lease:", "lease:jobs", "streamhold:x", "l", "lease", "lease-", "s", "stream", "streamhold")
        ),
        _too_long(253),
    ],
)
LEASE_KEYS = Sort(
    ["a", "jobs/", "thread:", "a" * 254],
    [*((bad, _NO_GLOBS) for bad in (*_BAD_KEYS, "{namespace}")), _too_long(254)],
)
GROUP_NAME = Sort(
    ["a", "billing", "team:billing", "fanout", "*", "a" * 128],
    [
        *((bad, "must have no whitespace or control characters") for bad in ("", *_BAD_TEXT)),
        ("__fanout-1", "must not start with '__fanout-', which names private groups of subscribers"),
        _too_long(128),
    ],
)
USERNAME = Sort(
    ["a", "shop.checkout", "team@shop", "Default", "a" * 256],
    [
        *(
            (bad, "must have no whitespace, control characters, quotes or backslashes")
            for bad in ("", *_BAD_TEXT, 'a"', "a'b", "a\\b")
        ),
        ("default", "must not be 'default', which is the user of connections that do not log in"),
        _too_long(256),
    ],
)
SERVER_NAME = Sort(
    ["redis", "redis.example.com", "10.0.0.7", "2001:db8::7", "a" * 253],
    [
        *(
            (bad, "must be the host name or IP address that the server's certificate names")
            for bad in ("", "redis:6379", "*.example.com", "a b", "-a")
        ),
        _too_long(253),
    ],
)
MASTER_NAME = Sort(
    ["mymaster", "a_B-1.2", "a" * 128],
    [
        *(
            (bad, "must be the name of a master in Sentinel: letters, digits, '-', '_' and '.'")
            for bad in ("", "a b", "a/b")
        ),
        _too_long(128),
    ],
)
LABEL_KEY = Sort(
    ["team", "example.com/Team_1", f"{_LONG_NAME}/{'a' * 63}"],
    [
        *(
            (
                bad,
                "must be a label key: an optional DNS prefix and '/', then up to 63 letters, digits, '-', '_' and '.'",
            )
            for bad in ("", "a b", "/a", "a/", "A.com/a", "a/b/c", "-a", "a" * 64)
        ),
        _too_long(317),
    ],
)
LABEL_VALUE = Sort(
    ["", "a", "A_b-1.2", "a" * 63], [*((bad, _LABEL_VALUE) for bad in ("a b", "-a", "a-", "a/b")), _too_long(63)]
)
ANNOTATION = Sort(["", "any {text} *", "a" * 4096], [_too_long(4096)])
_KEYS_SAY = "keys must be an optional DNS prefix and '/', then up to 63 letters, digits, '-', '_' and '.'"
_RESERVED_KEYS = (
    "app.kubernetes.io/managed-by and keys that start with streamhold.dev/ are set by the operator: choose other keys"
)
_MANY_LABELS = {f"key-{number}": "a" for number in range(33)}
MATCH_LABELS = Sort(
    [{"a": "b"}, {"example.com/a": ""}, dict(list(_MANY_LABELS.items())[:32])],
    [
        *(({bad: "a"}, _KEYS_SAY) for bad in ("", "a b", "/a", "a/", "a/b/c", "a" * 64)),
        _too_many_labels := (_MANY_LABELS, "must have at most 32 items"),
    ],
)
TEMPLATE_MAP = Sort(
    [{}, {"a": "b"}, {"example.com/a": "", "app.kubernetes.io/name": "shop"}],
    [
        *MATCH_LABELS.refused,
        ({"app.kubernetes.io/managed-by": "me"}, _RESERVED_KEYS),
        ({"streamhold.dev/client": "a"}, _RESERVED_KEYS),
    ],
)
_NEEDS_LABELS = "needs matchLabels or matchExpressions; for every namespace write from: All instead"
SELECTOR = Sort(
    [{"matchLabels": {"a": "b"}}, {"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
    [({}, _NEEDS_LABELS), ({"matchLabels": {}}, _NEEDS_LABELS), ({"matchExpressions": []}, _NEEDS_LABELS)],
)
_EXISTS = {"key": "a", "operator": "Exists"}
_VALUES_SAY = "operators In and NotIn need values; Exists and DoesNotExist have none"
EXPRESSIONS = Sort([[_EXISTS], [_EXISTS] * 32], [_too_many([_EXISTS] * 33)])
EXPRESSION = Sort(
    [_EXISTS, {**_EXISTS, "values": []}, {"key": "a", "operator": "In", "values": ["b"]}],
    [
        *_required(_EXISTS).refused,
        ({"key": "a", "operator": "In"}, _VALUES_SAY),
        ({"key": "a", "operator": "NotIn", "values": []}, _VALUES_SAY),
        ({"key": "a", "operator": "Exists", "values": ["b"]}, _VALUES_SAY),
        ({"key": "a", "operator": "DoesNotExist", "values": ["b"]}, _VALUES_SAY),
    ],
)
VALUES = Sort(
    [["a"], ["a", "b"], [f"v{number}" for number in range(32)]],
    [(["a", "a"], "Duplicate value"), _too_many([f"v{number}" for number in range(33)])],
)
_FROM_SAYS = "selector belongs to from: Selector, which needs it; from: Same and from: All have none"
ALLOWED_NAMESPACES = Sort(
    [{}, {"from": "Same"}, {"from": "All"}, {"from": "Selector", "selector": {"matchLabels": {"a": "b"}}}],
    [
        ({"from": "Selector"}, _FROM_SAYS),
        ({"selector": {"matchLabels": {"a": "b"}}}, _FROM_SAYS),
        ({"from": "All", "selector": {"matchLabels": {"a": "b"}}}, _FROM_SAYS),
    ],
)
ENDPOINTS = Sort(
    [["a:1"], ["a:1", "a:2"], [f"a:{port}" for port in range(1, 65)]],
    [
        ([], "should have at least 1 items"),
        (["a:1", "a:1"], "Duplicate value"),
        _too_many([f"a:{port}" for port in range(1, 66)]),
    ],
)
GROUPS = Sort(
    [[], [{"name": "a"}, {"name": "b"}], [{"name": f"g{number}"} for number in range(64)]],
    [
        ([{"name": "a"}, {"name": "a", "startFrom": "Latest"}], "Duplicate value"),
        _too_many([{"name": f"g{number}"} for number in range(65)]),
    ],
)
ACCESS = Sort(
    [["Publish"], ["Manage", "Consume", "Publish"]],
    [
        ([], "should have at least 1 items"),
        (["Publish", "Publish"], "Duplicate value"),
        (["Publish"] * 4, "must have at most 3 items"),
    ],
)


def _grants(message: str, rest: Mapping[str, Any]) -> Sort:
    def grants(*names: tuple[str, str | None]) -> list[dict[str, Any]]:
        return [{"name": name, **({"namespace": space} if space else {}), **rest} for name, space in names]

    return Sort(
        [
            [],
            grants(("a", None), ("b", None), ("a", "shop"), ("a", "team")),
            grants(*((f"a{number}", None) for number in range(128))),
        ],
        [
            (grants(("a", None), ("b", None), ("a", None)), message),
            (grants(("a", "shop"), ("a", "shop")), message),
            _too_many(grants(*((f"a{number}", None) for number in range(129)))),
        ],
    )


TOPIC_GRANTS = _grants(
    "names a topic twice: write each name and namespace once, with all of its access", {"access": ["Publish"]}
)
LEASE_GRANTS = _grants("names a lease policy twice: write each name and namespace once", {})
NAMED = _required({"name": "a"})

_CREDENTIALS = {"": NAMED, ".name": OBJECT_NAME, ".usernameKey": SECRET_KEY, ".passwordKey": SECRET_KEY}
_CONNECTION_REF = {"": NAMED, ".name": OBJECT_NAME, ".namespace": NAMESPACE}
_ALLOWED = {
    "": ALLOWED_NAMESPACES,
    ".from": _enum("Same", "All", "Selector"),
    ".selector": SELECTOR,
    ".selector.matchLabels": MATCH_LABELS,
    ".selector.matchLabels{}": LABEL_VALUE,
    ".selector.matchExpressions": EXPRESSIONS,
    ".selector.matchExpressions[]": EXPRESSION,
    ".selector.matchExpressions[].key": LABEL_KEY,
    ".selector.matchExpressions[].operator": _enum("In", "NotIn", "Exists", "DoesNotExist"),
    ".selector.matchExpressions[].values": VALUES,
    ".selector.matchExpressions[].values[]": LABEL_VALUE,
}


def _below(path: str, sorts: Mapping[str, Sort]) -> dict[str, Sort]:
    return {f"{path}{rest}": sort for rest, sort in sorts.items()}


PLACES: dict[str, dict[str, Sort]] = {
    "RedisConnection": {
        "spec.topology": _enum("Standalone", "Sentinel", "Cluster"),
        "spec.access": _enum("Managed", "Shared"),
        "spec.endpoints": ENDPOINTS,
        "spec.endpoints[]": ENDPOINT,
        "spec.database": _number(0, 65535),
        "spec.sentinel": _required({"masterName": "a"}),
        "spec.sentinel.masterName": MASTER_NAME,
        **_below("spec.sentinel.authSecretRef", _CREDENTIALS),
        "spec.tls.caSecretRef": NAMED,
        "spec.tls.caSecretRef.name": OBJECT_NAME,
        "spec.tls.caSecretRef.key": SECRET_KEY,
        "spec.tls.clientCertSecretRef": NAMED,
        "spec.tls.clientCertSecretRef.name": OBJECT_NAME,
        "spec.tls.serverName": SERVER_NAME,
        **_below("spec.adminSecretRef", _CREDENTIALS),
        **_below("spec.sharedSecretRef", _CREDENTIALS),
        "spec.keyPrefix": KEY_PREFIX,
        **_below("spec.allowedNamespaces", _ALLOWED),
        "spec.unreachableDeletion.after": _duration("1s", "24h", "999ms", "24h1ms", zero="at once"),
        "spec.unreachableDeletion.then": _enum("Orphan", "Block"),
    },
    "StreamTopic": {
        **_below("spec.connectionRef", _CONNECTION_REF),
        "spec.topic": TOPIC,
        "spec.topicPrefix": TOPIC_PREFIX,
        "spec.maxLength": _number(0, 1_000_000_000),
        "spec.idleTtl": _duration("1s", "87600h", "999ms", "87600h1ms", zero="never"),
        "spec.reclaim.interval": _duration("100ms", "24h", "99ms", "24h1ms", zero="off"),
        "spec.reclaim.minIdle": _duration("100ms", "24h", "99ms", "24h1ms"),
        "spec.maxDeliveryAttempts": _number(0, 1_000_000),
        "spec.inFlightTimeout": _duration("100ms", "24h", "99ms", "24h1ms", zero="off"),
        "spec.deadLetter.maxLength": _number(1, 1_000_000_000),
        "spec.groups": GROUPS,
        "spec.groups[]": NAMED,
        "spec.groups[].name": GROUP_NAME,
        "spec.groups[].startFrom": _enum("Earliest", "Latest"),
        **_below("spec.allowedNamespaces", _ALLOWED),
        "spec.deletionPolicy": _enum("Retain", "Delete"),
    },
    "LeasePolicy": {
        **_below("spec.connectionRef", _CONNECTION_REF),
        "spec.keys": LEASE_KEYS,
        "spec.ttl": _duration("1s", "24h", "999ms", "24h1ms"),
        "spec.renewInterval": _duration("100ms", "12h", "99ms", "12h1ms"),
        "spec.lockDelay": _duration("1ms", "1h", "0ms1", "1h1ms", zero="no delay"),
        "spec.maxHold": _duration("1s", "87600h", "999ms", "87600h1ms", zero="unlimited"),
        **_below("spec.allowedNamespaces", _ALLOWED),
    },
    "CoordinationClient": {
        **_below("spec.connectionRef", _CONNECTION_REF),
        "spec.topics": TOPIC_GRANTS,
        "spec.topics[]": _required({"name": "a", "access": ["Publish"]}),
        "spec.topics[].name": OBJECT_NAME,
        "spec.topics[].namespace": NAMESPACE,
        "spec.topics[].access": ACCESS,
        "spec.topics[].access[]": _enum("Publish", "Consume", "Manage"),
        "spec.leases": LEASE_GRANTS,
        "spec.leases[]": NAMED,
        "spec.leases[].name": OBJECT_NAME,
        "spec.leases[].namespace": NAMESPACE,
        "spec.username": USERNAME,
        "spec.secretName": OBJECT_NAME,
        "spec.secretTemplate.labels": TEMPLATE_MAP,
        "spec.secretTemplate.labels{}": LABEL_VALUE,
        "spec.secretTemplate.annotations": TEMPLATE_MAP,
        "spec.secretTemplate.annotations{}": ANNOTATION,
        "spec.passwordSecretRef": NAMED,
        "spec.passwordSecretRef.name": OBJECT_NAME,
        "spec.passwordSecretRef.key": SECRET_KEY,
        "spec.rotation": _required({"every": "24h"}),
        "spec.rotation.every": _duration("10s", "87600h", "9s999ms", "87600h1ms"),
        "spec.rotation.overlap": _duration("1s", "8760h", "999ms", "8760h1ms"),
        "spec.deletionPolicy": _enum("Delete"),
    },
}


def an_object(kind: str, spec: Mapping[str, Any], name: str = "probe") -> Object:
    """An object of the kind with that spec."""
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


_REF = {"connectionRef": {"name": "main"}}
_IN = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
_EXISTING = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
_SELECTED = {"allowedNamespaces": {"from": "Selector", "selector": _IN}}
_SELECTED_OTHERWISE = {"allowedNamespaces": {"from": "Selector", "selector": _EXISTING}}
_TLS = {"caSecretRef": {"name": "ca"}, "clientCertSecretRef": {"name": "cert"}}

BASES: dict[str, list[dict[str, Any]]] = {
    "RedisConnection": [
        {"endpoints": ["redis:6379"], "tls": _TLS, "adminSecretRef": {"name": "admin"}, "unreachableDeletion": {}},
        {"endpoints": ["redis:6379"], **_SELECTED},
        {"endpoints": ["redis:6379"], "allowedNamespaces": {}},
        {"endpoints": ["redis:6379"], **_SELECTED_OTHERWISE},
        {
            "topology": "Sentinel",
            "endpoints": ["redis:26379"],
            "sentinel": {"masterName": "mymaster", "authSecretRef": {"name": "sentinel"}},
        },
        {"topology": "Cluster", "endpoints": ["redis:6379"]},
        {"endpoints": ["redis:6379"], "access": "Shared", "sharedSecretRef": {"name": "shared"}},
    ],
    "StreamTopic": [
        {**_REF, "reclaim": {}, "deadLetter": {}, "groups": [{"name": "billing"}]},
        {**_REF, **_SELECTED},
        {**_REF, "allowedNamespaces": {}},
        {**_REF, **_SELECTED_OTHERWISE},
    ],
    "LeasePolicy": [
        {**_REF, "ttl": "24h"},
        {**_REF, "ttl": "1s"},
        {**_REF, **_SELECTED},
        {**_REF, "allowedNamespaces": {}},
        {**_REF, **_SELECTED_OTHERWISE},
    ],
    "CoordinationClient": [
        {
            **_REF,
            "topics": [{"name": "orders", "access": ["Publish"]}],
            "leases": [{"name": "jobs"}],
            "secretTemplate": {"labels": {}, "annotations": {}},
            "rotation": {"every": "87600h"},
        },
        {**_REF, "passwordSecretRef": {"name": "password"}},
    ],
}
"""Specs that the API server takes; a value of `PLACES` is tried in one that has its place."""

"""Key names: slots, companions and ACL patterns hold for every legal name (C-1, C-4, C-5, O28)."""

from __future__ import annotations

import re

import pytest
import redis.crc
from hypothesis import assume, given
from hypothesis import strategies as st

from streamhold import keys
from streamhold.errors import ConfigError

KINDS = ("dead", "delayed", "fence", "floor")

# Few characters, so that braces, colons, digits and shared beginnings meet often.
NAME = st.text(st.sampled_from("ab0{}:*?[]\\/é 𝄞\n"), min_size=1, max_size=12)
PREFIX = st.one_of(
    st.text(st.sampled_from("ab0:-"), min_size=1, max_size=6),
    st.builds(
        "{}{{{}}}{}".format, *[st.text(st.sampled_from("ab0:"), min_size=size, max_size=3) for size in (0, 1, 0)]
    ),
)
KIND = st.sampled_from(KINDS)


def legal_topic(name: str) -> bool:
    return not name.startswith(keys.RESERVED_TOPIC_PREFIXES)


def matches(pattern: str, key: str) -> bool:
    """Redis's glob, for the forms that our patterns use."""
    expression = ""
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
            expression += re.escape(pattern[position])
        elif character == "*":
            expression += ".*"
        elif pattern.startswith("[0-9]", position):
            expression += "[0-9]"
            position += 4
        else:
            expression += re.escape(character)
        position += 1
    return re.fullmatch(expression, key, re.DOTALL) is not None


@given(NAME)
def test_the_slot_is_the_one_that_redis_py_computes(name: str) -> None:
    assert keys.key_slot(name) == redis.crc.key_slot(name.encode())


@given(PREFIX)
def test_generated_prefixes_are_legal(prefix: str) -> None:
    assert keys.check_key_prefix(prefix) == prefix


@given(PREFIX, KIND, NAME.filter(legal_topic))
def test_the_companion_of_a_topic_has_its_slot_and_lies_below_our_own_prefix(
    prefix: str, kind: str, topic: str
) -> None:
    key = keys.stream_key(prefix, topic)
    companion = keys.companion(prefix, kind, key)  # type: ignore[arg-type]
    assert keys.key_slot(companion) == keys.key_slot(key)
    assert companion.startswith(f"{prefix}:streamhold:{kind}:")


@given(PREFIX, KIND, NAME)
def test_the_companion_of_a_lease_has_its_slot(prefix: str, kind: str, name: str) -> None:
    key = keys.lease_key(prefix, name)
    assert keys.key_slot(keys.companion(prefix, kind, key)) == keys.key_slot(key)  # type: ignore[arg-type]


@given(PREFIX, NAME, NAME, KIND, KIND)
def test_two_keys_or_two_kinds_never_share_a_companion(
    prefix: str, one: str, other: str, kind: str, second: str
) -> None:
    assume((one, kind) != (other, second))
    first = keys.companion(prefix, kind, f"{prefix}:{one}")  # type: ignore[arg-type]
    assert first != keys.companion(prefix, second, f"{prefix}:{other}")  # type: ignore[arg-type]


@given(PREFIX, NAME.filter(legal_topic), KIND, NAME.filter(legal_topic))
def test_no_companion_is_the_key_of_a_legal_topic_or_of_a_lease(prefix: str, topic: str, kind: str, other: str) -> None:
    companion = keys.companion(prefix, kind, keys.stream_key(prefix, topic))  # type: ignore[arg-type]
    assert companion != keys.stream_key(prefix, other)
    assert companion != keys.lease_key(prefix, other)
    assert not legal_topic(companion.removeprefix(f"{prefix}:"))


@given(PREFIX, KIND, NAME, NAME)
def test_family_patterns_match_the_companions_of_the_family_and_of_no_other_key(
    prefix: str, kind: str, family: str, name: str
) -> None:
    patterns = keys.companion_patterns(prefix, kind, f"{prefix}:{family}")  # type: ignore[arg-type]
    for key in (
        f"{prefix}:{name}",
        f"{prefix}:{family}{name}",
        f"{prefix}:{family}",
        f"{prefix}:{name}{prefix}:{family}",
    ):
        companion = keys.companion(prefix, kind, key)  # type: ignore[arg-type]
        inside = key.startswith(f"{prefix}:{family}")
        assert any(matches(pattern, companion) for pattern in patterns) == inside, (key, companion, patterns)


@given(PREFIX, KIND, NAME, NAME)
def test_the_pattern_of_one_key_matches_its_companion_only(prefix: str, kind: str, name: str, other: str) -> None:
    pattern = keys.companion_pattern(prefix, kind, f"{prefix}:{name}")  # type: ignore[arg-type]
    companion = keys.companion(prefix, kind, f"{prefix}:{other}")  # type: ignore[arg-type]
    assert matches(pattern, companion) == (name == other)


@given(NAME, NAME)
def test_an_escaped_name_matches_itself_only_and_a_family_its_members_only(name: str, other: str) -> None:
    assert matches(keys.glob_escape(name), name)
    assert matches(keys.glob_escape(name), other) == (name == other)
    assert matches(keys.family_pattern(name), other) == other.startswith(name)


def test_every_slot_has_a_tag_number_of_at_most_six_digits() -> None:
    from streamhold._core.keys import _tag_numbers

    numbers = _tag_numbers()
    assert len(numbers) == 16384
    assert max(numbers.values()) == 109757
    assert all(keys.key_slot(str(number)) == slot for slot, number in numbers.items())
    assert all(keys.key_slot(str(smaller)) != keys.key_slot("a}b") for smaller in range(numbers[keys.key_slot("a}b")]))


@pytest.mark.parametrize(
    ("prefix", "kind", "key", "expected"),
    [
        ("p", "dead", "p:orders", "p:streamhold:dead:{p:orders}"),
        ("p", "dead", "p:{eu}orders", "p:streamhold:dead:p:{eu}orders"),
        ("p", "dead", "p:{}x", "p:streamhold:dead:{11424}p:{}x"),
        ("{t}p", "fence", "{t}p:lease:a}b", "{t}p:streamhold:fence:{t}p:lease:a}b"),
    ],
)
def test_companions_are_spelled_as_designed(prefix: str, kind: str, key: str, expected: str) -> None:
    companion = keys.companion(prefix, kind, key)  # type: ignore[arg-type]
    assert companion == expected


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "a b",
        "a\tb",
        "a*",
        "a?",
        "[a",
        "a]",
        "a\\b",
        "{",
        "}",
        "{}",
        "}a{",
        "{a}{b}",
        "{a",
        "a}",
        "{{a}",
        "a\0",
        "\ud800",
    ],
)
def test_case_O28_a_key_prefix_that_would_widen_an_acl_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="key_prefix"):
        keys.check_key_prefix(prefix)


@pytest.mark.parametrize(
    "topic", ["", "a\0b", "\ud800", "lease:x", "lease:", "lease-metadata:x", "streamhold:dead:x", 7, None]
)
def test_a_topic_that_would_collide_or_cannot_be_sent_is_refused(topic: object) -> None:
    with pytest.raises(ConfigError, match="topic"):
        keys.check_topic(topic)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "topic", ["orders", "lease", "leases:x", "a:lease:b", "Lease:x", "streamhold", "a b", "{x}", "*", "é"]
)
def test_other_topics_are_taken_as_they_are(topic: str) -> None:
    assert keys.stream_key("mastra:topic", topic) == f"mastra:topic:{topic}"


def test_a_topic_must_not_take_the_place_of_the_owner_record() -> None:
    with pytest.raises(ConfigError, match="streamhold:owners"):
        keys.stream_key("streamhold", "owners")
    assert keys.stream_key("shop", "owners") == "shop:owners"


def test_an_empty_lease_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="key"):
        keys.lease_key("p", "")

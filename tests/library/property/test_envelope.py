"""The event as JSON, for any value: msgspec and the standard library must not differ in what they mean (C-2, C-3)."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamhold._core import envelope as module
from streamhold._core.envelope import attempt_of, decode, encode, envelope, republished
from streamhold.errors import ConfigError

texts = st.text(st.characters(exclude_categories=()))  # lone surrogates too
numbers = st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.floats())
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=12)
events = st.dictionaries(texts, values, max_size=6)


def without_nan(value: Any) -> Any:
    """What JavaScript would make of it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(member) for key, member in value.items()}
    return [without_nan(member) for member in value] if isinstance(value, list) else value


@given(events)
@example({"a": math.nan, "b": "\ud800", "c": 2**64})
def test_what_is_encoded_decodes_to_the_same(event: dict[str, Any]) -> None:
    assert decode(encode(event)) == without_nan(event)


@given(events)
def test_what_is_encoded_is_what_any_json_reader_understands(event: dict[str, Any]) -> None:
    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    assert json.loads(encode(event).decode(), parse_constant=refuse) == without_nan(event)


@given(events)
def test_the_slow_way_means_the_same_as_the_fast_one(event: dict[str, Any]) -> None:
    assert json.loads(module._encode_slowly(event)) == json.loads(encode(event))


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())))
def test_it_is_written_as_javascript_writes_it(event: dict[str, Any]) -> None:
    expected = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    assert encode(event).decode() == expected


@given(st.binary(max_size=50) | st.text().map(str.encode) | events.map(lambda event: json.dumps(event).encode()))
@example(b"\xef\xbb\xbf{}")
@example(b'{"a":1}\x00')
@example("{}".encode("utf-16"))
def test_any_bytes_are_an_event_or_none_and_never_an_error(raw: bytes) -> None:
    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        expected = json.loads(raw.decode(), parse_constant=refuse)
    except ValueError:
        expected = None
    assert decode(raw) == (expected if isinstance(expected, dict) else None)


@given(events, st.integers(1, 10**6))
def test_a_republished_event_differs_in_its_attempt_alone(event: dict[str, Any], attempt: int) -> None:
    for raw in (encode(event), json.dumps(without_nan(event)).encode()):
        again = json.loads(republished(raw, attempt))
        assert again == {**json.loads(raw), "deliveryAttempt": attempt}
        assert list(again)[: len(event)] == list(json.loads(raw))


@pytest.mark.parametrize("raw", [b'{"a":1e999,"b":-1e999,"c":"Infinity","d":"\\ud800"}', b'{"a":1.50,"b":1e999}'])
def test_numbers_beyond_a_double_are_republished_as_such(raw: bytes) -> None:
    assert json.loads(republished(raw, 2)) == {**json.loads(raw), "deliveryAttempt": 2}
    assert b"Infinity," not in republished(raw, 2).replace(b'"Infinity"', b"")


@given(st.one_of(st.binary(), st.sets(st.integers()), st.complex_numbers(), st.dates(), st.decimals()), st.data())
def test_what_json_has_not_is_refused_wherever_it_is(foreign: Any, data: st.DataObject) -> None:
    place = data.draw(
        st.sampled_from([lambda x: x, lambda x: [1, x], lambda x: {"a": {"b": x}}, lambda x: ({"t": x},)])
    )
    with pytest.raises(ConfigError, match="event"):
        encode({"data": place(foreign)})


@pytest.mark.parametrize(
    ("value", "attempt"), [(3, 3), ("3", 3), (2.0, 2), (None, 1), ("x", 1), (True, 1), ([], 1), (math.inf, 1), ("", 1)]
)
def test_the_attempt_is_read_from_what_others_write(value: Any, attempt: int) -> None:
    assert attempt_of({"deliveryAttempt": value}) == attempt


def test_the_attempt_of_an_event_that_does_not_say_is_1() -> None:
    assert attempt_of({}) == 1


@pytest.mark.parametrize("attempt", ["1", 1.0, True, -1])
def test_a_publisher_cannot_set_an_attempt_that_is_no_count(attempt: Any) -> None:
    with pytest.raises(ConfigError, match="deliveryAttempt"):
        envelope({"deliveryAttempt": attempt}, "id", "now")


def test_a_publisher_must_give_a_mapping() -> None:
    with pytest.raises(ConfigError, match="event"):
        envelope([("type", "t")], "id", "now")  # type: ignore[arg-type]


def test_a_subclass_of_a_json_type_is_refused_with_its_name() -> None:
    class Text(str):
        __slots__ = ()

    with pytest.raises(ConfigError, match="Text"):
        encode({"data": Text("x")})


def test_a_number_of_thousands_of_digits_is_refused_as_a_whole() -> None:
    with pytest.raises(ConfigError, match="nothing was sent"):
        encode({"data": 10**5000})
    assert decode(b'{"data":' + b"1" * 5000 + b"}") is None


def test_a_valid_attempt_of_the_publisher_is_kept() -> None:
    assert envelope({"deliveryAttempt": 3}, "id", "now") == {"deliveryAttempt": 3, "id": "id", "createdAt": "now"}


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (1j, "event.data"),
        ([1, {"a": 1j}], "event.data[1].a"),
        ({"fine": [1], "deep": {"b": (1, 1j)}}, "event.data.deep.b[1]"),
        ({2: 1}, "event.data"),
        (None, None),
    ],
)
def test_the_error_says_where_the_culprit_is(data: Any, where: str | None) -> None:
    if where is None:
        assert encode({"data": data}) == b'{"data":null}'
        return
    with pytest.raises(ConfigError) as refused:
        encode({"data": data})
    assert refused.value.option == where


def test_what_is_too_deep_for_any_reader_is_refused() -> None:
    fine: Any = None
    for _ in range(400):
        fine = [fine]
    assert decode(encode({"data": fine})) == {"data": fine}
    for _ in range(200):
        fine = [fine]
    with pytest.raises(ConfigError, match="levels deep"):
        encode({"data": fine})


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":NaN}', b'{"a":-Infinity}'])
def test_what_no_reader_should_accept_is_no_event(raw: bytes) -> None:
    assert decode(raw) is None


def test_an_attempt_that_is_not_given_is_1() -> None:
    assert envelope({"deliveryAttempt": None}, "id", "now")["deliveryAttempt"] == 1
    assert envelope({}, "id", "now")["deliveryAttempt"] == 1

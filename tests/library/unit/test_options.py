"""Options: every documented one under its name and default, every bad value refused by name (contract B)."""

from __future__ import annotations

import inspect
import logging
import math
from typing import Any

import pytest
import redis.asyncio

from streamhold import ConfigError, RedisStreamsPubSub
from streamhold._core.options import PubSubOptions, check_group, check_max_in_flight, check_start_from

DOCUMENTED = {
    "url": None,
    "key_prefix": "mastra:topic",
    "block_ms": 1000,
    "redis_options": None,
    "max_stream_length": 10_000,
    "stream_idle_ttl_ms": 0,
    "reclaim_interval_ms": 30_000,
    "reclaim_idle_ms": 60_000,
    "max_delivery_attempts": 5,
    "in_flight_timeout_ms": 0,
    "client": None,
    "logger": None,
}


def test_the_documented_options_have_their_names_and_defaults() -> None:
    parameters = inspect.signature(RedisStreamsPubSub).parameters
    assert {name: parameters[name].default for name in DOCUMENTED} == DOCUMENTED


BAD: list[tuple[str, Any]] = [
    *[
        (option, value)
        for option in (
            "block_ms", "max_stream_length", "stream_idle_ttl_ms", "reclaim_interval_ms", "reclaim_idle_ms",
            "in_flight_timeout_ms", "dead_letter_max_length",
        )
        for value in (-1, 1.5, math.nan, math.inf, "1000", None, True, 2**60)
    ],
    ("block_ms", 0),
    ("reclaim_idle_ms", 0),
    *[("max_delivery_attempts", value) for value in (-1, 0.5, math.nan, -math.inf, "3", None, True)],
    *[("key_prefix", value) for value in ("", "a b", "a*", "a?", "a[b", "a\\b", "{a", "a}", "{}", "{a}{b}", 7, None)],
    *[(option, value) for option in ("publish_timeout", "close_timeout") for value in (0, -1, math.nan, math.inf, "1")],
    ("dead_letters", 1),
    ("redis_options", "x"),
    ("logger", "x"),
    ("url", 7),
    ("url", "http://localhost"),
    ("client", object()),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), BAD)
def test_a_bad_value_is_refused_with_the_options_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option) as refused:
        RedisStreamsPubSub(**{option: value})
    assert refused.value.option == option
    assert isinstance(refused.value, ValueError)


@pytest.mark.parametrize("cap", [0, math.inf])
def test_no_cap_is_0_or_infinity(cap: float) -> None:
    assert RedisStreamsPubSub(max_delivery_attempts=cap)._options.settings.max_attempts == 0


def test_a_key_prefix_may_carry_one_hash_tag() -> None:
    assert RedisStreamsPubSub(key_prefix="app:{shop}")._options.key_prefix == "app:{shop}"


def test_two_connection_sources_are_refused() -> None:
    client = redis.asyncio.Redis()
    with pytest.raises(ConfigError, match="one connection source"):
        RedisStreamsPubSub("redis://localhost", client=client)


def test_a_client_that_is_handed_in_gives_its_settings() -> None:
    client = redis.asyncio.Redis(host="redis.example", port=7000, db=3)
    assert RedisStreamsPubSub(client=client)._client.server_label == "redis.example:7000/3"


def test_the_url_falls_back_to_that_of_the_redis_options() -> None:
    assert RedisStreamsPubSub(redis_options={"url": "redis://a:1/2"})._client.server_label == "a:1/2"
    both = RedisStreamsPubSub("redis://b:2/3", redis_options={"url": "redis://a:1/2"})
    assert both._client.server_label == "b:2/3"
    assert RedisStreamsPubSub()._client.server_label == "localhost:6379/0"


def test_a_logger_of_ones_own_is_used(caplog: pytest.LogCaptureFixture) -> None:
    assert RedisStreamsPubSub(logger=logging.getLogger("mine"))._log.name == "mine"


@pytest.mark.parametrize("group", ["", 7, "half\ud800", "__fanout-x"])
def test_a_group_that_cannot_be_is_refused(group: Any) -> None:
    with pytest.raises(ConfigError, match="group"):
        check_group(group)


def test_a_group_is_any_other_text_or_none() -> None:
    assert check_group("billing é") == "billing é"
    assert check_group(None) is None


def test_a_group_begins_at_one_of_two_places() -> None:
    assert [check_start_from(start) for start in ("earliest", "latest")] == ["earliest", "latest"]
    with pytest.raises(ConfigError, match="start_from"):
        check_start_from("$")


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "3"])
def test_a_concurrency_limit_that_cannot_be_is_refused(limit: Any) -> None:
    with pytest.raises(ConfigError, match="max_in_flight"):
        check_max_in_flight(limit)


def test_a_concurrency_limit_is_a_count_or_none() -> None:
    assert check_max_in_flight(1) == 1
    assert check_max_in_flight(None) is None


def test_options_know_their_names() -> None:
    assert "key_prefix" in PubSubOptions.names()
    assert "settings" not in PubSubOptions.names()


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("this object cannot be shown")


def _nested(levels: int) -> list[Any]:
    outer: list[Any] = []
    for _ in range(levels):
        outer = [outer]
    return outer


@pytest.mark.parametrize(
    "value", [Unshowable(), _nested(10_000), "x" * 1_000_000, 10**5000], ids=["unshowable", "nested", "long", "huge"]
)
def test_whatever_a_value_looks_like_the_error_is_one_short_line(value: Any) -> None:
    for option in ("block_ms", "publish_timeout", "key_prefix", "dead_letters"):
        with pytest.raises(ConfigError, match="^" + option) as error:
            PubSubOptions(**{option: value if option != "key_prefix" else [value]})
        assert len(str(error.value)) < 1000


def test_a_timeout_beyond_what_clocks_count_is_refused() -> None:
    for option in ("publish_timeout", "close_timeout"):
        with pytest.raises(ConfigError, match=option):
            PubSubOptions(**{option: 10**400})  # type: ignore[arg-type]
